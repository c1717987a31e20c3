import polars as pl
import pytest

from megapack.errors import ContractError
from megapack.store.conversation_table import conversations_to_frame, frame_to_conversations
from tests.support.chats import chat, stored


def test_conversations_round_trip():
    made = [stored(chat(("u", f"é{i}"), ("a", "x")), line=i) for i in range(3)]
    assert frame_to_conversations(conversations_to_frame(made), where="x") == made
    assert frame_to_conversations(conversations_to_frame([]), where="x") == []


def test_other_columns_are_refused():
    with pytest.raises(ContractError, match="part x: expected columns"):
        frame_to_conversations(pl.DataFrame({"a": [1]}), where="part x")
