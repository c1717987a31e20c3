"""What becomes of everything that real chat data has; docs/data.md has the same table in words."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from megapack.conversation.messages import Conversation, Role, document_id
from megapack.conversation.parse import parse_conversation
from megapack.conversation.rejection import RejectedError
from megapack.conversation.shapes import read_shape
from megapack.layout.runs import mask_of_runs
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.nasty_chats import ODD, conversations, records
from tests.support.tokenizing import run
from tests.support.toy_tokenizers import MARKED_TEMPLATE, SPECIALS, bytes_tokenizer, encoder_of

U = {"role": "user", "content": "hi"}
A = {"role": "assistant", "content": "ho"}
S = {"role": "system", "content": "kind"}
T = {"role": "tool", "content": "42"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [call()]}
NEMOTRON = ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", *SPECIALS)
BYTES = encoder_of(bytes_tokenizer(specials=NEMOTRON), template=MARKED_TEMPLATE)
FORMS = ("chat_template", "nemotron-h-aligned", "nemotron-nano-v2", "identity")
KEPT = "kept"


def outcome_of(record):
    """Roles and contents, or the reason and detail."""
    try:
        made = parse_conversation(read_shape(record))
    except RejectedError as rejection:
        return rejection.reason, rejection.detail
    return "".join(m.role.value[0] for m in made.messages), [m.content for m in made.messages]


def chat_of(*messages, **fields):
    return {"messages": list(messages), **fields}


@pytest.mark.parametrize(
    ("what", "record", "roles", "contents"),
    [
        ("several system messages", chat_of(S, S, U, A), "ssua", ["kind", "kind", "hi", "ho"]),
        ("mid-chat system", chat_of(U, A, S, U, A), "uasua", ["hi", "ho", "kind", "hi", "ho"]),
        ("developer", chat_of({**S, "role": "developer"}, U, A), "sua", ["kind", "hi", "ho"]),
        ("function", chat_of(U, CALLS, {**T, "role": "function"}, A), "uata",
         ["hi", "", "42", "ho"]),
        ("null content of a call", chat_of(U, CALLS, T, A), "uata", ["hi", "", "42", "ho"]),
        ("empty content of a call", chat_of(U, {**CALLS, "content": ""}), "ua", ["hi", ""]),
        ("blank content of a call", chat_of(U, {**CALLS, "content": " \n"}), "ua", ["hi", " \n"]),
        ("no content of a call", chat_of(U, {"role": "assistant", "tool_calls": [call()]}), "ua",
         ["hi", ""]),
        ("old style call", chat_of(U, {"role": "assistant", "content": None,
                                       "function_call": {"name": "f", "arguments": "{}"}}), "ua",
         ["hi", ""]),
        ("reasoning alone", chat_of(U, {"role": "assistant", "reasoning": "hm"}), "ua", ["hi", ""]),
        ("null user content", chat_of({"role": "user", "content": None}, A), "ua", ["", "ho"]),
        ("no user content, as Parquet leaves out null", chat_of({"role": "user"}, A), "ua",
         ["", "ho"]),
        ("blank user content", chat_of({"role": "user", "content": "  "}, A), "ua", ["  ", "ho"]),
        ("parts", chat_of({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, A),
         "ua", ["ab", "ho"]),
        ("user twice", chat_of(U, U, A), "uua", ["hi", "hi", "ho"]),
        ("assistant twice", chat_of(U, A, A), "uaa", ["hi", "ho", "ho"]),
        ("user last", chat_of(U, A, U), "uau", ["hi", "ho", "hi"]),
        ("result without a call", chat_of(U, A, T, A), "uata", ["hi", "ho", "42", "ho"]),
        ("unknown keys", chat_of({**U, "id": 3, "refusal": "x"}, A), "ua", ["hi", "ho"]),
        ("media keys that are empty", chat_of({**U, "images": []}, A), "ua", ["hi", "ho"]),
        ("role beside value", chat_of({"role": "user", "value": "hi"}, A), "ua", ["hi", "ho"]),
        ("from beside content", chat_of({"from": "human", "content": "hi"}, A), "ua",
         ["hi", "ho"]),
        ("sharegpt", {"conversations": [{"from": "human", "value": "hi"},
                                        {"from": "gpt", "value": "ho"}]}, "ua", ["hi", "ho"]),
        ("sharegpt call", {"conversations": [
            {"from": "system", "value": "kind"}, {"from": "human", "value": "hi"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
            {"from": "observation", "value": "42"}, {"from": "gpt", "value": "ho"}]}, "suata",
         ["kind", "hi", "", "42", "ho"]),
        ("alpaca", {"instruction": "hi", "input": "", "output": "ho"}, "ua", ["hi", "ho"]),
        ("alpaca with all", {"instruction": "sum", "input": "1 2", "output": "3", "system": "kind",
                             "history": [["a", "b"]]}, "suaua",
         ["kind", "a", "b", "sum\n1 2", "3"]),
    ],
)  # fmt: skip
def test_usable_record_becomes_these_messages(what, record, roles, contents):
    assert outcome_of(record) == (roles, contents), what


@pytest.mark.parametrize(
    ("what", "record", "reason", "words"),
    [
        ("blank answer", chat_of(U, {**A, "content": "  "}), DropReason.EMPTY, "message 1"),
        ("null answer", chat_of(U, {**A, "content": None}), DropReason.EMPTY, "message 1"),
        ("answer without content", chat_of(U, {"role": "assistant"}), DropReason.EMPTY,
         "message 1"),
        ("answer first", chat_of(A, U), DropReason.BAD_ROLE_ORDER, "message 0"),
        ("result first", chat_of(S, T, A), DropReason.BAD_ROLE_ORDER, "message 1"),
        ("result after a user", chat_of(U, T), DropReason.BAD_ROLE_ORDER, "message 1"),
        ("unknown role", chat_of(U, {**A, "role": "bot"}), DropReason.UNKNOWN_ROLE, "message 1"),
        ("no content", chat_of({"role": "user", "text": "hi"}, A), DropReason.UNKNOWN_SHAPE,
         "message 0: expected a content, found only 'text'"),
        ("answer without any", chat_of(U, {"role": "assistant", "text": "x"}),
         DropReason.UNKNOWN_SHAPE, "found only 'text'"),
        ("image part", chat_of({"role": "user", "content": [{"type": "image_url"}]}, A),
         DropReason.UNKNOWN_SHAPE, "'image_url'"),
        ("thinking part", chat_of(U, {**A, "content": [{"type": "thinking", "thinking": "x"}]}),
         DropReason.UNKNOWN_SHAPE, "'thinking'"),
        ("images", chat_of({**U, "images": ["x.png"]}, A), DropReason.UNKNOWN_SHAPE, "'images'"),
        ("two reasonings", chat_of(U, {**A, "reasoning": "a", "thinking": "b"}),
         DropReason.UNKNOWN_SHAPE, "expected one reasoning"),
        ("a user's reasoning", chat_of({**U, "reasoning": "a"}, A), DropReason.UNKNOWN_SHAPE,
         "found it in user"),
        ("two kinds of call", chat_of(U, {**CALLS, "function_call": {"name": "f"}}),
         DropReason.UNKNOWN_SHAPE, "either tool_calls or function_call"),
        ("a user's call", chat_of({**U, "tool_calls": [call()]}, A), DropReason.UNKNOWN_SHAPE,
         "found them in user"),
        ("fractional weight", chat_of(U, {**A, "weight": 0.5}), DropReason.UNKNOWN_SHAPE,
         "weight as 0, 1"),
        ("a user that trains", chat_of({**U, "train": True}, A), DropReason.UNKNOWN_SHAPE,
         "train switched on in assistant messages only"),
        ("switches that differ", chat_of(U, {**A, "loss": True, "train": False}),
         DropReason.UNKNOWN_SHAPE, "that agree"),
        ("two chats", {"messages": [U, A], "conversations": [U, A]}, DropReason.UNKNOWN_SHAPE,
         "turns under 'messages' and 'conversations'"),
        ("chat and alpaca", chat_of(U, A, instruction="x", output="y"), DropReason.UNKNOWN_SHAPE,
         "turns under 'messages' and 'instruction'"),
        ("two texts", chat_of({**U, "value": "other"}, A), DropReason.UNKNOWN_SHAPE,
         "'content' and 'value' that differ"),
        ("two names", chat_of({**U, "from": "gpt"}, A), DropReason.UNKNOWN_SHAPE,
         "'role' and 'from' that differ"),
        ("two system texts", chat_of(S, U, A, system="other"), DropReason.UNKNOWN_SHAPE,
         "of another text"),
    ],
)  # fmt: skip
def test_record_that_would_be_half_read_is_dropped_with_its_reason(what, record, reason, words):
    found = outcome_of(record)
    assert found[0] is reason, what
    assert words in found[1]


def test_alpaca_keeps_tools_and_template_values():
    record = {"instruction": "hi", "output": "ho", "tools": [{"name": "f"}]}
    made = parse_conversation(read_shape(record | {"chat_template_kwargs": {"mode": 1}}))
    assert made.tools == ({"name": "f"},)
    assert dict(made.template_kwargs) == {"mode": 1}


def test_sharegpt_and_openai_words_give_identical_ids_and_masks():
    shapes = [
        {"conversations": [{"from": "human", "value": "é"}, {"from": "gpt", "value": "🙂"}]},
        chat_of({"role": "user", "content": "é"}, {"role": "assistant", "content": "🙂"}),
    ]
    outcome = run([parse_conversation(read_shape(shape)) for shape in shapes], encoder=BYTES)
    one, other = outcome.documents
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.target_runs.tolist() == other.target_runs.tolist()
    assert one.num_target_tokens == 6
    assert one.document_id == other.document_id


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ((("u", "x"), ("u", "y"), ("a", "z")), (KEPT, "lossy_format", KEPT, KEPT)),
        ((("u", "x"), ("a", "y"), ("a", "z")), (KEPT, "bad_role_order", "bad_role_order", KEPT)),
        ((("s", "x"), ("s", "y"), ("u", "x"), ("a", "z")), (KEPT, KEPT, KEPT, KEPT)),
        ((("u", "x"), ("a", "y"), ("s", "x"), ("u", "x"), ("a", "z")), (KEPT, KEPT, KEPT, KEPT)),
        ((("u", "x"), ("s", "x"), ("u", "x"), ("a", "z")), (KEPT, "lossy_format", KEPT, KEPT)),
        ((("u", "x"), ("a", "y"), ("t", "r"), ("a", "z")),
         (KEPT, "lossy_format", "lossy_format", KEPT)),
        ((("u", "x"), ("a", "y"), ("u", "z")), (KEPT, KEPT, KEPT, KEPT)),
        ((("u", "x"), ("a", "y", {"reasoning": "hm"})), ("lossy_format",) * 4),
        ((("u", ""), ("a", "yes")), (KEPT, KEPT, KEPT, KEPT)),
        ((("u", "x"),), ("nothing_supervised",) * 4),
    ],
)  # fmt: skip
def test_each_format_says_what_becomes_of_odd_orders(turns, expected):
    found = []
    for form in FORMS:
        outcome = run([chat(*turns)], encoder=BYTES, form=form)
        assert outcome.counts.conversations == outcome.counts.kept + len(outcome.drops) == 1
        found.append(KEPT if outcome.documents else outcome.drops[0].reason.value)
    assert tuple(found) == expected


@pytest.mark.parametrize("odd", ODD, ids=ascii)
@pytest.mark.parametrize("form", FORMS)
def test_odd_unicode_comes_through_and_is_supervised_whole(form, odd):
    answer = f"a{odd}b"
    conversation = parse_conversation(read_shape(chat_of(U, {**A, "content": answer})))
    assert Conversation.loads(conversation.dumps()) == conversation
    (document,) = run([conversation], encoder=BYTES, form=form).documents
    assert BYTES.decode(
        document.tokens[mask_of_runs(document.target_runs, document.num_tokens)]
    ).startswith(answer)


@pytest.mark.parametrize("mark", ["\ufdd0", "\ufdd1", "\ufdd2"])
def test_the_three_noncharacters_that_mark_spans_are_refused_by_templates_alone(mark):
    conversation = chat(("u", "x"), ("a", f"a{mark}b"))
    found = [run([conversation], encoder=BYTES, form=form).drops for form in FORMS]
    assert [[drop.reason.value for drop in drops] for drops in found] == [
        ["mask_unknown"], [], [], []
    ]  # fmt: skip


def test_private_characters_beside_a_typed_control_token_are_refused():
    for form in FORMS:
        (drop,) = run([chat(("u", "<eot>"), ("a", "\U000f0000"))], encoder=BYTES, form=form).drops
        assert drop.reason is DropReason.LOSSY_FORMAT
        assert run([chat(("u", "x"), ("a", "\U000f0000"))], encoder=BYTES, form=form).documents


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(record=records())
def test_any_record_is_read_or_rejected_and_reads_again_the_same(record):
    try:
        made = parse_conversation(read_shape(record))
    except RejectedError as rejection:
        assert rejection.detail  # noqa: PT017 - either outcome is right
        return
    assert made.messages
    again = parse_conversation(read_shape(json.loads(made.dumps())))
    assert again == made
    assert Conversation.loads(made.dumps()) == made


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(conversation=conversations())
def test_every_nasty_chat_is_a_document_or_a_counted_drop_in_every_format(conversation):
    for form in FORMS:
        outcome = run([conversation], encoder=BYTES, form=form)
        assert len(outcome.documents) + len(outcome.drops) == 1
        for document in outcome.documents:
            assert document.document_id == document_id(conversation.dumps())
            assert document.num_target_tokens > 0


def test_the_table_in_the_documentation_names_these_cases():
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    table = page.partition("## What becomes of")[2].partition("\n## ")[0]
    for word in (
        "developer",
        "function_call",
        "reasoning",
        "weight",
        "surrogate",
        "U+FDD0",
        "null",
    ):
        assert word in table
    assert Role.TOOL.value in table
