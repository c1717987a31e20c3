"""`TopkHead`: the likeliest tokens at each position, as records by document.

Normalised over the whole real vocabulary, so the mass of the tail is known exactly. Equal values
come by lower token id, at any tp. Beyond the logits themselves, memory is one chunk and 3*K
values a token; records leave the device after each microbatch.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.documents import to_documents, without_uncounted
from megapack.outputs.head import HeadResult, TopkRecord, needed, nothing_to_learn
from megapack.outputs.source import AS_THEY_ARE, LogitReading
from megapack.parallel.context import ParallelContext
from megapack.parallel.vocab_topk import topk_of


class TopkValues(StrEnum):
    """What is stored for a token: its log-probability, or its logit over the temperature."""

    LOGPROBS = "logprobs"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkHead:
    """Emits a TopkRecord for each document of a row, on the writing rank.

    Attributes:
        k: tokens a position, at most the real vocabulary.
        temperature: logits are divided by it.
        values: what is stored.
        reading: form of the logits.
    """

    k: int
    temperature: float = 1.0
    values: TopkValues = TopkValues.LOGPROBS
    reading: LogitReading = AS_THEY_ARE

    @property
    def needs(self) -> Need:
        """Logits in some form."""
        return self.reading.needs

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group and cp_group."""
        best = topk_of(
            self.reading.source(output),
            microbatch.labels.reshape(-1),
            self.reading.shard(output, context),
            k=self.k,
            temperature=self.temperature,
        )
        values = best.logprobs if self.values is TopkValues.LOGPROBS else best.logits
        columns = [
            to_documents(column, microbatch, context)
            for column in (
                values.to(torch.float32),
                best.ids.to(torch.int32),
                best.target_logprobs.to(torch.float32),
            )
        ]
        nothing = nothing_to_learn(context)
        if columns[0] is None:
            return nothing
        logprobs = without_uncounted(needed(columns[2], "log-probs"), microbatch)
        records = tuple(
            TopkRecord(
                document_id=document_id,
                values=document_values,
                token_ids=token_ids,
                target_logprobs=document_logprobs,
            )
            for document_id, document_values, token_ids, document_logprobs in zip(
                microbatch.document_ids,
                columns[0],
                needed(columns[1], "token ids"),
                logprobs,
                strict=True,
            )
        )
        return replace(nothing, records=records)
