"""`StoredConversation` to and from frames of `megapack.conversations/1`."""

from collections.abc import Sequence

import polars as pl

from megapack.errors import ContractError
from megapack.records.stored_conversation import StoredConversation

CONVERSATIONS_SCHEMA_ID = "megapack.conversations/1"
CONVERSATIONS_SCHEMA = pl.Schema(
    {
        "document_id": pl.String(),
        "conversation": pl.String(),  # canonical JSON
        "format": pl.String(),
        "source": pl.String(),
        "uri": pl.String(),
        "line": pl.Int64(),
        "ordinal": pl.Int32(),  # number within its record
    }
)


def conversations_to_frame(conversations: Sequence[StoredConversation]) -> pl.DataFrame:
    """Conversations as a frame, one record each, in their order."""
    columns = {name: [getattr(one, name) for one in conversations] for name in CONVERSATIONS_SCHEMA}
    return pl.DataFrame(columns, schema=CONVERSATIONS_SCHEMA)


def frame_to_conversations(frame: pl.DataFrame, *, where: str) -> list[StoredConversation]:
    """Conversations of a frame, in its order.

    Args:
        frame: columns of `megapack.conversations/1`.
        where: file, for messages.

    Raises:
        ContractError: the columns are not those of the schema.
    """
    if frame.schema != CONVERSATIONS_SCHEMA:
        raise ContractError(
            f"{where}: expected columns {dict(CONVERSATIONS_SCHEMA)}, found {dict(frame.schema)}."
        )
    return [StoredConversation(**record) for record in frame.iter_rows(named=True)]
