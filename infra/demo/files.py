"""How the demo's conversations become the bytes of each file.

The bytes depend on the conversations alone: gzip carries no time, JSON keys keep the order in which
they were made, and Parquet is one row group.
"""

import gzip
import io
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import polars as pl

from infra.demo.conversations import SEED, FilePlan, Shape
from infra.demo.flaws import Flaw
from infra.demo.talks import Conversation, size_of

_SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt"}
_MERGED_CHARACTERS = 2600
_MOST_MERGED = 6
_MESSAGES_TYPE = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
LINE_SHAPES = frozenset({Shape.MESSAGES, Shape.MESSAGES_GZIP, Shape.ALPACA})
"""Shapes whose files may hold flawed lines."""


def encode_file(
    plan: FilePlan, conversations: Sequence[Conversation], flawed: Sequence[tuple[Flaw, str]]
) -> tuple[bytes, int]:
    """Encode one file.

    Args:
        plan: Its name and shape.
        conversations: The good ones.
        flawed: Lines put between them; must be empty unless the shape is in `LINE_SHAPES`.

    Returns:
        The file's bytes and its number of records, flawed ones included.
    """
    if plan.shape is Shape.PARQUET:
        return _parquet(conversations), len(conversations)
    if plan.shape is Shape.SHAREGPT:
        rows = [_sharegpt(index, talk) for index, talk in enumerate(conversations)]
        return (json.dumps(rows, indent=1) + "\n").encode(), len(rows)
    records = _merged(conversations) if plan.shape is Shape.MERGED else []
    if plan.shape is Shape.ALPACA:
        records = [_alpaca(talk) for talk in conversations]
    elif not records:
        records = [_messages(talk) for talk in conversations]
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    rng = Random(f"{SEED}/{plan.name}/flaws")
    for _, line in flawed:
        lines.insert(rng.randint(0, len(lines)), line)
    data = "".join(f"{line}\n" for line in lines).encode()
    if plan.shape is Shape.MESSAGES_GZIP:
        data = gzip.compress(data, compresslevel=6, mtime=0)
    return data, len(lines)


def _messages(talk: Conversation) -> dict[str, Any]:
    record: dict[str, Any] = {"messages": list(talk.messages)}
    if talk.tools:
        record["tools"] = list(talk.tools)
    return record


def _merged(conversations: Sequence[Conversation]) -> list[dict[str, Any]]:
    """Put neighbouring conversations into one record while they fit about one row."""
    records: list[list[Any]] = []
    used = count = 0
    for talk in conversations:
        size = size_of(list(talk.messages))
        if not records or count == _MOST_MERGED or used + size > _MERGED_CHARACTERS:
            records.append([])
            used = count = 0
        records[-1].extend(talk.messages)
        used += size
        count += 1
    return [{"messages": messages} for messages in records]


def _sharegpt(index: int, talk: Conversation) -> dict[str, Any]:
    turns = [{"from": _SHAREGPT_ROLES[m["role"]], "value": m["content"]} for m in talk.messages]
    return {"id": f"demo_{index}", "conversations": turns}


def _alpaca(talk: Conversation) -> dict[str, Any]:
    *system, question, answer = talk.messages
    record = {"instruction": question["content"], "input": "", "output": answer["content"]}
    if system:
        record["system"] = system[0]["content"]
    return record


def _parquet(conversations: Sequence[Conversation]) -> bytes:
    frame = pl.DataFrame(
        {"messages": [list(talk.messages) for talk in conversations]},
        schema={"messages": _MESSAGES_TYPE},
    )
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", row_group_size=len(conversations) or 1)
    return buffer.getvalue()
