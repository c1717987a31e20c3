"""A document's teacher payload as the values that travel with a row, in the student's ids.

Letters: m positions of the document, K top-k entries, W the widest teacher's values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megapack.batch.fields import RowFields, by_document
from megapack.errors import DataError
from megapack.layout.token_fields import TokenField, unplace
from megapack.outputs.distill_fields import (
    HIDDEN,
    LOGITS,
    TAIL_LOGPROBS,
    TEACHER,
    TOPK_IDS,
    TOPK_LOGPROBS,
)
from megapack.records.document import labels_digest
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from megapack.steps.distill.teachers import OpenTeacher
from megapack.steps.distill.vocabulary import NO_TOKEN, VocabularyMap

NO_TEACHER = -1
_VALUES = {PayloadKind.HIDDEN: HIDDEN, PayloadKind.LOGITS: LOGITS}

DocumentValues = Mapping[str, npt.NDArray[Any]]
"""Values of one document by field, [m, ...] each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PayloadFields:
    """How payloads of one kind become fields of a microbatch.

    Attributes:
        kind: of all payloads.
        dtype: how their values are stored.
        width: W.
    """

    kind: PayloadKind
    dtype: PayloadDtype
    width: int

    @property
    def specs(self) -> tuple[TokenField, ...]:
        """The fields and what they hold at padding."""
        number = TokenField(name=TEACHER, dtype=np.int64, pad=NO_TEACHER)
        wide = (self.width,)
        if self.kind is PayloadKind.TOPK:
            return (
                number,
                TokenField(name=TOPK_LOGPROBS, dtype=np.float32, pad=-np.inf, trailing=wide),
                TokenField(name=TOPK_IDS, dtype=np.int64, pad=NO_TOKEN, trailing=wide),
                TokenField(name=TAIL_LOGPROBS, dtype=np.float32, pad=0.0),
            )
        return (
            number,
            TokenField(name=_VALUES[self.kind], dtype=self.dtype.numpy, pad=0, trailing=wide),
        )

    def of_document(self, payload: TeacherPayload, teacher: OpenTeacher) -> DocumentValues:
        """The values of one document.

        Args:
            payload: of the document.
            teacher: whose it is.
        """
        number = np.full(payload.num_positions, teacher.number, dtype=np.int64)
        if self.kind is PayloadKind.TOPK:
            logprobs, ids, tail = in_student_ids(payload, teacher.vocabulary)
            return {
                TEACHER: number,
                TOPK_LOGPROBS: _widened(logprobs, self.width, pad=-np.inf),
                TOPK_IDS: _widened(ids, self.width, pad=NO_TOKEN),
                TAIL_LOGPROBS: tail,
            }
        values = _widened(payload.values, self.width, pad=0)
        return {TEACHER: number, _VALUES[self.kind]: values}

    def of_row(self, row: PackedRow, documents: Mapping[str, DocumentValues]) -> RowFields:
        """Lay the values of a row's documents into its geometry.

        Args:
            row: in the geometry of the microbatch.
            documents: values by document id, of all its documents at least.

        Raises:
            ContractError: a document has none, or of another length.
        """
        return RowFields(
            local={
                spec.name: by_document(
                    spec, {one: documents[one][spec.name] for one in row.document_ids}, row
                )
                for spec in self.specs
            }
        )


def in_student_ids(
    payload: TeacherPayload, vocabulary: VocabularyMap
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Top-k entries in the student's ids; what the student lacks goes to the tail, in float64.

    Returns:
        Log-probs [m, K], -inf where there is no entry; ids [m, K], NO_TOKEN there; tail [m].
    """
    tail = np.asarray(payload.tail_logprobs, dtype=np.float32)
    logprobs = payload.values.astype(np.float32)
    ids = vocabulary.student_of[np.asarray(payload.indices)]
    lost = ids == NO_TOKEN
    if lost.any():
        gone = np.where(lost, logprobs, -np.inf).astype(np.float64)
        added = np.logaddexp(tail.astype(np.float64), np.logaddexp.reduce(gone, axis=1))
        tail, logprobs = added.astype(np.float32), np.where(lost, np.float32(-np.inf), logprobs)
    return logprobs, ids, tail


def _widened(values: npt.NDArray[Any], width: int, *, pad: float) -> npt.NDArray[Any]:
    """[m, W]: the values and padding behind them."""
    missing = width - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=pad) if missing else values


def check_positions(row: PackedRow, payloads: Mapping[str, tuple[OpenTeacher, int]]) -> None:
    """Refuse payloads that were made of other positions or labels.

    Args:
        row: as the dataset holds it.
        payloads: teacher and labels digest of the payload, by document id.

    Raises:
        DataError: names the document.
    """
    labels = unplace(row.labels(), row.layout)
    for document_id, tokens, own in zip(
        row.document_ids, unplace(row.tokens, row.layout), labels, strict=True
    ):
        teacher, expected = payloads[document_id]
        to_teacher = teacher.vocabulary.to_teacher
        if labels_digest(to_teacher(tokens), to_teacher(own)) != expected:
            raise DataError(
                f"document {document_id}: expected a payload of its {tokens.size} positions and "
                f"labels, found one of others in {teacher.where}. It was cut, tokenized or "
                "supervised otherwise when the teacher read it: extract payloads from the dataset "
                "version in use."
            )


def widest(teachers: Sequence[OpenTeacher], kind: PayloadKind) -> int:
    """W."""
    return max(teacher.kind(kind).width for teacher in teachers)
