"""A teacher's payload beside the documents that are shown: found, checked, and as text."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from megapack.conversation.token_text import TokenTexts
from megapack.errors import ConfigError
from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.runs import Int32
from megapack.records.document import labels_digest
from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.steps.inspect.opinion import Opinion, TeacherView
from megapack.steps.inspect.shown import Group, ShownDocument
from megapack.store.payload_reader import PayloadDataset

_NAMED = 3


def with_teacher(groups: Iterable[Group], payloads: PayloadDataset) -> Iterator[Group]:
    """The groups, each document with what the teacher says of it; all are read first.

    Raises:
        ConfigError: the payload has no top-k, holds none of the documents, or was made from other
            tokens or labels of one of them.
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    held = list(groups)
    wanted = [document.document_id for group in held for document in group.documents]
    found = payloads.fetch(wanted, PayloadKind.TOPK)
    where = f"{payloads.committed.uri} version {payloads.committed.version}"
    if wanted and not found:
        raise ConfigError(
            f"{where}: expected the teacher's payload of document {', '.join(wanted[:_NAMED])}, "
            "found none. Name the payload that was extracted from this dataset, or another "
            "document."
        )
    for group in held:
        documents = tuple(_joined(one, found, where=where) for one in group.documents)
        yield replace(group, documents=documents)


def teacher_fact(payloads: PayloadDataset) -> str:
    """One line on whose opinions are shown and how to read them.

    Raises:
        ConfigError: the payload has no top-k.
    """
    kind, version = payloads.info.of(PayloadKind.TOPK), payloads.committed
    return (
        f"teacher {version.uri} version {version.version}, top-{kind.width} at temperature "
        f"{payloads.info.temperature:g}: after each token its probability | the likeliest tokens "
        "in its place | all other tokens"
    )


def opinion_text(opinion: Opinion, texts: TokenTexts | None) -> str:
    """Probability of the token itself, the likeliest tokens, and the rest, in one line."""
    own = "not in top-k" if opinion.probability is None else _percent(opinion.probability)
    others = "  ".join(
        f"{word_of(token, texts)} {_percent(probability)}"
        for token, probability in opinion.alternatives
    )
    return f"{own} | {others} | rest {_percent(opinion.rest)}"


def word_of(token: int, texts: TokenTexts | None) -> str:
    """One token in quotes, with what would break the line written out; its id without texts."""
    if texts is None:
        return str(token)
    text = "".join(piece.text for piece in texts.pieces([token]))
    return '"' + text.replace("\n", "↵").replace("\t", "⇥") + '"'


def _percent(probability: float) -> str:
    return f"{probability:.2%}"


def _joined(
    document: ShownDocument, found: dict[str, TeacherPayload], *, where: str
) -> ShownDocument:
    payload = found.get(document.document_id)
    if payload is None:
        return document
    positions = document.tokens.size - document.label_only
    labels = labels_of(document, positions)
    if (positions, labels_digest(document.tokens[:positions], labels)) != (
        payload.num_positions,
        payload.labels_digest,
    ):
        raise ConfigError(
            f"{where}: document {document.document_id}: expected a payload of its {positions} "
            f"positions with these tokens and labels, found one of {payload.num_positions} "
            "positions with others. It was extracted from another version of the data: extract "
            "from this one, or inspect that one."
        )
    return replace(document, teacher=TeacherView(payload=payload))


def labels_of(document: ShownDocument, positions: int) -> Int32:
    """int32 [positions], target-aligned: the next token where it is trained, else -100."""
    labels = np.full(positions, IGNORE_INDEX, dtype=np.int32)
    following = document.tokens[1 : positions + 1]
    trained = document.trained[1 : positions + 1]
    labels[: following.size][trained] = following[trained]
    return labels
