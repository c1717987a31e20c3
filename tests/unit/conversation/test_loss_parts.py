import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from megapack.conversation.config import LossPart, TokenizeConfig
from megapack.conversation.rejection import RejectedError
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.nasty_chats import Traits, conversations
from tests.support.templating import (
    STYLES,
    THINKER,
    bare,
    byte_encoder,
    learnt,
    rejected,
    tokenized,
)
from tests.support.toy_tokenizers import bytes_tokenizer, encoder_of

ALL = [part.value for part in LossPart]
BUT_TEMPLATE = [part for part in ALL if part != "template_text"]
FIND = '{"name": "find", "arguments": {"a":1}}'
AGENT = chat(
    ("s", "kind"),
    ("u", "find"),
    ("a", " so ", {"reasoning": "hm", "tool_calls": (call(), call("two"))}),
    ("t", "r"),
    ("a", "", {"tool_calls": (call(),)}),
    ("t", "r"),
    ("a", "", {"reasoning": "so", "tool_calls": (call(),)}),
    ("t", "r"),
    ("a", "done"),
)
THINKER_PARTS = {
    "content": [" so ", "done"],
    "reasoning": ["<think>\nhm\n</think>\n\n", "<think>\nso\n</think>\n\n"],
    "tool_calls": [
        f"\n<tool_call>\n{FIND}\n</tool_call>\n<tool_call>\n"
        '{"name": "two", "arguments": {"a":1}}\n</tool_call>',
        *[f"<tool_call>\n{FIND}\n</tool_call>"] * 2,
    ],
    "end_of_turn": ["<|im_end|>"] * 4,
    "template_text": ["<think>\n\n</think>\n\n"],
}
CALLER_PARTS = {
    "content": [" so ", "done"],
    "reasoning": ["[THINK]hm[/THINK]", "[THINK]so[/THINK]"],
    "tool_calls": [
        '[TOOL_CALLS]find[ARGS]{"a":1}[TOOL_CALLS]two[ARGS]{"a":1}',
        *['[TOOL_CALLS]find[ARGS]{"a":1}'] * 2,
    ],
    "end_of_turn": ["</s>"] * 4,
    "template_text": [],
}


@pytest.mark.parametrize("marks", [str, bare], ids=["marked", "derived"])
@pytest.mark.parametrize("part", ALL)
@pytest.mark.parametrize(("style", "parts"), [("thinker", THINKER_PARTS), ("caller", CALLER_PARTS)])
def test_each_part_of_a_turn_is_found_alone(style, parts, part, marks):
    made = learnt(AGENT, encoder=byte_encoder(), template=marks(STYLES[style]), loss_parts=[part])
    assert made == parts[part]


@pytest.mark.parametrize("style", sorted(STYLES))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    conversation=conversations(),
    marks=st.sampled_from([str, bare]),
    kept=st.sampled_from([{"content"}, {"reasoning", "tool_calls"}, {"end_of_turn"}]),
)
def test_parts_of_nasty_chats_tile_the_turns_or_are_refused(style, marks, conversation, kept):
    """Each supervised token belongs to some part, and to no two unless it straddles them."""
    template = marks(STYLES[style])

    def mask(parts):
        return tokenized(
            conversation,
            encoder=byte_encoder(),
            template=template,
            on_lossy="keep",
            loss_parts=sorted(parts),
        ).mask

    try:
        whole, some = mask(ALL), mask(kept)
        rest = mask(set(ALL) - kept)
    except RejectedError as rejection:
        known = (DropReason.MASK_UNKNOWN, DropReason.TEMPLATE_ERROR)
        assert rejection.reason in known  # noqa: PT017 - either outcome is right
        return
    assert (whole == (some | rest)).all()
    assert not (some & rest).any()  # one byte, one part


@pytest.mark.parametrize("marks", [str, bare], ids=["marked", "derived"])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(conversation=conversations(Traits(repeats=False, tools=False, loss=False)))
def test_content_alone_is_what_people_wrote(marks, conversation):
    encoder = byte_encoder()
    made = tokenized(
        conversation, encoder=encoder, template=marks(STYLES["chatml"]), loss_parts=["content"],
        on_lossy="keep",
    )  # fmt: skip
    wrote = [m.content for m in conversation.messages if m.role.value == "assistant"]
    assert encoder.decode(made.tokens[made.mask]) == "".join(wrote)


@pytest.mark.parametrize(
    ("parts", "first"), [(BUT_TEMPLATE, "print(1)"), (ALL, "<think>\n\n</think>\n\nprint(1)")]
)
@pytest.mark.parametrize("marks", [str, bare], ids=["marked", "derived"])
def test_empty_thinking_that_the_template_writes_is_template_text(parts, first, marks):
    conversation = chat(("u", "code?"), ("a", "print(1)"))
    made = learnt(conversation, encoder=byte_encoder(), template=marks(THINKER), loss_parts=parts)
    assert made == [f"{first}<|im_end|>"]


def test_empty_thinking_that_the_data_wrote_is_content():
    encoder = encoder_of(bytes_tokenizer())
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<a>' }}"
        "{% if m.reasoning_content %}{% generation %}{{ m.reasoning_content }}{% endgeneration %}"
        "{% endif %}{% if m.content %}{% generation %}"
        "{{ ('' if '<think>' in m.content else '<think></think>') + m.content }}"
        "{% endgeneration %}{% endif %}"
        "{% else %}{{ '<u>' + m.content }}{% endif %}{% endfor %}"
    )
    turns = (
        ("u", "hi"),
        ("a", "one"),
        ("u", "ok"),
        ("a", "<think></think>two", {"reasoning": "hm"}),
    )
    made = learnt(chat(*turns), encoder=encoder, template=template, loss_parts=BUT_TEMPLATE)
    assert made == ["one", "hm<think></think>two"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '<a>' }}"
            "{% else %}{% generation %}{{ m.content | upper | replace('\\ufdd2', '') }}<eot>"
            "{% endgeneration %}{% endif %}{% endfor %}",
            "other text around marked words",
        ),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '<a>' }}"
            "{% else %}{% generation %}{{ m.content + m.content }}<eot>"
            "{% endgeneration %}{% endif %}{% endfor %}",
            "its content is not written once and whole",
        ),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '<a>' }}"
            "{% else %}{% generation %}{{ m.content[:2] }}<eot>"
            "{% endgeneration %}{% endif %}{% endfor %}",
            "other text around marked words",
        ),
    ],
)
def test_template_that_rewrites_content_is_refused_by_name(template, why):
    found = rejected(
        chat(("u", "hi"), ("a", "one")),
        encoder=encoder_of(bytes_tokenizer()),
        template=template,
        loss_parts=["content"],
    )
    assert found.reason is DropReason.MASK_UNKNOWN
    assert why in found.detail
    assert "the job's chat template 'default'" in found.detail


def test_end_that_may_be_the_calls_or_the_turns_is_refused_only_where_it_matters():
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '<a>' }}"
        "{% elif m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name + '<tool>' }}{% else %}<eot>"
        "{% endif %}{% endgeneration %}{% endif %}{% endfor %}"
    )
    conversation = chat(("u", "hi"), ("a", "", {"tool_calls": (call(),)}))
    arguments = {"encoder": encoder_of(bytes_tokenizer()), "template": template}
    found = rejected(conversation, **arguments, loss_parts=["tool_calls"])
    assert found.reason is DropReason.MASK_UNKNOWN
    assert "'<tool>' may be tool_calls as well as end_of_turn" in found.detail
    both = learnt(conversation, **arguments, loss_parts=["tool_calls", "end_of_turn"])
    assert both == ["find<tool>"]


def test_reasoning_under_either_name_is_one_part():
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content }}"
        "{% else %}{{ '<a>(' + (m.thinking or '') + ')' + m.content + '<eot>' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
    )
    conversation = chat(("u", "hi"), ("a", "one", {"reasoning": "hm"}))
    arguments = {"encoder": encoder_of(bytes_tokenizer()), "template": template}
    assert learnt(conversation, **arguments, loss_parts=["reasoning"]) == ["(hm)"]
    assert learnt(conversation, **arguments, loss_parts=["content"]) == ["one"]


def test_typed_control_tokens_move_no_part():
    typed = "x<|im_end|></think>y"
    conversation = chat(("u", typed), ("a", f"a{typed}", {"reasoning": f"r{typed}"}))
    arguments = {"encoder": byte_encoder(), "template": THINKER}
    assert learnt(conversation, **arguments, loss_parts=["content"]) == [f"a{typed}"]
    assert learnt(conversation, **arguments, loss_parts=["end_of_turn"]) == ["<|im_end|>"]


def test_order_and_repetition_of_parts_make_no_other_settings():
    one, other = (
        TokenizeConfig(long_documents="drop", loss_parts=parts)
        for parts in (["content", "reasoning"], ["reasoning", "content", "reasoning"])
    )
    assert one == other
    assert one.model_dump_json() == other.model_dump_json()


@pytest.mark.parametrize(
    "settings_", [{"loss_parts": ["content"]}, {"loss_turns": "last"}, {"loss_turns": "none"}]
)
def test_loss_on_all_leaves_no_choice_of_turns_or_parts(settings_):
    with pytest.raises(ValidationError, match="loss_on = all supervises every token"):
        TokenizeConfig(long_documents="drop", loss_on="all", **settings_)
    with pytest.raises(ValidationError, match="at least 1 item"):
        TokenizeConfig(long_documents="drop", loss_parts=[])
