from hypothesis import given
from hypothesis import strategies as st

from megapack.conversation.shapes import RawConversation
from megapack.conversation.split import Merged, split_conversations

TURNS = st.lists(st.sampled_from(["system", "developer", "user", "assistant", "tool", "odd"]))


def raw(roles):
    return RawConversation(
        messages=tuple({"role": role, "content": str(i)} for i, role in enumerate(roles)),
        tools=({"name": "f"},),
    )


def roles_of(parts):
    return [[m["role"][0] for m in part.messages] for part in parts]


def test_merged_record_is_cut_at_each_system_message():
    roles = ["user", "assistant", "system", "user", "assistant", "system", "user", "assistant"]
    parts = split_conversations(raw(roles), merged=Merged.AT_SYSTEM_MESSAGES)
    assert roles_of(parts) == [["u", "a"], ["s", "u", "a"], ["s", "u", "a"]]
    assert all(part.tools == ({"name": "f"},) for part in parts)


def test_mid_chat_system_message_stays_in_a_plain_record():
    roles = ["system", "user", "assistant", "system", "user", "assistant"]
    assert roles_of(split_conversations(raw(roles), merged=Merged.NO)) == [list("suasua")]


@given(TURNS)
def test_parts_joined_are_the_record(roles):
    record = raw(roles)
    parts = split_conversations(record, merged=Merged.AT_SYSTEM_MESSAGES)
    assert [m for part in parts for m in part.messages] == list(record.messages)
    assert all(part.messages for part in parts) or not roles
