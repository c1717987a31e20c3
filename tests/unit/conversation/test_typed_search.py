"""The quick searches that rule out typed control tokens miss none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.conversation.control import ControlTokens
from megapack.conversation.messages import Conversation
from tests.support.chats import call, chat

LITERALS = ("<s>", "<|im_end|>", 'a"b', "back\\slash", "new\nline", "\x07bell", "é", "终止", "</s>")
CONTROL = ControlTokens(LITERALS)
TEXTS = st.lists(
    st.sampled_from([*LITERALS, "<", "|", "im_end", '"', "\\", "\n", "x"]), max_size=5
).map("".join)
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def strings_of(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings_of(key)
            yield from strings_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_of(item)


def holds(control, value):
    return any(literal in text for text in strings_of(value) for literal in control.literals)


@given(VALUES)
def test_value_and_its_json_are_searched_alike(value):
    expected = holds(CONTROL, value)
    assert CONTROL.occur_in(value) is expected
    if expected:
        assert CONTROL.may_occur_in(json.dumps(value, ensure_ascii=False))


@given(TEXTS)
def test_tokenizer_with_many_kinds_of_control_tokens_is_searched_too(text):
    many = ControlTokens([*LITERALS, *(f"{chr(number)}-token" for number in range(1000, 2000, 7))])
    assert many.occur_in(text) is holds(many, text)


@pytest.mark.parametrize("literal", LITERALS)
def test_conversation_read_from_its_text_keeps_it(literal):
    conversation = chat(("u", literal), ("a", "x", {"tool_calls": (call(literal),), "loss": False}))
    text = conversation.dumps()
    again = Conversation.loads(text)
    assert again == conversation
    assert again.dumps() == text
    assert CONTROL.may_occur_in(text)
    shorter = again.with_messages(again.messages[1:])
    assert Conversation.loads(shorter.dumps()) == shorter
    assert shorter.dumps() != text
