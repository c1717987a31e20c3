"""From a row's columns on the host to one TeacherPayload for each document and kind.

What a teacher gave and cannot be stored is an error here, with the document's name: a payload is
read months later, by students that would learn from it. Letter: m positions of a document.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.errors import DataError
from megapack.layout.token_fields import unplace
from megapack.outputs.host_documents import AnyArray, HostDocuments
from megapack.outputs.payload_columns import IDS, TAIL, TARGET, unusable
from megapack.records.document import labels_digest
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload

Bool = npt.NDArray[np.bool_]

_WHAT = {
    PayloadKind.TOPK: "top-k log-probs",
    PayloadKind.HIDDEN: "hidden states",
    PayloadKind.LOGITS: "logits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRecords:
    """Makes payloads.

    Attributes:
        kinds: what is stored, and how.
        teacher: stable index of the teacher.
    """

    kinds: tuple[tuple[PayloadKind, PayloadDtype], ...]
    teacher: int

    def of(self, row: PackedRow, host: HostDocuments) -> Iterator[TeacherPayload]:
        """Payloads in order of documents, then of kinds.

        Args:
            row: tokens and labels of the documents.
            host: their columns, complete.

        Raises:
            DataError: a value cannot be stored.
        """
        if not row.layout.num_segments:
            return
        target = [logprobs[:, 0] for logprobs in host.take(TARGET)]
        by_kind = {kind: self._columns(kind, host) for kind, _ in self.kinds}
        tokens, labels = (unplace(of, row.layout) for of in (row.tokens, row.labels()))
        counted = unplace(row.loss_mask(), row.layout)
        for i, name in enumerate(row.document_ids):
            _check_target(name, target[i], counted[i])
            target[i][~counted[i]] = np.nan
            digest = labels_digest(tokens[i], labels[i])
            for kind, dtype in self.kinds:
                columns = {key: column[i] for key, column in by_kind[kind].items()}
                _check(name, kind, dtype, columns)
                topk = kind is PayloadKind.TOPK
                yield TeacherPayload(
                    document_id=name,
                    teacher=self.teacher,
                    kind=kind,
                    dtype=dtype,
                    values=columns.get(kind.value, np.empty((target[i].size, 0), dtype.numpy)),
                    target_logprobs=target[i],
                    labels_digest=digest,
                    indices=columns[IDS] if topk else None,
                    tail_logprobs=columns[TAIL][:, 0] if topk else None,
                )

    def _columns(self, kind: PayloadKind, host: HostDocuments) -> dict[str, list[AnyArray]]:
        names = {
            PayloadKind.LOGPROBS: (),
            PayloadKind.TOPK: (PayloadKind.TOPK.value, IDS, TAIL, unusable(kind)),
            PayloadKind.HIDDEN: (kind.value, unusable(kind)),
            PayloadKind.LOGITS: (kind.value, unusable(kind)),
        }
        return {name: host.take(name) for name in names[kind]}


def _check_target(document_id: str, logprobs: npt.NDArray[np.float32], counted: Bool) -> None:
    bad = np.flatnonzero(np.isnan(logprobs) & counted)
    if bad.size:
        raise DataError(
            f"teacher payload of document {document_id}: expected a log-probability of the label "
            f"at every supervised position, found NaN at {bad.size} of them, first at position "
            f"{int(bad[0])}: the teacher's logits are NaN or infinite there. Check its weights, "
            "or run it in bf16 or fp32."
        )


def _check(
    document_id: str, kind: PayloadKind, dtype: PayloadDtype, columns: dict[str, AnyArray]
) -> None:
    if kind is PayloadKind.LOGPROBS:
        return
    bad = np.flatnonzero(columns[unusable(kind)])
    if not bad.size:
        return
    first = int(bad[0])
    values = columns[kind.value][first]
    overflown = dtype is PayloadDtype.FP16 and np.isinf(values).any() and not _any_nan(values)
    where = (
        f"teacher payload of document {document_id}: {_WHAT[kind]}: expected finite numbers, "
        f"found others at {bad.size} of {columns[kind.value].shape[0]} positions, first at "
        f"position {first}"
    )
    if overflown:
        limit = np.finfo(np.float16).max
        raise DataError(
            f"{where}: beyond the range of fp16 (+-{limit:.0f}), or infinite from the teacher. "
            f"Store {kind.value} as bf16 or fp32."
        )
    raise DataError(f"{where}: the teacher gives NaN or infinity there. Check its weights.")


def _any_nan(values: AnyArray) -> bool:
    return bool(np.isnan(values).any())
