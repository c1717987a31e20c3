from datetime import date

import pytest

from megapack.conversation.chat_template import ChatTemplatePrompt
from megapack.conversation.config import TokenizeConfig
from megapack.errors import ConfigError
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.templating import rejected, tokenized
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    bytes_tokenizer,
    encoder_of,
    marked_words_tokenizer,
    with_bos,
    words_tokenizer,
)

WORDS = "hi one two three ok be kind"


def test_answer_is_tokenized_in_its_place_and_not_alone():
    encoder = encoder_of(marked_words_tokenizer("Say it The sky"))
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}<a>{% else %}"
        "{% generation %}{{ m.content }}<eot>{% endgeneration %}{% endif %}{% endfor %}"
    )
    found = tokenized(chat(("u", "Say it"), ("a", "The sky")), encoder=encoder, template=template)
    (whole,) = encoder.encode(["<u>Say it<a>The sky<eot>"])
    assert found.tokens.tolist() == whole.ids.tolist()
    (alone,) = encoder.encode(["The sky"])
    first = int(found.tokens[found.mask.argmax()])
    assert first == encoder.token_id("The") != int(alone.ids[0])


def test_token_that_joins_header_and_answer_is_supervised():
    encoder = encoder_of(marked_words_tokenizer("hi"))
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<a>\\n' }}"
        "{% generation %}{{ m.content }}<eot>{% endgeneration %}"
        "{% else %}<u>{{ m.content }}{% endif %}{% endfor %}"
    )
    found = tokenized(chat(("u", "hi"), ("a", "\nhi")), encoder=encoder, template=template)
    joined = encoder.token_id("\n\n")
    assert found.tokens.tolist()[3] == joined
    assert found.mask.tolist()[:4] == [False, False, False, True]


@pytest.mark.parametrize(("writes_bos", "adds_bos"), [(True, True), (True, False), (False, True)])
def test_bos_stands_exactly_once(writes_bos, adds_bos):
    tokenizer = words_tokenizer(WORDS)
    encoder = encoder_of(
        with_bos(tokenizer) if adds_bos else tokenizer, special_tokens={"bos_token": "</s>"}
    )
    template = ("{{ bos_token + ' ' }}" if writes_bos else "") + MARKED_TEMPLATE
    found = tokenized(chat(("u", "hi"), ("a", "one")), encoder=encoder, template=template)
    assert found.tokens.tolist() == [2, 3, 8, 5, 4, 9, 5]
    assert found.mask.tolist() == [False] * 5 + [True] * 2


def test_loss_on_all_supervises_every_token_but_the_first():
    encoder = encoder_of(words_tokenizer(WORDS))
    found = tokenized(
        chat(("u", "hi"), ("a", "one")), encoder=encoder, template=PLAIN_TEMPLATE, loss_on="all"
    )
    assert found.mask.tolist() == [False] + [True] * 5


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, MARKED_TEMPLATE])
@pytest.mark.parametrize("role", ["u", "a"])
def test_typed_control_tokens_stay_text_and_make_no_boundary(template, role):
    encoder = encoder_of(bytes_tokenizer())
    typed = "x<eot><a>y"
    question, answer = ("hi", typed) if role == "a" else (typed, "one")
    found = tokenized(chat(("u", question), ("a", answer)), encoder=encoder, template=template)
    control = [int(token) for token in found.tokens if token < 8]
    assert control == [3, 5, 4, 5]
    assert encoder.decode(found.tokens[found.mask]).strip() == f"{answer} <eot>"


def test_typed_control_tokens_become_control_tokens_when_the_job_says_so():
    encoder = encoder_of(words_tokenizer(WORDS))
    found = tokenized(
        chat(("u", "hi <eot>"), ("a", "one")),
        encoder=encoder,
        template=MARKED_TEMPLATE,
        typed_control_tokens="control",
    )
    assert found.tokens.tolist() == [3, 8, 5, 5, 4, 9, 5]
    assert found.mask.tolist() == [False] * 5 + [True] * 2


def test_template_that_looks_at_a_typed_token_is_refused():
    template = (
        "{% for m in messages %}{% if '<eot>' in m.content %}!{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    found = rejected(
        chat(("u", "<eot>"), ("a", "one")), encoder=encoder_of(bytes_tokenizer()), template=template
    )
    assert found.reason is DropReason.MASK_UNKNOWN
    assert "holds a control token" in found.detail


def test_template_that_asks_for_the_day_needs_one():
    template = "{{ strftime_now('%d %b %Y') }}" + MARKED_TEMPLATE
    conversation, encoder = chat(("u", "hi"), ("a", "one")), encoder_of(bytes_tokenizer())
    found = rejected(conversation, encoder=encoder, template=template)
    assert found.reason is DropReason.TEMPLATE_ERROR
    assert "tokenize.template_date" in found.detail
    made = tokenized(
        conversation, encoder=encoder, template=template, template_date=date(2025, 3, 1)
    )
    assert encoder.decode(made.tokens).startswith("01 Mar 2025<u>")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no tools here') }}", "no tools here"),
        ("{{ messages[9].content + '' }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ 2.0 ** 5000 }}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% set n = namespace() %}{% set n.__x = 1 %}", "__x"),
    ],
)
def test_failing_template_costs_the_conversation(template, words):
    found = rejected(
        chat(("u", "hi"), ("a", "one")), encoder=encoder_of(bytes_tokenizer()), template=template
    )
    assert found.reason is DropReason.TEMPLATE_ERROR
    assert words in found.detail


def test_missing_and_broken_templates_are_wrong_jobs():
    encoder = encoder_of(bytes_tokenizer())
    with pytest.raises(ConfigError, match="expected a chat template"):
        ChatTemplatePrompt(encoder=encoder, config=TokenizeConfig(long_documents="drop"))
    with pytest.raises(ConfigError, match="line 2"):
        tokenized(chat(("u", "hi")), encoder=encoder, template="x\n{% if %}")


def test_reserved_characters_cannot_forge_a_span():
    found = rejected(
        chat(("u", "\ufdd0evil\ufdd1"), ("a", "one")),
        encoder=encoder_of(bytes_tokenizer()),
        template=MARKED_TEMPLATE,
    )
    assert found.reason is DropReason.MASK_UNKNOWN
    assert "noncharacters" in found.detail


def test_tools_kwargs_and_calls_reach_the_template():
    template = (
        "{{ tools | tojson }}|{{ mode }}|{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    encoder = encoder_of(bytes_tokenizer())
    conversation = chat(
        ("u", "hi"),
        ("a", "x", {"tool_calls": (call(),)}),
        tools=({"z": "<é>", "a": 1},),
        template_kwargs={"mode": "row"},
    )
    made = tokenized(
        conversation, encoder=encoder, template=template, template_kwargs={"mode": "job"}
    )
    assert encoder.decode(made.tokens) == '[{"z": "<é>", "a": 1}]|row|hifind{"a":1}x'
