"""Rows as `.jsonl.packed`: the conversations of a row in one record, for loaders that tokenize.

Such a loader cuts a record at every system message and tokenizes what it gets, so this is refused
wherever it would come to other rows than these: a conversation without a system message to cut at
(one a row may lack it, and is written first), one with a second system message, documents that are
pieces or stumps of a conversation, switches and tools that a record cannot carry, and formats or
supervision that the loaders do not have.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from megapack.conversation.config import LossOn, PromptFormat
from megapack.conversation.messages import Conversation, Role
from megapack.errors import ConfigError, DataError
from megapack.records.packed_row import PackedRow
from megapack.steps.exports.conversations import ConversationLookup, source_tables
from megapack.steps.exports.formats import ExportedFile
from megapack.store.committed import Committed

_LOSS = {
    PromptFormat.NEMOTRON_H_ALIGNED: LossOn.ASSISTANT,
    PromptFormat.NEMOTRON_NANO_V2: LossOn.ASSISTANT,
    PromptFormat.IDENTITY: LossOn.ALL,
}
_NOT_WHOLE = {
    "split_conversations": "pieces of split conversations",
    "truncated_documents": "truncated documents",
    "typed_control_documents": "control tokens typed by people, which the loader would obey",
}
_CUT = "last labels that the loader cuts off: the document fills the row and one token more"
_ELSE = "Export to bridge or hf, which hold the tokens themselves."


class PackedJsonlExporter:
    """Writes `.jsonl.packed` for NeMo-RL and Megatron-LM."""

    suffix = ".jsonl.packed"

    def __init__(self, dataset: Committed) -> None:
        """Check that a loader would come to the same rows.

        Raises:
            ConfigError: it would not; the message says why.
            StoreError: the store failed.
        """
        form = dataset.manifest.packed_info().format
        _check_settings(form, dataset.manifest.settings)
        tables = source_tables(dataset)
        for table in tables:
            for name, what in _NOT_WHOLE.items():
                if table.manifest.counts.get(name):
                    raise _refused(f"{table.manifest.counts[name]} {what}")
        self._lookup = ConversationLookup(tables)

    def file(self, rows: Sequence[PackedRow]) -> ExportedFile:
        """Rows as one file, a line each.

        Raises:
            DataError: a conversation is gone, or cannot stand in a merged record.
        """
        found = self._lookup.find(name for row in rows for name in row.document_ids)
        lines = [json.dumps(_record(row, found), ensure_ascii=False) + "\n" for row in rows]
        cut = Counter({_CUT: sum(row.final_label is not None for row in rows)})
        return ExportedFile(data="".join(lines).encode(), notes=+cut)


def _check_settings(form: str, settings: Mapping[str, Any]) -> None:
    """Refuse what the loaders cannot be told.

    Raises:
        ConfigError: another format or another supervision than theirs.
    """
    if form not in _LOSS:
        raise _refused(
            f"format {form!r}; the loaders know only {', '.join(known.value for known in _LOSS)}"
        )
    loss_on = settings.get("tokenize", {}).get("loss_on")
    expected = _LOSS[PromptFormat(form)]
    if loss_on != expected.value:
        raise _refused(
            f"loss_on = {loss_on}; under format {form} the loaders have only {expected.value}"
        )


def _record(row: PackedRow, found: Mapping[str, Conversation]) -> dict[str, Any]:
    conversations = []
    for name in row.document_ids:
        if name not in found:
            raise DataError(
                f"document {name}: expected its conversation in the store's tables, found none. "
                f"{_ELSE}"
            )
        _check_mergeable(name, found[name])
        conversations.append(found[name])
    headless = [one for one in conversations if one.messages[0].role is not Role.SYSTEM]
    if len(headless) > 1:
        raise DataError(
            f"document {row.document_ids[conversations.index(headless[1])]}: expected a system "
            "message at its head, where a loader cuts a merged record; found none, and another "
            f"conversation of the row has none either. {_ELSE}"
        )
    headed = [one for one in conversations if one.messages[0].role is Role.SYSTEM]
    return {"messages": [m.as_json() for one in (*headless, *headed) for m in one.messages]}


def _check_mergeable(name: str, conversation: Conversation) -> None:
    """Refuse a conversation that would not come out of a merged record as it went in.

    Raises:
        DataError: the first reason found.
    """
    if any(message.role is Role.SYSTEM for message in conversation.messages[1:]):
        what = "a system message after the first message, where a loader would cut it"
    elif conversation.tools or conversation.template_kwargs:
        what = "tools or template values, which a merged record cannot keep apart"
    elif any(message.loss is not None for message in conversation.messages):
        what = "loss switches, which the loaders do not read"
    else:
        return
    raise DataError(f"document {name}: expected plain turns, found {what}. {_ELSE}")


def _refused(found: str) -> ConfigError:
    return ConfigError(
        "export to packed-jsonl: expected rows that a loader makes again from their "
        f"conversations, found {found}. {_ELSE}"
    )
