"""Faults of `.jsonl.packed` records, as the loader that tokenizes them would meet them."""

import json

import pytest

from megapack.conversation.config import PromptFormat
from megapack.steps.foreign.audit import ForeignAudit, audit_foreign
from megapack.steps.foreign.faults import Fault
from tests.support.toy_dataset import nemotron_tokenizer
from tests.support.toy_tokenizers import bytes_tokenizer, save_tokenizer, words_tokenizer

NANO = PromptFormat.NEMOTRON_NANO_V2


def turns(*pairs):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names.get(role, role), "content": text} for role, text in pairs]


GOOD = turns(("s", "w1"), ("u", "w2"), ("a", "w3"))


def audited(tmp_path, *records, tokenizer=None, **changes):
    lines = [one if isinstance(one, str) else json.dumps({"messages": one}) for one in records]
    path = tmp_path / "rows.jsonl.packed"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {
        "uri": str(path),
        "tokenizer": tokenizer or nemotron_tokenizer(tmp_path),
        "format": NANO,
        "row_length": 4096,
    }
    return audit_foreign(ForeignAudit(**(settings | changes)))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ([*GOOD, *turns(("s", "w4"), ("u", "w5"), ("a", ""))], "conversation 1"),
        (turns(("s", "w1"), ("a", "w2"), ("u", "w3")), "bad_role_order"),
        (
            turns(("s", "w1"), ("u", "w2"), ("a", "w3"), ("t", "w4"), ("a", "w5")),
            "the tool result of message 3",
        ),
        (turns(("s", "w1"), ("u", "see https://x/think/y"), ("a", "w4")), "inside a word"),
        (turns(("s", "w1"), ("narrator", "w2"), ("a", "w4")), "unknown_role"),
        (turns(("s", "w1"), ("u", "w2")), "nothing_supervised"),
    ],
    ids=["empty answer", "answer first", "tool turn", "damaged url", "unknown role", "no answer"],
)
def test_a_conversation_that_the_loader_damages_or_refuses_is_found(tmp_path, record, says):
    report = audited(tmp_path, GOOD, record, GOOD)
    assert dict(report.counts) == {Fault.UNUSABLE_CONVERSATION: 1}
    assert report.violations[0].startswith("unusable_conversation rows.jsonl.packed row 1")
    assert says in report.violations[0]


def test_a_row_that_the_loader_cuts_is_found(tmp_path):
    """`<SPECIAL_10>System\\nw1\\n` and so on: a letter is a token: 11 + 9 + 16."""
    report = audited(tmp_path, GOOD, GOOD * 3, row_length=100)
    assert dict(report.counts) == {Fault.ROW_TOO_LONG: 1}
    assert "row 1" in report.violations[0]
    assert "expected at most 100 tokens over 3 conversations, found 108" in report.violations[0]
    assert not audited(tmp_path, GOOD * 3, row_length=108).counts


def test_a_learnt_token_that_equals_the_pad_token_is_found(tmp_path):
    """identity pads with <unk>, and a letter that the tokenizer lacks is <unk> too."""
    tokenizer = words_tokenizer("w1 w2 w3")
    folder = save_tokenizer(tokenizer, tmp_path / "tokenizer", pad_token="<pad>")
    record = turns(("s", "w1 "), ("u", "w2 "), ("a", "w3 unheard"))
    report = audited(tmp_path, record, tokenizer=folder, format=PromptFormat.IDENTITY)
    assert dict(report.counts) == {Fault.LOSS_LOST_BY_VALUE: 1}
    assert "the loader's pad id 1, found 1" in report.violations[0]


def test_control_tokens_that_the_tokenizer_lacks_are_found(tmp_path):
    folder = save_tokenizer(bytes_tokenizer(), tmp_path / "tokenizer")
    report = audited(tmp_path, GOOD, tokenizer=folder)
    assert dict(report.counts) == {Fault.UNUSABLE_CONVERSATION: 1}
    assert "missing_special_token" in report.violations[0]


def test_lines_that_cannot_be_read_and_other_shapes_are_found(tmp_path):
    report = audited(tmp_path, GOOD, "{ no json", json.dumps({"messages": "hello"}))
    assert dict(report.counts) == {Fault.UNREADABLE: 1, Fault.UNUSABLE_CONVERSATION: 1}
    assert report.num_rows == 3


def test_without_a_tokenizer_the_messages_alone_are_checked(tmp_path):
    path = tmp_path / "rows.jsonl.packed"
    path.write_text(json.dumps({"messages": turns(("s", "w1"), ("u", "w2"), ("a", ""))}) + "\n")
    report = audit_foreign(ForeignAudit(uri=str(path)))
    assert dict(report.counts) == {Fault.UNUSABLE_CONVERSATION: 1}
    assert any("--tokenizer" in what for what in report.unchecked)
