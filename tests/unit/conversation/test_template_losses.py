import pytest

from megapack.conversation.chat_template import ChatTemplatePrompt
from megapack.conversation.config import TokenizeConfig
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.templating import rejected, tokenized
from tests.support.toy_tokenizers import (
    PLAIN_TEMPLATE,
    bytes_tokenizer,
    encoder_of,
)

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


ONE_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ '<sys>' + messages[0].content }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}{{ m.role + m.content }}{% endfor %}"
)
CALL_OR_CONTENT = (
    "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}"
    "{% else %}{{ m.role + m.content }}{% endif %}{% endfor %}"
)
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.role + m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "turns", "lost"),
    [
        (NO_SYSTEM, [("s", "Be brief"), ("u", "q"), ("a", "x")], "the system text of message 0"),
        (
            ONE_SYSTEM,
            [("s", "Be brief"), ("s", "Be kind"), ("u", "q"), ("a", "x")],
            "the system text of message 1",
        ),
        (
            ONE_SYSTEM,
            [("s", "Be brief"), ("u", "q"), ("a", "x"), ("s", "Be brief"), ("u", "q"), ("a", "x")],
            "the system text of message 3",
        ),
        (
            CALL_OR_CONTENT,
            [("u", "q"), ("a", "I look it up", {"tool_calls": (call(),)}), ("t", "r"), ("a", "x")],
            "the content of message 1",
        ),
    ],
)
def test_messages_that_a_template_leaves_out_are_a_loss(template, turns, lost):
    encoder = encoder_of(bytes_tokenizer())
    found = rejected(chat(*turns), encoder=encoder, template=template, loss_on="all")
    assert found.reason is DropReason.LOSSY_FORMAT
    assert f"leaves out {lost}. Use" in found.detail


def test_system_messages_that_a_template_rewrites_or_moves_are_no_loss():
    encoder = encoder_of(bytes_tokenizer())
    turns = [("s", 'Say "é"\n now'), ("u", "q"), ("a", "x")]
    for template in (
        "{{ messages | tojson(ensure_ascii=True) }}",
        "{% for m in messages[1:] %}{{ m.content }}{% endfor %}{{ messages[0].content | upper }}",
    ):
        made = tokenized(chat(*turns), encoder=encoder, template=template, loss_on="all")
        assert made.num_targets > 0
