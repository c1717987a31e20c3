"""The pages that promise tests name tests that exist."""

import re

import pytest

from tests.support.pages import missing_of, named_tests, page

DESIGN = page("design.md")


def test_every_law_names_a_test():
    rows = re.findall(r"^\| (\d+) [^|]+\|([^|]+)\|$", DESIGN, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 11))
    assert all("tests/" in tests for _, tests in rows)


def test_every_fault_of_others_names_a_test():
    table = DESIGN.split("## Faults that others have had")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)[2:]
    assert len(rows) >= 16
    assert all("tests/" in tests for *_, tests in rows)


@pytest.mark.parametrize("test", named_tests(DESIGN), ids=lambda test: "::".join(test[:2]))
def test_named_test_exists(test):
    assert not missing_of(test)
