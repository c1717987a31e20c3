import numpy as np
import polars as pl
import pytest

from megapack.errors import ContractError, DataError
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from megapack.store.payload_frames import frame_to_payloads, payloads_to_frame
from megapack.store.schema import SCHEMAS, PayloadInfo, SchemaId

INFO = PayloadInfo(
    kind=PayloadKind.TOPK,
    dtype=PayloadDtype.FP16,
    width=2,
    temperature=1.0,
    vocab_size=50,
    teachers=("big",),
)


def payload(document_id: str, positions: int, **changes: object) -> TeacherPayload:
    fields = {
        "document_id": document_id,
        "teacher": 0,
        "kind": PayloadKind.TOPK,
        "dtype": PayloadDtype.FP16,
        "values": -np.arange(positions * 2, dtype="<f2").reshape(positions, 2),
        "target_logprobs": np.array([np.nan] + [-0.5] * (positions - 1), dtype=np.float32),
        "labels_digest": 2**64 - 1,
        "indices": np.arange(positions * 2, dtype=np.int32).reshape(positions, 2),
    }
    return TeacherPayload(**(fields | changes))


def test_payloads_round_trip():
    payloads = [payload("a", 3), payload("b", 1)]
    frame = payloads_to_frame(payloads, info=INFO)
    assert frame.schema == SCHEMAS[SchemaId.TEACHER_PAYLOAD]
    for left, right in zip(frame_to_payloads(frame, info=INFO, where="x"), payloads, strict=True):
        assert left.document_id == right.document_id
        assert left.labels_digest == right.labels_digest
        assert left.values.dtype == right.values.dtype
        assert np.array_equal(left.values, right.values)
        assert np.array_equal(left.indices, right.indices)
        assert np.array_equal(left.target_logprobs, right.target_logprobs, equal_nan=True)


def test_hidden_payload_keeps_bfloat16_bits():
    info = INFO.model_copy(update={"kind": PayloadKind.HIDDEN, "dtype": PayloadDtype.BF16})
    values = np.array([[0x3F80, 0xFF80]], dtype="<u2")
    hidden = payload(
        "a", 1, kind=PayloadKind.HIDDEN, dtype=PayloadDtype.BF16, values=values, indices=None
    )
    frame = payloads_to_frame([hidden], info=info)
    assert frame["indices"].null_count() == 1
    back = next(frame_to_payloads(frame, info=info, where="x"))
    assert back.values.tolist() == [[0x3F80, 0xFF80]]
    assert back.indices is None


def test_payload_of_another_width_is_refused():
    with pytest.raises(ContractError, match=r"'topk'.*3\).*found.*2\)"):
        payloads_to_frame([payload("a", 1)], info=INFO.model_copy(update={"width": 3}))


def test_payload_with_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ContractError, match=r"in \[0, 5\), found 0 to 5"):
        payloads_to_frame([payload("a", 3)], info=INFO.model_copy(update={"vocab_size": 5}))


def test_payload_of_an_unknown_teacher_is_refused():
    with pytest.raises(ContractError, match="below 1, found 1"):
        payloads_to_frame([payload("a", 1, teacher=1)], info=INFO)


def test_damaged_payload_names_its_document():
    frame = payloads_to_frame([payload("a", 3)], info=INFO).with_columns(
        num_tokens=pl.lit(4, dtype=pl.Int32)
    )
    with pytest.raises(DataError, match=r"record 0 \(document a\).*damaged"):
        list(frame_to_payloads(frame, info=INFO, where="x"))
