"""The training loss: negative log-likelihood of the labels, mean over tokens or over documents.

Masked at the loss: a masked position contributes an exact zero to the sum and to the gradient.
The mean over the step is formed by megatron-core, over all dp x cp ranks and microbatches at
once, so the gradient does not depend on how the step is split:

    TOKEN_MEAN     sum of token losses                      / target tokens
    SEQUENCE_MEAN  sum of token losses / targets of its doc / documents with a target

Under context parallelism a document lies on all cp ranks; the first of them counts it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from megapack.batch.microbatch import MicroBatch
from megapack.batch.normalizer import StepNormalizer
from megapack.errors import ContractError
from megapack.jobs.outputs import LossMean, OutputSettings, TokenLossBy
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.documents import spread
from megapack.outputs.head import HeadResult, Metric, OutputHead, Reduce, needed
from megapack.outputs.source import AS_THEY_ARE, LogitReading, label_logprobs
from megapack.parallel.context import ParallelContext
from megapack.parallel.sampling import PLAIN, Sampling

UNNAMED = "unnamed"
"""How metrics call documents that carry no source name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """From token losses to a step's loss and metrics.

    Attributes:
        mean: what the loss is a mean over.
        sources: source names of the whole dataset, the same on all ranks; each gets a metric
            `loss/NAME`, a mean over its target tokens. Empty for none.
    """

    mean: LossMean = LossMean.TOKEN_MEAN
    sources: tuple[str, ...] = ()

    def __call__(
        self, token_loss: torch.Tensor, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """The result of a microbatch.

        Args:
            token_loss: [n], nats; anything where no label counts.
            microbatch: mask and documents.
            context: this rank.

        Raises:
            ContractError: a document's source is not among `sources`.
        """
        counted = microbatch.loss_mask.reshape(-1) > 0
        num_target_tokens = counted.sum()
        masked = torch.where(counted, token_loss, 0.0)
        loss_sum, divisor = masked.sum(), num_target_tokens
        if self.mean is LossMean.SEQUENCE_MEAN:
            targets = microbatch.row.targets_by_document()
            weights = spread(1.0 / np.maximum(targets, 1), microbatch, context)
            loss_sum = (masked * weights.to(masked.dtype)).sum()
            mine = int((targets > 0).sum()) if context.cp_rank == 0 else 0
            divisor = torch.full_like(num_target_tokens, mine)
        return HeadResult(
            loss_sum=loss_sum,
            num_target_tokens=num_target_tokens,
            divisor=divisor,
            metrics={
                "loss": Metric(value=loss_sum.detach(), reduce=Reduce.MEAN, count=divisor),
                **self._by_source(masked.detach(), counted, microbatch, context),
            },
        )

    def _by_source(
        self,
        masked: torch.Tensor,
        counted: torch.Tensor,
        microbatch: MicroBatch,
        context: ParallelContext,
    ) -> Mapping[str, Metric]:
        if not self.sources:
            return {}
        numbers = {name: number for number, name in enumerate(self.sources, start=1)}
        unknown = set(microbatch.row.sources) - numbers.keys()
        if unknown:
            raise ContractError(
                f"loss by source: expected the sources {sorted(numbers)}, found "
                f"{sorted(unknown)[:3]} in a row."
            )
        owner = np.array([numbers[name] for name in microbatch.row.sources], dtype=np.int64)
        if not owner.size:
            owner = np.zeros(microbatch.row.layout.num_segments, dtype=np.int64)
        of = spread(owner, microbatch, context)
        here = of[None] == torch.arange(1, len(numbers) + 1, device=context.device)[:, None]
        losses = torch.where(here, masked, 0.0).sum(dim=1)
        counts = (here & counted).sum(dim=1)
        return {
            f"loss/{name or UNNAMED}": Metric(value=loss, reduce=Reduce.MEAN, count=count)
            for name, loss, count in zip(numbers, losses, counts, strict=True)
        }


BY_TOKENS = Averaging()
"""Token-mean, no sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLossHead:
    """Negative log-likelihood of the labels over the real vocabulary.

    Attributes:
        averaging: what the loss is a mean over, and metrics.
        sampling: temperature and filters of the distribution; the model's own by default.
        reading: form of the logits.
    """

    averaging: Averaging = BY_TOKENS
    sampling: Sampling = PLAIN
    reading: LogitReading = AS_THEY_ARE

    @property
    def needs(self) -> Need:
        """Logits in some form."""
        return self.reading.needs

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group."""
        logprobs = label_logprobs(
            output, microbatch, context, sampling=self.sampling, reading=self.reading
        )
        return self.averaging(-logprobs, microbatch, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenLossHead:
    """The token losses that megatron-core's own cross-entropy gives for this rank's labels.

    In float32 whatever the model's dtype, over all columns: the forward refuses a padded
    vocabulary. Labels and mask are this rank's share under context parallelism, and the mask
    applies here, since the upstream loss is finite at ignored labels.

    Attributes:
        averaging: what the loss is a mean over, and metrics.
    """

    averaging: Averaging = BY_TOKENS

    @property
    def needs(self) -> Need:
        """Token losses."""
        return Need.TOKEN_LOSS

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """No communication."""
        return self.averaging(needed(output.token_loss, "token_loss"), microbatch, context)


def training_head(averaging: Averaging, how: OutputSettings) -> OutputHead:
    """The loss head of a run.

    Args:
        averaging: what the loss is a mean over, and metrics.
        how: way to compute it.
    """
    if how.token_loss is TokenLossBy.MODEL:
        return ModelTokenLossHead(averaging=averaging)
    reading = LogitReading(form=how.logits, tokens_per_chunk=how.tokens_per_chunk)
    return TokenLossHead(averaging=averaging, reading=reading)


@runtime_checkable
class Averages(Protocol):
    """A head whose loss is an average."""

    @property
    def averaging(self) -> Averaging:
        """What its loss is a mean over."""
        ...


@runtime_checkable
class ReadsLogits(Protocol):
    """A head that reads logits."""

    @property
    def reading(self) -> LogitReading:
        """How."""
        ...


def step_divisor(head: OutputHead, step: StepNormalizer) -> int:
    """What gradients of a step are divided by, known on every stage before it runs.

    Args:
        head: of the step.
        step: its counts.
    """
    if isinstance(head, Averages) and head.averaging.mean is LossMean.SEQUENCE_MEAN:
        return step.num_target_documents
    return step.num_target_tokens


def tokens_per_chunk(head: OutputHead) -> int | None:
    """Tokens that the head's log-probs work on at once; None where it does not say."""
    return head.reading.tokens_per_chunk if isinstance(head, ReadsLogits) else None
