"""Teacher payloads in the store: bytes a token by column, encoding, writing, and reading at random.

Top-64 of logits over 131,072 ids that fall like the ranks of words, with noise and a few likely
tokens a position (the likeliest has 0.71 on average); hidden states normal, of 4,096 channels with
scales of their own. Throughput is in tokens a CPU second of one process, from a local folder.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import numpy as np
import polars as pl

from benchmarks.record import emit
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Part
from megapack.store.payload_parts import (
    PART_KINDS,
    payload_bytes,
    payload_counts,
    write_payload_parts,
)
from megapack.store.payload_reader import open_payloads
from megapack.store.schema import KindInfo, PayloadInfo, SchemaId
from megapack.store.versions import commit

_VOCABULARY, _TOP, _WIDTH = 131_072, 64, 4096
_LENGTHS = (411, 97, 720, 256, 1033, 180)
_AT_ONCE = 128
_FETCHES, _DOCUMENTS = 8, 3


def main() -> None:
    """Print a line for each kind."""
    generator = np.random.default_rng(0)
    for kind, payloads in (
        (PayloadKind.TOPK, [_top(generator, n, length) for n, length in enumerate(_LENGTHS)]),
        (PayloadKind.HIDDEN, [_hidden(generator, n, length) for n, length in enumerate(_LENGTHS)]),
    ):
        with tempfile.TemporaryDirectory() as folder:
            _measure(Path(folder), kind, payloads)


def _measure(folder: Path, kind: PayloadKind, payloads: Sequence[TeacherPayload]) -> None:
    location, tokens = open_location(folder), sum(one.num_positions for one in payloads)
    one = payloads[0]
    info = PayloadInfo(
        kinds=(KindInfo(kind=kind, dtype=one.dtype, width=one.values.shape[1]),),
        temperature=1.0,
        vocab_size=_VOCABULARY,
        tokenizer_digest="synthetic",
        teachers=("synthetic",),
    )
    start = process_time()
    parts = write_payload_parts(location, payloads, info=info)
    written_s = process_time() - start
    contents = Contents(
        schema_id=SchemaId.TEACHER_PAYLOAD,
        kind="payload",
        parts=parts,
        counts=payload_counts(parts),
        payload=info,
    )
    commit(location, contents.manifest())
    held = open_payloads(location)
    names = [one.document_id for one in payloads]
    held.fetch(names[:1], kind)
    generator, read = np.random.default_rng(1), 0
    start = process_time()
    for _ in range(_FETCHES):
        drawn = generator.choice(len(names), _DOCUMENTS, replace=False)
        found = held.fetch([names[at] for at in drawn], kind)
        read += sum(one.num_positions for one in found.values())
    read_s = process_time() - start
    raw = sum(payload_bytes(one) for one in payloads)
    emit(
        "payload",
        case=kind.value,
        raw_bytes_a_token=round(raw / tokens, 1),
        bytes_a_token=round(sum(part.size for part in parts) / tokens, 1),
        bytes_a_token_by_column=_columns(folder, parts, kind, tokens),
        write_mb_a_second=round(raw / written_s / 1e6),
        write_tokens_a_second=round(tokens / written_s),
        fetch_mb_a_second=round(raw / tokens * read / read_s / 1e6),
        fetch_tokens_a_second=round(read / read_s),
    )


def _columns(folder: Path, parts: Sequence[Part], kind: PayloadKind, tokens: int) -> str:
    """Stored bytes a token of each column that takes any."""
    sizes: dict[str, float] = {}
    for part in parts:
        if part.kind is not PART_KINDS[kind]:
            continue
        frame = pl.read_parquet(folder / part.key)
        for name in frame.columns:
            path = folder / "column.parquet"
            frame.select(name).write_parquet(
                path, compression="zstd", compression_level=1, statistics=False
            )
            sizes[name] = sizes.get(name, 0.0) + path.stat().st_size / tokens
    return ", ".join(f"{name} {size:.2f}" for name, size in sizes.items() if size >= 1)


def _top(generator: np.random.Generator, number: int, length: int) -> TeacherPayload:
    blocks = [
        _top_block(generator, min(_AT_ONCE, length - at)) for at in range(0, length, _AT_ONCE)
    ]
    values, indices, tails = (np.concatenate(one) for one in zip(*blocks, strict=True))
    chosen = np.where(generator.random(length) < 1 / 2, values[:, 0], np.nan)
    return TeacherPayload(
        document_id=f"{number:032x}",
        teacher=0,
        kind=PayloadKind.TOPK,
        dtype=PayloadDtype.FP16,
        values=values.astype("<f2"),
        target_logprobs=chosen.astype(np.float32),
        labels_digest=number,
        indices=indices.astype(np.int32),
        tail_logprobs=tails.astype(np.float32),
    )


def _top_block(
    generator: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits = 2 * generator.standard_normal((count, _VOCABULARY), dtype=np.float32)
    logits -= np.log(np.arange(_VOCABULARY) + 10).astype(np.float32)
    for row in logits:
        likely = np.minimum(generator.pareto(0.6, 1 + generator.poisson(3)) * 500, _VOCABULARY - 1)
        row[likely.astype(np.int64)] = row.max() - 1 + generator.exponential(4, likely.size)
    largest = logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits - largest).sum(axis=1, keepdims=True)) + largest
    top = np.argpartition(-logits, _TOP, axis=1)[:, :_TOP]
    values = np.take_along_axis(logits, top, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    values = np.take_along_axis(values, order, axis=1)
    inside = np.exp(values.astype(np.float64)).sum(axis=1)
    return values, np.take_along_axis(top, order, axis=1), np.log(np.maximum(1 - inside, 1e-12))


def _hidden(generator: np.random.Generator, number: int, length: int) -> TeacherPayload:
    scales = np.exp(generator.normal(0, 1 / 2, _WIDTH)).astype(np.float32)
    values = generator.standard_normal((length, _WIDTH), dtype=np.float32) * scales
    return TeacherPayload(
        document_id=f"{number:032x}",
        teacher=0,
        kind=PayloadKind.HIDDEN,
        dtype=PayloadDtype.BF16,
        values=((values.view(np.uint32) + 0x8000) >> 16).astype("<u2"),
        target_logprobs=np.full(length, np.nan, dtype=np.float32),
        labels_digest=number,
    )


if __name__ == "__main__":
    main()
