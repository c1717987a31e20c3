import dataclasses

import numpy as np
import polars as pl
import pytest

from megapack.errors import ContractError, DataError
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from megapack.store.payload_frames import frame_to_payloads, payloads_to_frame
from megapack.store.schema import SCHEMAS, KindInfo, PayloadInfo, SchemaId

TOPK = KindInfo(kind=PayloadKind.TOPK, dtype=PayloadDtype.FP16, width=2)
HIDDEN = KindInfo(kind=PayloadKind.HIDDEN, dtype=PayloadDtype.BF16, width=2)
INFO = PayloadInfo(
    kinds=(TOPK, HIDDEN),
    temperature=1.0,
    vocab_size=50,
    tokenizer_digest="t",
    teachers=("big",),
)
TOPK_INFO = INFO.model_copy(update={"kinds": (TOPK,)})


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
        "tail_logprobs": np.array([-np.inf] + [-3.25] * (positions - 1), dtype=np.float32),
    }
    return TeacherPayload(**(fields | changes))


def hidden_payload(document_id: str, positions: int) -> TeacherPayload:
    values = np.arange(positions * 2, dtype="<u2").reshape(positions, 2) + 0x3F80
    return payload(
        document_id,
        positions,
        kind=PayloadKind.HIDDEN,
        dtype=PayloadDtype.BF16,
        values=values.astype("<u2"),
        indices=None,
        tail_logprobs=None,
    )


def same_payload(left: TeacherPayload, right: TeacherPayload) -> bool:
    names = [one.name for one in dataclasses.fields(TeacherPayload)]
    return all(_same(getattr(left, name), getattr(right, name)) for name in names)


def _same(left: object, right: object) -> bool:
    if not isinstance(left, np.ndarray):
        return left == right
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


@pytest.mark.parametrize(("make", "kind"), [(payload, TOPK), (hidden_payload, HIDDEN)])
def test_payloads_round_trip(make, kind):
    payloads = [make("a", 3), make("b", 1)]
    frame = payloads_to_frame(payloads, info=INFO, kind=kind.kind)
    assert frame.schema == SCHEMAS[SchemaId.TEACHER_PAYLOAD]
    back = frame_to_payloads(frame, kind=kind, where="x")
    assert all(same_payload(*both) for both in zip(back, payloads, strict=True))


def test_payload_of_another_width_is_refused():
    wider = INFO.model_copy(update={"kinds": (TOPK.model_copy(update={"width": 3}),)})
    with pytest.raises(ContractError, match=r"'topk'.*3\).*found.*2\)"):
        payloads_to_frame([payload("a", 1)], info=wider, kind=PayloadKind.TOPK)


def test_payload_with_an_id_outside_the_vocabulary_is_refused():
    small = INFO.model_copy(update={"vocab_size": 5})
    with pytest.raises(ContractError, match=r"in \[0, 5\), found 0 to 5"):
        payloads_to_frame([payload("a", 3)], info=small, kind=PayloadKind.TOPK)


def test_payload_of_an_unknown_teacher_is_refused():
    with pytest.raises(ContractError, match="below 1, found 1"):
        payloads_to_frame([payload("a", 1, teacher=1)], info=INFO, kind=PayloadKind.TOPK)


def test_damaged_payload_names_its_document():
    frame = payloads_to_frame([payload("a", 3)], info=INFO, kind=PayloadKind.TOPK).with_columns(
        num_tokens=pl.lit(4, dtype=pl.Int32)
    )
    with pytest.raises(DataError, match=r"record 0 \(document a\).*damaged"):
        list(frame_to_payloads(frame, kind=TOPK, where="x"))
