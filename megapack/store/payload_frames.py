"""`TeacherPayload` to and from frames of `megapack.teacher_payload/2`. Letters as in the record."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.errors import ContractError, DataError, MegapackError
from megapack.layout.runs import Int32
from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.store.byte_planes import join_falling, join_planes, split_falling, split_planes
from megapack.store.schema import SCHEMAS, KindInfo, PayloadInfo, SchemaId, check_frame
from megapack.store.token_planes import join_tokens, split_tokens


def payloads_to_frame(
    payloads: Sequence[TeacherPayload], *, info: PayloadInfo, kind: PayloadKind
) -> pl.DataFrame:
    """Payloads of one kind as a frame, one record a document.

    Raises:
        ConfigError: `info` has no such kind.
        ContractError: a payload is of another kind, dtype or width than `info` says, or names a
            teacher or a vocabulary id that it does not have.
    """
    for payload in payloads:
        _check_payload(payload, info, info.of(kind))
    split = split_falling if kind is PayloadKind.TOPK else split_planes
    indices = [_split_indices(one, info.vocab_size) for one in payloads]
    columns: dict[str, Any] = {
        "document_id": [one.document_id for one in payloads],
        "teacher": [one.teacher for one in payloads],
        "num_tokens": [one.num_positions for one in payloads],
        "width": [one.values.shape[1] for one in payloads],
        "values": [split(one.values) for one in payloads],
        "indices": [low for low, _ in indices],
        "indices_high": [high for _, high in indices],
        "target_logprobs": _floats("target_logprobs", [one.target_logprobs for one in payloads]),
        "tail_logprobs": _floats("tail_logprobs", [one.tail_logprobs for one in payloads]),
        "labels_digest": [one.labels_digest for one in payloads],
    }
    return pl.DataFrame(columns, schema=SCHEMAS[SchemaId.TEACHER_PAYLOAD])


def frame_to_payloads(
    frame: pl.DataFrame, *, kind: KindInfo, where: str
) -> Iterator[TeacherPayload]:
    """Payloads of a frame, in its order; their arrays are read-only.

    Args:
        frame: of the schema.
        kind: what its records are.
        where: of the frame, for errors.

    Raises:
        ContractError: the columns are not those of the schema.
        DataError: a record contradicts itself.
    """
    check_frame(frame, SchemaId.TEACHER_PAYLOAD)
    for at in range(frame.height):
        record = frame.row(at, named=True)
        try:
            yield _payload(record, kind)
        except (MegapackError, ValueError) as error:
            raise DataError(
                f"{where}, record {at} (document {record['document_id']}): the stored payload is "
                f"damaged: {error}"
            ) from error


def _payload(record: dict[str, Any], kind: KindInfo) -> TeacherPayload:
    shape = (record["num_tokens"], record["width"])
    join = join_falling if kind.kind is PayloadKind.TOPK else join_planes
    tail = record["tail_logprobs"]
    return TeacherPayload(
        document_id=record["document_id"],
        teacher=record["teacher"],
        kind=kind.kind,
        dtype=kind.dtype,
        values=join(record["values"], dtype=kind.dtype.numpy, shape=shape),
        target_logprobs=np.array(record["target_logprobs"], dtype=np.float32),
        labels_digest=record["labels_digest"],
        indices=_join_indices(record["indices"], record["indices_high"], shape),
        tail_logprobs=None if tail is None else np.array(tail, dtype=np.float32),
    )


def _split_indices(payload: TeacherPayload, vocab_size: int) -> tuple[bytes | None, bytes | None]:
    if payload.indices is None:
        return None, None
    return split_tokens(payload.indices.reshape(-1), vocab_size=vocab_size)


def _join_indices(low: bytes | None, high: bytes | None, shape: tuple[int, int]) -> Int32 | None:
    if low is None or high is None:
        return None
    indices = np.empty(shape, dtype=np.int32)
    join_tokens(low, high, out=indices.reshape(-1))
    indices.flags.writeable = False
    return indices


def _floats(name: str, arrays: Sequence[npt.NDArray[np.float32] | None]) -> pl.Series:
    lists = [None if one is None else pl.Series(one, dtype=pl.Float32) for one in arrays]
    return pl.Series(name, lists, dtype=pl.List(pl.Float32))


def _check_payload(payload: TeacherPayload, info: PayloadInfo, kind: KindInfo) -> None:
    found = (payload.kind, payload.dtype, payload.values.shape[1])
    expected = (kind.kind, kind.dtype, kind.width)
    if found != expected:
        raise ContractError(
            f"TeacherPayload {payload.document_id}: expected kind, dtype and width {expected}, "
            f"found {found}."
        )
    if not 0 <= payload.teacher < len(info.teachers):
        raise ContractError(
            f"TeacherPayload {payload.document_id}: expected a teacher index below "
            f"{len(info.teachers)}, found {payload.teacher}."
        )
    if payload.indices is not None and payload.indices.size:
        low, high = int(payload.indices.min()), int(payload.indices.max())
        if low < 0 or high >= info.vocab_size:
            raise ContractError(
                f"TeacherPayload {payload.document_id}: expected vocabulary ids in [0, "
                f"{info.vocab_size}), found {low} to {high}."
            )
