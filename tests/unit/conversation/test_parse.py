import pytest

from megapack.conversation.messages import Conversation, Role, document_id
from megapack.conversation.parse import parse_conversation
from megapack.conversation.rejection import RejectedError
from megapack.conversation.shapes import read_shape
from megapack.records.drops import DropReason

U = {"role": "user", "content": "hi"}
A = {"role": "assistant", "content": "ho"}
S = {"role": "system", "content": "be kind"}
T = {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "find"}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}


def parse(record):
    return parse_conversation(read_shape(record))


def rejected(record):
    with pytest.raises(RejectedError) as caught:
        parse(record)
    return caught.value


def test_openai_sharegpt_and_alpaca_give_one_conversation_for_the_same_chat():
    shapes = [
        {"messages": [S, U, A]},
        {"conversations": [S, U, A]},
        {
            "conversations": [
                {"from": "system", "value": "be kind"},
                {"from": "human", "value": "hi"},
                {"from": "gpt", "value": "ho"},
            ]
        },
        {"system": "be kind", "conversations": [{"from": "user", "value": "hi"}, A]},
        {"instruction": "hi", "input": "", "output": "ho", "system": "be kind"},
        {"messages": [{"content": "be kind", "role": "developer"}, U, {**A, "refusal": None}]},
        {"messages": [S, {"role": "user", "content": [{"type": "text", "text": "hi"}]}, A]},
    ]
    texts = {parse(shape).dumps() for shape in shapes}
    assert texts == {
        '{"messages":[{"role":"system","content":"be kind"},'
        '{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}'
    }


def test_alpaca_joins_input_and_history():
    made = parse(
        {"instruction": "sum", "input": "1 2", "output": "3", "history": [["hello", "hi there"]]}
    )
    assert [(m.role.value, m.content) for m in made.messages] == [
        ("user", "hello"),
        ("assistant", "hi there"),
        ("user", "sum\n1 2"),
        ("assistant", "3"),
    ]


def test_sharegpt_calls_and_observations_become_tool_turns():
    made = parse(
        {
            "conversations": [
                {"from": "human", "value": "find"},
                {"from": "function_call", "value": '{"name": "find", "arguments": {"q": 1}}'},
                {"from": "observation", "value": "42"},
                {"from": "gpt", "value": "it is 42"},
            ],
            "tools": '[{"name": "find"}]',
        }
    )
    assert [m.role for m in made.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert made.messages[1].tool_calls[0]["function"] == {"name": "find", "arguments": {"q": 1}}
    assert made.tools == ({"name": "find"},)


@pytest.mark.parametrize("content", [None, "", "absent"])
def test_null_content_beside_calls_is_kept_and_equals_empty(content):
    turn = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    if content == "absent":
        del turn["content"]
    made = parse({"messages": [U, turn, T, A]})
    assert made.messages[1].content == ""
    assert made.messages[1].tool_calls == (CALL,)
    assert document_id(made.dumps()) == document_id(
        parse(
            {"messages": [U, {"role": "assistant", "content": "", "tool_calls": [CALL]}, T, A]}
        ).dumps()
    )


@pytest.mark.parametrize("content", ["", "   ", "\n\t", None])
def test_blank_assistant_turn_without_calls_is_empty(content):
    found = rejected({"messages": [U, {"role": "assistant", "content": content}]})
    assert found.reason is DropReason.EMPTY
    assert "assistant message 1" in found.detail


@pytest.mark.parametrize(
    ("record", "reason", "words"),
    [
        ({"messages": []}, DropReason.EMPTY, "found none"),
        ({"messages": [A, U]}, DropReason.BAD_ROLE_ORDER, "assistant at message 0"),
        ({"messages": [S, A]}, DropReason.BAD_ROLE_ORDER, "assistant at message 1"),
        ({"messages": [S, S, T]}, DropReason.BAD_ROLE_ORDER, "tool at message 2"),
        ({"messages": [U, T]}, DropReason.BAD_ROLE_ORDER, "tool message 1"),
        (
            {"messages": [U, {"role": "bot", "content": "x"}]},
            DropReason.UNKNOWN_ROLE,
            "message 1, found 'bot'",
        ),
        ({"messages": [U, {"content": "x"}]}, DropReason.UNKNOWN_ROLE, "message 1, found None"),
        ({"messages": "hi"}, DropReason.UNKNOWN_SHAPE, "'messages' with a str"),
        ({"messages": [U, "hi"]}, DropReason.UNKNOWN_SHAPE, "message 1: expected an object"),
        ({"text": "x", "b": 1}, DropReason.UNKNOWN_SHAPE, "found keys 'b', 'text'"),
        ("text", DropReason.UNKNOWN_SHAPE, "found a str"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            DropReason.UNKNOWN_SHAPE,
            "'image_url'",
        ),
        ({"messages": [{"role": "user", "content": 3}]}, DropReason.UNKNOWN_SHAPE, "found int"),
        (
            {"messages": [U, {**A, "tool_calls": [{"function": {}}]}]},
            DropReason.UNKNOWN_SHAPE,
            "function name",
        ),
        ({"messages": [{**U, "tool_calls": [CALL]}]}, DropReason.UNKNOWN_SHAPE, "found them in"),
        ({"messages": [U, {**A, "weight": 2}]}, DropReason.UNKNOWN_SHAPE, "weight as 0, 1"),
        ({"messages": [{**U, "train": True}]}, DropReason.UNKNOWN_SHAPE, "train switched on"),
        ({"messages": [U, A], "tools": "{"}, DropReason.UNKNOWN_SHAPE, "no JSON"),
    ],
)
def test_unusable_record_is_rejected_with_its_reason_and_place(record, reason, words):
    found = rejected(record)
    assert found.reason is reason
    assert words in found.detail


@pytest.mark.parametrize("messages", [[U, U, A], [U, A, A], [S, S, U, A], [U, A, S, U, A], [U]])
def test_repeated_roles_and_mid_chat_system_are_left_to_the_format(messages):
    assert len(parse({"messages": messages}).messages) == len(messages)


def test_loss_switches_of_the_data_are_read_and_part_of_the_id():
    texts = set()
    for extra in ({}, {"loss": False}, {"weight": 1}):
        made = parse({"messages": [U, {**A, **extra}]})
        texts.add(document_id(made.dumps()))
    assert len(texts) == 3
    assert (
        parse({"messages": [{**U, "weight": 0}, {**A, "train": False}]}).messages[1].loss is False
    )


def test_reasoning_is_read_under_each_of_its_names():
    for name in ("reasoning_content", "reasoning", "thinking"):
        made = parse({"messages": [U, {**A, name: "hm"}]})
        assert made.messages[1].reasoning == "hm"
        assert made.messages[1].for_template()["reasoning_content"] == "hm"


def test_canonical_text_round_trips_and_keeps_what_people_ordered():
    tool = {"z": 1, "a": {"é": [1, None]}}
    made = parse(
        {
            "messages": [
                S,
                U,
                {"role": "assistant", "reasoning": "hm", "tool_calls": [CALL]},
                T,
                A,
            ],
            "tools": [tool],
            "chat_template_kwargs": {"enable_thinking": False},
        }
    )
    again = Conversation.loads(made.dumps())
    assert again == made
    assert again.dumps() == made.dumps()
    assert '{"z":1,"a":{"é":[1,null]}}' in made.dumps()


def test_document_id_is_literal_and_differs_by_piece():
    text = parse({"messages": [U, A]}).dumps()
    assert [document_id(text), document_id(text, piece=1)] == [
        "7812e2bd73fd523997b8a7191d4e3182",
        "7812e2bd73fd5239e9a42e36ac6ae4c4",
    ]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"instruction": "a", "output": "b", "input": {"x": 1}}, "'input' with a dict, not text"),
        ({"instruction": "a", "output": "b", "system": 1}, "'system' with a int, not text"),
        ({"instruction": "a", "output": "b", "history": 5}, "'history' with a int, not a list"),
        ({"instruction": "a", "output": "b", "history": True}, "'history' with a bool"),
        ({"system": ["x"], "messages": [U, A]}, "'system' with a list, not text"),
        ({"system": "be brief", "messages": [S, U, A]}, "first system message of another text"),
        ({"messages": [U, A], "tools": "[" + "1" * 5000 + "]"}, "text that is no JSON"),
        ({"messages": [U, {**A, "loss": True, "weight": 0}]}, "loss switches that agree"),
    ],
)
def test_what_would_be_half_read_is_refused(record, words):
    found = rejected(record)
    assert found.reason is DropReason.UNKNOWN_SHAPE
    assert words in found.detail


def test_system_said_twice_in_the_same_words_is_said_once():
    made = parse({"system": "be kind", "messages": [S, U, A]})
    assert made == parse({"messages": [S, U, A]})


def test_empty_reasoning_gives_way_to_thinking():
    made = parse({"messages": [U, {**A, "reasoning_content": "", "thinking": "hm"}]})
    assert made.messages[1].reasoning == "hm"
