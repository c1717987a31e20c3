from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from megapack.conversation.chat_template import ChatTemplatePrompt
from megapack.conversation.config import TokenizeConfig
from megapack.conversation.rejection import RejectedError
from megapack.conversation.tokenized import tokenize_renders
from megapack.errors import ConfigError
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
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
THINKING = (
    "{% set last = namespace(i=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.i = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<a>' }}"
    "{% if loop.index0 > last.i %}{{ '<think>' + (m.reasoning_content or '') + '</think>' }}"
    "{% endif %}{{ m.content + '<eot>\n' }}"
    "{% else %}{{ '<u>' + m.content + '<eot>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


def tokenized(conversation, *, encoder, template=None, piece=0, **config):
    settings = TokenizeConfig(long_documents="drop", chat_template=template, **config)
    render = ChatTemplatePrompt(encoder=encoder, config=settings).render(conversation, piece=piece)
    return tokenize_renders([render], encoder=encoder)[0]


def rejected(conversation, **kwargs):
    with pytest.raises(RejectedError) as caught:
        tokenized(conversation, **kwargs)
    return caught.value


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, MARKED_TEMPLATE])
def test_answer_and_end_mark_are_supervised_with_and_without_generation_marks(template):
    found = tokenized(
        chat(("u", "hi"), ("a", "one two")),
        encoder=encoder_of(words_tokenizer(WORDS)),
        template=template,
    )
    assert found.tokens.tolist() == [3, 8, 5, 4, 9, 10, 5]
    assert found.mask.tolist() == [False] * 4 + [True] * 3


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, MARKED_TEMPLATE])
def test_equal_texts_in_several_turns_are_supervised_by_place(template):
    found = tokenized(
        chat(("u", "ok"), ("a", "ok"), ("u", "ok"), ("a", "ok")),
        encoder=encoder_of(words_tokenizer(WORDS)),
        template=template,
    )
    assert found.tokens.tolist() == [3, 12, 5, 4, 12, 5] * 2
    assert found.mask.tolist() == ([False] * 4 + [True] * 2) * 2


def test_template_without_generation_prompt_keeps_its_header_out():
    template = (
        "{% for m in messages %}{{ '<' + m.role[0] + '> ' + m.content + ' <eot> ' }}{% endfor %}"
    )
    found = tokenized(
        chat(("u", "hi"), ("a", "one two")),
        encoder=encoder_of(words_tokenizer(WORDS)),
        template=template,
    )
    assert found.tokens.tolist() == [3, 8, 5, 4, 9, 10, 5]
    assert found.mask.tolist() == [False] * 4 + [True] * 3


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


def test_thinking_cut_from_earlier_turns_follows_the_whole_render():
    encoder = encoder_of(bytes_tokenizer())
    conversation = chat(
        ("u", "hi"),
        ("a", "one", {"reasoning": "hm"}),
        ("u", "ok"),
        ("a", "two", {"reasoning": "so"}),
    )
    found = tokenized(conversation, encoder=encoder, template=THINKING)
    assert encoder.decode(found.tokens) == (
        "<u>hi<eot>\n<a>one<eot>\n<u>ok<eot>\n<a><think>so</think>two<eot>\n"
    )
    assert encoder.decode(found.tokens[found.mask]) == "one<eot><think>so</think>two<eot>"


@pytest.mark.parametrize(
    ("policy", "first"), [("mask", "print"), ("supervise", "<think></think>print")]
)
def test_empty_thinking_is_masked_when_the_job_says_so(policy, first):
    encoder = encoder_of(bytes_tokenizer())
    found = tokenized(
        chat(("u", "code?"), ("a", "print(1)")),
        encoder=encoder,
        template=THINKING,
        empty_thinking=policy,
    )
    assert encoder.decode(found.tokens[found.mask]) == f"{first}(1)<eot>"


def test_template_whose_spans_cannot_be_derived_is_refused_by_name():
    shuffled = "{% for m in messages | reverse %}{{ '<u>' + m.content }}{% endfor %}"
    found = rejected(
        chat(("u", "hi"), ("a", "one")), encoder=encoder_of(bytes_tokenizer()), template=shuffled
    )
    assert found.reason is DropReason.MASK_UNKNOWN
    assert "assistant message 1" in found.detail
    assert "the job's chat template 'default'" in found.detail


def test_loss_on_all_supervises_every_token_but_the_first():
    encoder = encoder_of(words_tokenizer(WORDS))
    found = tokenized(
        chat(("u", "hi"), ("a", "one")), encoder=encoder, template=PLAIN_TEMPLATE, loss_on="all"
    )
    assert found.mask.tolist() == [False] + [True] * 5


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, MARKED_TEMPLATE])
def test_switched_off_turn_is_not_supervised(template):
    found = tokenized(
        chat(("u", "hi"), ("a", "one", {"loss": False}), ("u", "hi"), ("a", "two")),
        encoder=encoder_of(words_tokenizer(WORDS)),
        template=template,
    )
    assert found.mask.tolist() == [False] * 10 + [True] * 2


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


@pytest.mark.parametrize("answer", ["é🙂", "e\u0301🙂\u202f", "ｅé"])
@pytest.mark.parametrize("normalizer", [normalizers.NFC(), normalizers.NFKC(), normalizers.NFD()])
def test_composed_and_decomposed_text_is_supervised_whole(normalizer, answer):
    tokenizer = bytes_tokenizer()
    tokenizer.normalizer = normalizer
    encoder = encoder_of(tokenizer)
    found = tokenized(
        chat(("u", "e\u0301 é"), ("a", answer), ("u", "é")),
        encoder=encoder,
        template=MARKED_TEMPLATE,
    )
    learnt = encoder.decode(found.tokens[found.mask])
    assert learnt == normalizer.normalize_str(answer) + " <eot>"


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


def test_empty_thinking_is_kept_only_in_the_turn_whose_data_wrote_it():
    encoder = encoder_of(bytes_tokenizer())
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<a>' }}"
        "{% if m.reasoning_content %}{% generation %}{{ m.reasoning_content }}{% endgeneration %}"
        "{% endif %}{% if m.content %}{% generation %}"
        "{{ ('' if '<think>' in m.content else '<think></think>') + m.content }}"
        "{% endgeneration %}{% endif %}"
        "{% else %}{{ '<u>' + m.content }}{% endif %}{% endfor %}"
    )
    made = tokenized(
        chat(
            ("u", "hi"),
            ("a", "one", {"reasoning": "hm"}),
            ("u", "ok"),
            ("a", "<think></think>two"),
        ),
        encoder=encoder,
        template=template,
        empty_thinking="mask",
    )
    assert encoder.decode(made.tokens[made.mask]) == "hmone<think></think>two"


LOSSY = (
    ("u", "hi"),
    ("a", "", {"tool_calls": (call(), call("other"))}),
    ("t", "result"),
    ("a", "done", {"reasoning": "hm"}),
)


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        (
            PLAIN_TEMPLATE,
            "the tool call 'find' of message 1; the tool call 'other' of message 1; "
            "the reasoning of message 3.",
        ),
        (
            "{% for m in messages if m.role != 'tool' %}{{ m.role + m.content }}"
            "{% if m.tool_calls %}{{ m.tool_calls[0] | tojson }}{% endif %}"
            "{{ m.thinking or '' }}{% endfor %}",
            "the tool call 'other' of message 1; the tool result of message 2.",
        ),
    ],
)
def test_what_a_template_leaves_out_is_refused_by_name_or_kept_and_counted(template, lost):
    encoder = encoder_of(bytes_tokenizer())
    found = rejected(chat(*LOSSY), encoder=encoder, template=template, loss_on="all")
    assert found.reason is DropReason.LOSSY_FORMAT
    assert f"leaves out {lost}" in found.detail
    settings = TokenizeConfig(
        long_documents="drop", chat_template=template, loss_on="all", on_lossy="keep"
    )
    render = ChatTemplatePrompt(encoder=encoder, config=settings).render(chat(*LOSSY))
    assert "; ".join(render.losses) == lost.removesuffix(".")


def test_calls_and_results_written_as_escaped_json_are_no_loss():
    template = "{{ messages | tojson(ensure_ascii=True) | tojson(ensure_ascii=True) }}"
    turns = (*LOSSY[:2], ("t", 'é "x"\n'), *LOSSY[3:])
    made = tokenized(
        chat(*turns), encoder=encoder_of(bytes_tokenizer()), template=template, loss_on="all"
    )
    assert made.num_targets > 0


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '<a>' }}"
            "{% else %}{{ m.content }}{% if not loop.last %}{{ '</s>' }}{% endif %}{% endif %}"
            "{% endfor %}",
            "'</s>' follows it only when a turn follows",
        ),
        (
            "{{ 'USER: ' }}{% for m in messages %}{% if m.role == 'user' %}"
            "{{ m.content + ' ASSISTANT: ' }}{% else %}{{ m.content + '</s>USER: ' }}{% endif %}"
            "{% endfor %}",
            "'USER:' follows its last control token",
        ),
    ],
)
def test_derived_end_that_is_not_the_answers_end_is_refused(template, why):
    found = rejected(
        chat(("u", "hi"), ("a", "one"), ("u", "ok"), ("a", "two")),
        encoder=encoder_of(bytes_tokenizer(), special_tokens={"eos_token": "</s>"}),
        template=template,
    )
    assert found.reason is DropReason.MASK_UNKNOWN
    assert why in found.detail


TEXTS = st.text(alphabet="ab <>\n\té🙂\u202f", min_size=1, max_size=12).filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
def test_supervised_tokens_decode_to_the_answers_and_end_marks(pairs):
    encoder = encoder_of(bytes_tokenizer())
    turns = [turn for question, answer in pairs for turn in (("u", question), ("a", answer))]
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<a>' }}{% generation %}"
        "{{ m.content + '<eot>' }}{% endgeneration %}{% else %}{{ '<u>' + m.content + '<eot>' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
    )
    made = tokenized(chat(*turns), encoder=encoder, template=template)
    bare = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    derived = tokenized(chat(*turns), encoder=encoder, template=bare)
    expected = "".join(answer + "<eot>" for _, answer in pairs)
    assert encoder.decode(made.tokens[made.mask]) == expected
    assert derived.tokens.tolist() == made.tokens.tolist()
    assert derived.mask.tolist() == made.mask.tolist()
