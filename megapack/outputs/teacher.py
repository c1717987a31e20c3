"""`TeacherPayloadHead`: hidden states and label log-probs of each document, to the host.

What the student needs from the teacher is gathered over sequence and context parallelism, put
back in document order and cut to real positions, so a payload does not depend on how the teacher
was packed or split. Cost: one row's hidden states [T, H] on the writing rank, moved to the host
before the next microbatch. Letters: m = positions of one document.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from megapack.batch.microbatch import MicroBatch
from megapack.layout.token_fields import unplace
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.documents import to_documents, without_uncounted
from megapack.outputs.head import HeadResult, needed, nothing_to_learn
from megapack.outputs.source import AS_THEY_ARE, LogitReading, label_logprobs
from megapack.parallel.collectives import gather_row
from megapack.parallel.context import ParallelContext
from megapack.parallel.sampling import Sampling
from megapack.records.document import labels_digest
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload

_TORCH = {
    PayloadDtype.BF16: torch.bfloat16,
    PayloadDtype.FP16: torch.float16,
    PayloadDtype.FP32: torch.float32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherPayloadHead:
    """Emits a HIDDEN TeacherPayload for each document, on the writing rank.

    Attributes:
        dtype: how hidden states are stored.
        teacher: stable index of the teacher.
        temperature: temperature of the log-probs.
        reading: form of the logits that the log-probs come from.
    """

    dtype: PayloadDtype
    teacher: int = 0
    temperature: float = 1.0
    reading: LogitReading = AS_THEY_ARE

    @property
    def needs(self) -> Need:
        """Hidden states, and logits in some form for the log-probs."""
        return Need.HIDDEN | self.reading.needs

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group and cp_group."""
        layout = microbatch.attention.layout
        sampling = Sampling(temperature=self.temperature)
        own = label_logprobs(output, microbatch, context, sampling=sampling, reading=self.reading)
        logprobs = to_documents(own.to(torch.float32), microbatch, context)
        hidden = gather_row(
            needed(output.hidden, "hidden").to(_TORCH[self.dtype]),
            layout,
            context,
            over_tp=context.sizes.sequence_parallel,
        )
        if hidden is None or logprobs is None:
            return nothing_to_learn(context)
        records = self._records(microbatch.row, hidden, without_uncounted(logprobs, microbatch))
        return replace(nothing_to_learn(context), records=records)

    def _records(
        self, row: PackedRow, hidden: torch.Tensor, logprobs: list[torch.Tensor]
    ) -> tuple[TeacherPayload, ...]:
        digests = [
            labels_digest(tokens, labels)
            for tokens, labels in zip(
                unplace(row.tokens, row.layout), unplace(row.labels(), row.layout), strict=True
            )
        ]
        return tuple(
            TeacherPayload(
                document_id=document_id,
                teacher=self.teacher,
                kind=PayloadKind.HIDDEN,
                dtype=self.dtype,
                values=np.ascontiguousarray(values),
                target_logprobs=document_logprobs.numpy(),
                labels_digest=digest,
            )
            for document_id, values, document_logprobs, digest in zip(
                row.document_ids,
                unplace(_to_host(hidden, self.dtype), row.layout),
                logprobs,
                digests,
                strict=True,
            )
        )


def _to_host(values: torch.Tensor, dtype: PayloadDtype) -> npt.NDArray[Any]:
    """[T, H] on the host in the payload's numpy dtype; bfloat16 as its bit pattern."""
    host = values.detach().cpu()
    if dtype is PayloadDtype.BF16:
        host = host.view(torch.uint16)
    return host.numpy().astype(dtype.numpy, copy=False)
