"""`LogprobHead`: log-probabilities of the labels, as records by document."""

from dataclasses import dataclass, replace

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.documents import to_documents, without_uncounted
from megapack.outputs.head import HeadResult, TokenRecord, nothing_to_learn
from megapack.outputs.source import AS_THEY_ARE, LogitReading, label_logprobs
from megapack.parallel.context import ParallelContext
from megapack.parallel.sampling import PLAIN, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobHead:
    """Emits a TokenRecord for each document of a row, on the writing rank.

    Attributes:
        sampling: temperature and filters.
        reading: form of the logits.
    """

    sampling: Sampling = PLAIN
    reading: LogitReading = AS_THEY_ARE

    @property
    def needs(self) -> Need:
        """Logits in some form."""
        return self.reading.needs

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group and cp_group."""
        logprobs = label_logprobs(
            output, microbatch, context, sampling=self.sampling, reading=self.reading
        )
        values = to_documents(logprobs.to(torch.float32), microbatch, context)
        nothing = nothing_to_learn(context)
        if values is None:
            return nothing
        records = tuple(
            TokenRecord(document_id=document_id, target_logprobs=value)
            for document_id, value in zip(
                microbatch.document_ids, without_uncounted(values, microbatch), strict=True
            )
        )
        return replace(nothing, records=records)
