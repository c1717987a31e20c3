"""Conversations are read from their stored text as the standard library would read them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.conversation.messages import Conversation

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def text_of(value):
    record = {"messages": [{"role": "user", "content": "hi"}], "tools": [value]}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def check(value):
    text = text_of(value)
    (found,) = Conversation.loads(text).tools
    # Texts tell 1 from 1.0 and from True, 0.0 from -0.0, and one order of keys from another.
    assert json.dumps(found) == json.dumps(value)


@given(VALUES)
def test_any_value_is_read_as_it_was_written(value):
    check(value)


@pytest.mark.parametrize(
    "value",
    [10**400, -(2**63), 2**64, 1e308, 5e-324, -0.0, "\ud800", "\x00\x7f\u2028", {"b": 1, "a": 2}],
    ids=repr,
)
def test_values_at_the_edges_are_read_as_they_were_written(value):
    check(value)


def test_values_nested_deeply_are_read():
    value = 1
    for _ in range(400):
        value = [value]
    check(value)
