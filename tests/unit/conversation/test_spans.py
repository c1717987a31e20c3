from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from megapack.conversation.control import ControlTokens
from megapack.conversation.rejection import RejectedError
from megapack.conversation.spans import SpanFinder
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.nasty_chats import conversations
from tests.support.templating import (
    STYLES,
    THINKER,
    bare,
    byte_encoder,
    learnt,
    rejected,
    tokenized,
)
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    bytes_tokenizer,
    encoder_of,
    words_tokenizer,
)

WORDS = "hi one two three ok be kind"


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


THINKING = (
    "{% set last = namespace(i=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.i = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<a>' }}"
    "{% if loop.index0 > last.i %}{{ '<think>' + (m.reasoning_content or '') + '</think>' }}"
    "{% endif %}{{ m.content + '<eot>\n' }}"
    "{% else %}{{ '<u>' + m.content + '<eot>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


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


def test_template_whose_spans_cannot_be_derived_is_refused_by_name():
    shuffled = "{% for m in messages | reverse %}{{ '<u>' + m.content }}{% endfor %}"
    found = rejected(
        chat(("u", "hi"), ("a", "one")), encoder=encoder_of(bytes_tokenizer()), template=shuffled
    )
    assert found.reason is DropReason.MASK_UNKNOWN
    assert "assistant message 1" in found.detail
    assert "the job's chat template 'default'" in found.detail


@pytest.mark.parametrize("answer", ["é🙂", "e\u0301🙂\u202f", "ｅé", "🙂 ok\u202f…"])
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


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (
            "{{ 'Be kind.\n### USER:' }}{% for m in messages %}{{ m.content }}"
            "{{ '\n### BOT:' if m.role == 'user' else '\n### USER:' }}{% endfor %}",
            "it ends with '### USER:', the header of the next turn",
        ),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '<a>' }}"
            "{% else %}{{ m.content + '</s>NEXT' }}{% endif %}{% endfor %}",
            "'NEXT' follows its last control token",
        ),
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
            "it ends with 'USER:', the header of the next turn",
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


AGENT = chat(
    ("s", "kind"),
    ("u", "find"),
    ("a", "", {"reasoning": "hm", "tool_calls": (call(), call("other"))}),
    ("t", "r"),
    ("a", "", {"tool_calls": (call(),)}),
    ("t", "q <think>"),
    ("a", "done", {"reasoning": "so"}),
    ("u", "and"),
    ("a", "", {"tool_calls": (call(),)}),
    ("t", "r"),
    ("a", "fine", {"reasoning": "yes"}),
)


@pytest.mark.parametrize("style", ["thinker", "caller", "chatml", "headers"])
def test_spans_derived_over_tool_chains_equal_the_marked_ones(style):
    encoder, template = byte_encoder(), STYLES[style]
    marked, derived = (
        tokenized(AGENT, encoder=encoder, template=text, on_lossy="keep")
        for text in (template, bare(template))
    )
    assert marked.num_targets > 0
    assert derived.tokens.tolist() == marked.tokens.tolist()
    assert derived.mask.tolist() == marked.mask.tolist()


@pytest.mark.parametrize(
    "check",
    [
        "messages[0].role != 'system'",
        "messages | selectattr('role', 'equalto', 'user') | list | length == 0",
        "tools and messages[-1].role == 'system'",
    ],
)
@pytest.mark.parametrize("marks", [str, bare])
def test_template_that_refuses_single_messages_is_no_obstacle(check, marks):
    encoder = byte_encoder()
    template = f"{{% if {check} %}}{{{{ raise_exception('no such chat') }}}}{{% endif %}}" + THINKER
    conversation = replace(AGENT, tools=({"type": "function", "function": {"name": "find"}},))
    made, plain = (
        tokenized(conversation, encoder=encoder, template=marks(text))
        for text in (template, THINKER)
    )
    assert made.tokens.tolist() == plain.tokens.tolist()
    assert made.mask.tolist() == plain.mask.tolist()
    assert sum(found.startswith("<tool_call>") for found in
               learnt(conversation, encoder=encoder, template=marks(template))) == 3  # fmt: skip


@pytest.mark.parametrize("style", ["thinker", "caller", "chatml", "headers"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(conversation=conversations())
def test_spans_derived_from_nasty_chats_equal_the_marked_ones_or_are_refused(style, conversation):
    encoder, found = byte_encoder(), []
    for template in (STYLES[style], bare(STYLES[style])):
        try:
            found.append(
                tokenized(conversation, encoder=encoder, template=template, on_lossy="keep")
            )
        except RejectedError as rejection:
            known = (DropReason.MASK_UNKNOWN, DropReason.TEMPLATE_ERROR)
            assert rejection.reason in known  # noqa: PT017 - either outcome is right
    if len(found) == 2:
        marked, derived = found
        assert derived.tokens.tolist() == marked.tokens.tolist()
        assert derived.mask.tolist() == marked.mask.tolist()


def test_each_distinct_prefix_is_rendered_once():
    turns = [turn for i in range(6) for turn in (("u", f"q{i}"), ("a", f"a{i}"))]
    messages = [message.for_template() for message in chat(*turns).messages]
    renders = []

    def render(shown, prompted):
        renders.append((len(shown), prompted))
        text = "".join(f"<{m['role'][0]}>{m['content']}<eot>" for m in shown)
        return text + ("<a>" if prompted else "")

    whole = render(messages, prompted=False)
    finder = SpanFinder(
        messages=messages,
        whole=whole,
        render=render,
        control=ControlTokens(["<eot>"]),
        template="toy",
    )
    assert [whole[a:b] for a, b in finder.spans(range(1, 12, 2)).values()] == [
        f"a{i}<eot>" for i in range(6)
    ]
    prefixes = [key for key in renders[1:] if key != (2, False)]
    assert len(prefixes) == len(set(prefixes))
    assert (12, False) not in prefixes
    assert len(renders) <= 1 + 1 + 3 * 6
    before = len(renders)
    assert list(finder.spans([11])) == [11]
    assert len(renders) - before <= 2
