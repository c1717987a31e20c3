"""Payloads of given rows, committed: no torch, so the test process may import it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megapack.layout.token_fields import unplace
from megapack.records.document import labels_digest
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from megapack.records.refs import PayloadRef
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Part
from megapack.store.payload_parts import payload_counts, write_payload_parts
from megapack.store.schema import KindInfo, PayloadInfo, SchemaId
from megapack.store.versions import commit
from tests.support.rows import VOCAB

Values = dict[str, Any]
"""`values`, and for top-k `indices` and `tail_logprobs`, of one document."""


def documents_in(rows: Sequence[PackedRow]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(id, tokens, labels) of every document, in order; each id once."""
    seen = set()
    for row in rows:
        tokens, labels = unplace(row.tokens, row.layout), unplace(row.labels(), row.layout)
        for name, own, counted in zip(row.document_ids, tokens, labels, strict=True):
            if name not in seen:
                seen.add(name)
                yield name, own, counted


def random_topk(draw: np.random.Generator, m: int, k: int, vocab: int = VOCAB) -> Values:
    """The top-k of random distributions over a vocabulary, float32."""
    logits = draw.normal(size=(m, vocab)) * 2
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    order = np.argsort(-logprobs, axis=1, kind="stable")
    best = np.take_along_axis(logprobs, order, axis=1)
    with np.errstate(divide="ignore"):
        tail = np.log(np.exp(best[:, k:]).sum(1))
    return {
        "values": best[:, :k].astype("<f4"),
        "indices": order[:, :k].astype(np.int32),
        "tail_logprobs": tail.astype(np.float32),
    }


def topk_payloads(
    rows: Sequence[PackedRow], *, k: int = 5, seed: int = 0, vocab: int = VOCAB
) -> list[TeacherPayload]:
    """Random top-k payloads of all documents of rows."""
    draw = np.random.default_rng(seed)
    return payloads_of(
        rows,
        PayloadKind.TOPK,
        PayloadDtype.FP32,
        lambda tokens: random_topk(draw, tokens.size, k, vocab),
    )


def payloads_of(
    rows: Sequence[PackedRow],
    kind: PayloadKind,
    dtype: PayloadDtype,
    values: Callable[[np.ndarray], Values],
) -> list[TeacherPayload]:
    """Payloads of all documents of rows; `values` makes what one holds of its tokens."""
    return [
        TeacherPayload(
            document_id=name,
            teacher=0,
            kind=kind,
            dtype=dtype,
            target_logprobs=np.where(labels < 0, np.nan, -1.0).astype(np.float32),
            labels_digest=labels_digest(tokens, labels),
            **values(tokens),
        )
        for name, tokens, labels in documents_in(rows)
    ]


def commit_payloads(
    folder: Path,
    payloads: Sequence[TeacherPayload],
    *,
    files: Sequence[Part] = (),
    **changes: Any,
) -> PayloadRef:
    """Commit payloads of one kind; `changes` are fields of their PayloadInfo."""
    location = open_location(folder)
    first = payloads[0]
    kind = KindInfo(kind=first.kind, dtype=first.dtype, width=first.values.shape[1])
    fields = {
        "kinds": (kind,),
        "temperature": 1.0,
        "vocab_size": VOCAB,
        "tokenizer_digest": "tiny",
        "teachers": ("teacher",),
    }
    info = PayloadInfo(**{**fields, **changes})
    parts = write_payload_parts(location, payloads, info=info)
    contents = Contents(
        schema_id=SchemaId.TEACHER_PAYLOAD,
        kind="payload",
        parts=[*parts, *files],
        counts=payload_counts(parts),
        payload=info,
    )
    return commit(location, contents.manifest()).payload_ref()
