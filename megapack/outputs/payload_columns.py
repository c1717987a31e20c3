"""What a payload stores of each position, computed for one chunk of positions.

Everything comes from one reading of the chunk's logits. Letters: c positions of the chunk, V/tp =
columns of this rank, K top-k, H hidden size, V real vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from megapack.parallel.collectives import gather_first_dim
from megapack.parallel.context import ParallelContext
from megapack.parallel.lm_head import StoredLogits
from megapack.parallel.payload_dtypes import TORCH_DTYPES
from megapack.parallel.sampling import Sampling
from megapack.parallel.vocab import VocabShard, source_logprobs
from megapack.parallel.vocab_topk import topk_of
from megapack.records.payload import PayloadDtype, PayloadKind

TARGET = "target"
IDS = "ids"
TAIL = "tail"

Columns = dict[str, torch.Tensor]
"""Tensors [c] or [c, width] by name; a kind's values under its own name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionChunk:
    """What the model gave for c positions.

    Attributes:
        logits: [c, V/tp], in the model's dtype.
        labels: int64 [c], global ids; meaningless where no label counts.
        hidden: [c, H], input of the LM head; None where no kind wants it.
    """

    logits: torch.Tensor
    labels: torch.Tensor
    hidden: torch.Tensor | None


def unusable(kind: PayloadKind) -> str:
    """Name of the bool column that says at which positions a kind's values cannot be stored."""
    return f"{kind.value} unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadColumns:
    """Columns of a payload.

    Attributes:
        kinds: what is stored, and how.
        top_k: for TOPK.
        temperature: of log-probs.
        vocab_size: V.
    """

    kinds: tuple[tuple[PayloadKind, PayloadDtype], ...]
    top_k: int | None
    temperature: float
    vocab_size: int

    @torch.no_grad()
    def of(self, chunk: PositionChunk, shard: VocabShard, context: ParallelContext) -> Columns:
        """Collective over tp_group: columns of a chunk, on the rank with tp_rank 0.

        Args:
            chunk: what the model gave.
            shard: columns of this rank.
            context: this rank.

        Returns:
            On other ranks some columns may be missing.
        """
        columns = self._logprobs(chunk, shard)
        for kind, dtype in self.kinds:
            if kind is PayloadKind.HIDDEN and chunk.hidden is not None:
                columns |= _finite(kind, chunk.hidden.to(TORCH_DTYPES[dtype]))
            if kind is PayloadKind.LOGITS:
                whole = _whole_rows(chunk.logits.to(TORCH_DTYPES[dtype]), context)
                if whole is not None:
                    columns |= _finite(kind, whole[:, : self.vocab_size])
        return columns

    def _logprobs(self, chunk: PositionChunk, shard: VocabShard) -> Columns:
        """Of the labels, and the top-k where it is wanted."""
        source = StoredLogits(logits=chunk.logits)
        if self.top_k is None:
            sampling = Sampling(temperature=self.temperature)
            own = source_logprobs(source, chunk.labels, shard, sampling=sampling)
            return {TARGET: own.to(torch.float32)}
        best = topk_of(source, chunk.labels, shard, k=self.top_k, temperature=self.temperature)
        values = best.logprobs.to(TORCH_DTYPES[_dtype_of(PayloadKind.TOPK, self.kinds)])
        return {
            TARGET: best.target_logprobs.to(torch.float32),
            PayloadKind.TOPK.value: values,
            IDS: best.ids.to(torch.int32),
            TAIL: best.tail_logprobs.to(torch.float32),
            unusable(PayloadKind.TOPK): values.isnan().any(dim=-1) | best.tail_logprobs.isnan(),
        }


def _dtype_of(
    wanted: PayloadKind, kinds: Iterable[tuple[PayloadKind, PayloadDtype]]
) -> PayloadDtype:
    return next(dtype for kind, dtype in kinds if kind is wanted)


def _finite(kind: PayloadKind, values: torch.Tensor) -> Columns:
    """The values in their stored dtype, and where they are not all finite."""
    return {kind.value: values, unusable(kind): ~values.isfinite().all(dim=-1)}


def _whole_rows(logits: torch.Tensor, context: ParallelContext) -> torch.Tensor | None:
    """Collective over tp_group: [c, V with padding] on its first rank, None on the others."""
    stacked = gather_first_dim(logits, context.tp_group)
    if stacked is None or stacked.shape == logits.shape:
        return stacked
    parts = stacked.view(-1, *logits.shape)
    return parts.transpose(0, 1).reshape(logits.shape[0], -1)
