import pytest

from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.conversation.prompt import make_prompt
from megapack.conversation.switches import switched, trained_turns
from megapack.conversation.tokenized import tokenize_renders
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.templating import CALLER, bare, byte_encoder, learnt, rejected, tokenized
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


CHAIN = chat(
    ("u", "hi"),
    ("a", "one", {"loss": True}),
    ("u", "ok"),
    ("a", "", {"tool_calls": (call(),)}),
    ("t", "r"),
    ("a", "two"),
    ("u", "bye"),
)


@pytest.mark.parametrize("marks", [str, bare], ids=["marked", "derived"])
@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ("all", ["one</s>", '[TOOL_CALLS]find[ARGS]{"a":1}</s>', "two</s>"]),
        ("last", ["two</s>"]),
        ("none", []),
    ],
)
def test_turns_of_the_job_under_chat_templates(marks, turns, expected):
    made = learnt(CHAIN, encoder=byte_encoder(), template=marks(CALLER), loss_turns=turns)
    assert made == expected


@pytest.mark.parametrize(
    ("form", "end"), [("nemotron-h-aligned", "\n"), ("nemotron-nano-v2", "\n<SPECIAL_12>\n"),
                      ("identity", "")],
)  # fmt: skip
def test_turns_and_parts_under_megatron_formats(form, end):
    specials = ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>")
    encoder = encoder_of(bytes_tokenizer(specials=specials))
    conversation = chat(("u", "hi"), ("a", " one"), ("u", "ok"), ("a", "two"))
    one = " one" if form == "identity" else "one"

    def made(**config):
        settings = TokenizeConfig(format=form, long_documents="drop", **config)
        prompt = make_prompt(PromptFormat(form), encoder=encoder, config=settings)
        render = prompt.render(switched(conversation, config=settings))
        (tokens,) = tokenize_renders([render], encoder=encoder)
        return encoder.decode(tokens.tokens[tokens.mask])

    assert made() == f"{one}{end}two{end}"
    assert made(loss_turns="last") == f"two{end}"
    assert made(loss_turns="none") == ""
    assert made(loss_parts=["content"]) == f"{one}two"
    assert made(loss_parts=["end_of_turn"]) == end * 2
    assert made(loss_parts=["reasoning", "tool_calls", "template_text"]) == ""
    assert made(loss_turns="last", loss_parts=["end_of_turn", "reasoning"]) == end


@pytest.mark.parametrize(
    ("switches", "turns", "expected"),
    [
        ((None, None), "last", [1]),
        ((True, None), "last", [1]),
        ((True, True), "last", [1]),
        ((None, False), "last", []),
        ((True, False), "last", []),
        ((False, None), "last", [1]),
        ((True, True), "none", []),
        ((True, None), "all", [0, 1]),
        ((False, True), "all", [1]),
        ((False, False), "all", []),
    ],
)
def test_switches_of_job_and_data_only_narrow(switches, turns, expected):
    first, second = switches
    conversation = chat(("u", "x"), ("a", "y", {"loss": first}), ("u", "x"),
                        ("a", "z", {"loss": second}))  # fmt: skip
    settings = TokenizeConfig(long_documents="drop", loss_turns=turns)
    trained = trained_turns(switched(conversation, config=settings))
    assert [(index - 1) // 2 for index in trained] == expected


def test_spans_are_looked_for_only_where_a_turn_trains():
    refused = "{% for m in messages | reverse %}{{ '<u>' + m.content }}{% endfor %}"
    conversation = chat(("u", "hi"), ("a", "one"))
    arguments = {"encoder": encoder_of(bytes_tokenizer()), "template": refused}
    assert rejected(conversation, **arguments).reason is DropReason.MASK_UNKNOWN
    assert tokenized(conversation, **arguments, loss_turns="none").num_targets == 0


def test_marks_of_the_only_assistant_turn_are_its_own():
    template = (
        "{% for m in messages %}{% generation %}{{ m.content | length }}{% endgeneration %}"
        "{% endfor %}"
    )
    made = tokenized(
        chat(("u", "hi"), ("a", "one")),
        encoder=encoder_of(bytes_tokenizer()),
        template=template,
        loss_turns="last",
    )
    assert made.num_targets == 1
