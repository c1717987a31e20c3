"""`LogitReading`: in which form heads read logits, and the log-probs that they all share."""

from dataclasses import dataclass

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.jobs.outputs import LogitsForm
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.head import needed
from megapack.parallel.context import ParallelContext
from megapack.parallel.lm_head import LogitChunks, StoredLogits
from megapack.parallel.sampling import PLAIN, Sampling
from megapack.parallel.vocab import VocabShard, source_logprobs

_NEEDS = {
    LogitsForm.MODEL_DTYPE: Need.LOGITS,
    LogitsForm.FP32: Need.FP32_LOGITS,
    LogitsForm.BY_CHUNKS: Need.LM_HEAD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitReading:
    """How logits are read; the numbers do not depend on it.

    Attributes:
        form: in which form they exist.
        tokens_per_chunk: tokens that are worked on at once; None takes 32M logits.
    """

    form: LogitsForm = LogitsForm.MODEL_DTYPE
    tokens_per_chunk: int | None = None

    @property
    def needs(self) -> Need:
        """What the forward must give."""
        return _NEEDS[self.form]

    def source(self, output: ModelOutput) -> LogitChunks:
        """The logits of a forward that gave what is needed.

        Raises:
            ContractError: it did not.
        """
        if self.form is LogitsForm.BY_CHUNKS:
            return needed(output.lm_head, "lm_head")
        return StoredLogits(logits=needed(output.logits, "logits"))

    def shard(self, output: ModelOutput, context: ParallelContext) -> VocabShard:
        """The columns of this rank."""
        return VocabShard.of(
            context,
            columns=self.source(output).columns,
            vocab_size=output.vocab_size,
            tokens_per_chunk=self.tokens_per_chunk,
        )


AS_THEY_ARE = LogitReading()
"""Whole logits in the model's dtype."""

BY_CHUNKS = LogitReading(form=LogitsForm.BY_CHUNKS)
"""Projected some tokens at a time; the logits of all of them never exist."""


def label_logprobs(
    output: ModelOutput,
    microbatch: MicroBatch,
    context: ParallelContext,
    *,
    sampling: Sampling = PLAIN,
    reading: LogitReading = AS_THEY_ARE,
) -> torch.Tensor:
    """Collective over tp_group: log-probability of each position's label.

    Args:
        output: with what `reading` needs.
        microbatch: labels.
        context: this rank.
        sampling: temperature and filters.
        reading: form of the logits.

    Returns:
        [n], float32 (float64 for a float64 model), nats, target-aligned, differentiable;
        meaningless where no label counts.
    """
    return source_logprobs(
        reading.source(output),
        microbatch.labels.reshape(-1),
        reading.shard(output, context),
        sampling=sampling,
    )
