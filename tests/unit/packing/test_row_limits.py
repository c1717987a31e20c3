"""Budgets of a row: what is not given follows `max_tokens`."""

import pytest
from pydantic import ValidationError

from megapack.packing.row_limits import RowLimits

DERIVED = ("expected_tokens", "max_sample_tokens", "prefer_buffer_before")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (32768, 16384, 16384)),
        ({"max_tokens": 100000}, (32768, 16384, 16384)),
        ({"max_tokens": 20000}, (20000, 16384, 16384)),
        ({"max_tokens": 4096}, (4096, 4096, 4096)),
        ({"max_tokens": "4096"}, (4096, 4096, 4096)),
        ({"max_tokens": 4096, "expected_tokens": 9}, (9, 4096, 4096)),
    ],
)
def test_what_is_not_given_is_within_a_row(given, expected):
    limits = RowLimits.model_validate(given)
    assert tuple(getattr(limits, name) for name in DERIVED) == expected
    assert RowLimits.model_validate(limits.model_dump()) == limits


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_given_is_checked(name):
    with pytest.raises(ValidationError, match=f"{name}: expected at most max_tokens = 9, found 10"):
        RowLimits(**{"max_tokens": 9, name: 10})


@pytest.mark.parametrize("value", [0, None, "many", float("inf")])
def test_a_wrong_limit_is_the_only_error(value):
    with pytest.raises(ValidationError) as caught:
        RowLimits.model_validate({"max_tokens": value})
    assert [error["loc"] for error in caught.value.errors()] == [("max_tokens",)]
