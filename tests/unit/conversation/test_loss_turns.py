import pytest

from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.templating import rejected, tokenized
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    bytes_tokenizer,
    encoder_of,
    words_tokenizer,
)

WORDS = "hi one two three ok be kind"


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, MARKED_TEMPLATE])
def test_switched_off_turn_is_not_supervised(template):
    found = tokenized(
        chat(("u", "hi"), ("a", "one", {"loss": False}), ("u", "hi"), ("a", "two")),
        encoder=encoder_of(words_tokenizer(WORDS)),
        template=template,
    )
    assert found.mask.tolist() == [False] * 10 + [True] * 2


TWO_MARKS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<a>' }}"
    "{% if m.reasoning_content %}{% generation %}{{ m.reasoning_content }}{% endgeneration %}|"
    "{% endif %}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}"
    "{% if m.content %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}"
    "{% else %}{{ '<u>' + m.content }}{% endif %}{% endfor %}"
)


def test_switched_off_turn_with_two_marks_is_found_by_place():
    encoder = encoder_of(bytes_tokenizer())
    off = {"reasoning": "BADTHINK", "loss": False}
    calls = {"tool_calls": (call(),), "loss": True}
    made = tokenized(
        chat(("u", "hi"), ("a", "", calls), ("t", "r"), ("a", "BAD", off)),
        encoder=encoder,
        template=TWO_MARKS,
    )
    assert made.num_targets == 0
    made = tokenized(
        chat(("u", "hi"), ("a", "BAD", off), ("u", "so"), ("a", "good", {"reasoning": "hm"})),
        encoder=encoder,
        template=TWO_MARKS,
    )
    assert encoder.decode(made.tokens[made.mask]) == "hmgood"


def test_switched_off_turn_whose_marks_cannot_be_placed_is_refused():
    template = (
        "{% for m in messages %}{% generation %}{{ m.content | length }}{% endgeneration %}"
        "{% endfor %}"
    )
    found = rejected(
        chat(("u", "hi"), ("a", "one", {"loss": False}), ("u", "ok"), ("a", "two")),
        encoder=encoder_of(bytes_tokenizer()),
        template=template,
    )
    assert found.reason is DropReason.MASK_UNKNOWN
    assert "loss is switched off" in found.detail
