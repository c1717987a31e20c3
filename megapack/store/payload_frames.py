"""`TeacherPayload` to and from frames of `megapack.teacher_payload/1`. Letters as in the record."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from megapack.errors import ContractError, DataError, MegapackError
from megapack.records.payload import TeacherPayload
from megapack.store.schema import SCHEMAS, PayloadInfo, SchemaId, check_frame

_INDEX = np.dtype("<i4")


def payloads_to_frame(payloads: Sequence[TeacherPayload], *, info: PayloadInfo) -> pl.DataFrame:
    """Payloads as a frame, one record a document.

    Raises:
        ContractError: a payload is of another kind, dtype or width than `info` says, or names a
            teacher or a vocabulary id that it does not have.
    """
    for payload in payloads:
        _check_payload(payload, info)
    columns = {
        "document_id": [one.document_id for one in payloads],
        "teacher": [one.teacher for one in payloads],
        "num_tokens": [one.num_positions for one in payloads],
        "width": [info.width] * len(payloads),
        "values": [np.ascontiguousarray(one.values).tobytes() for one in payloads],
        "indices": [
            None if one.indices is None else one.indices.astype(_INDEX, copy=False).tobytes()
            for one in payloads
        ],
        "target_logprobs": pl.Series(
            "target_logprobs",
            [pl.Series(one.target_logprobs, dtype=pl.Float32) for one in payloads],
            dtype=pl.List(pl.Float32),
        ),
        "labels_digest": [one.labels_digest for one in payloads],
    }
    return pl.DataFrame(columns, schema=SCHEMAS[SchemaId.TEACHER_PAYLOAD])


def frame_to_payloads(
    frame: pl.DataFrame, *, info: PayloadInfo, where: str
) -> Iterator[TeacherPayload]:
    """Payloads of a frame, in its order; their arrays are read-only views.

    Raises:
        ContractError: the columns are not those of the schema.
        DataError: a record contradicts itself.
    """
    check_frame(frame, SchemaId.TEACHER_PAYLOAD)
    for at in range(frame.height):
        record = frame.row(at, named=True)
        shape = (record["num_tokens"], record["width"])
        stored = record["indices"]
        try:
            yield TeacherPayload(
                document_id=record["document_id"],
                teacher=record["teacher"],
                kind=info.kind,
                dtype=info.dtype,
                values=np.frombuffer(record["values"], dtype=info.dtype.numpy).reshape(shape),
                target_logprobs=np.array(record["target_logprobs"], dtype=np.float32),
                labels_digest=record["labels_digest"],
                indices=None
                if stored is None
                else np.frombuffer(stored, dtype=_INDEX).reshape(shape),
            )
        except (MegapackError, ValueError) as error:
            raise DataError(
                f"{where}, record {at} (document {record['document_id']}): the stored payload is "
                f"damaged: {error}"
            ) from error


def _check_payload(payload: TeacherPayload, info: PayloadInfo) -> None:
    found = (payload.kind, payload.dtype, payload.values.shape[1])
    expected = (info.kind, info.dtype, info.width)
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
