"""`VocabShard`: which columns of the logits a tensor parallel rank holds, and how it walks them.

Columns that only pad the vocabulary take no part in anything: their number depends on tp, so
that a loss over them would too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from megapack.parallel.context import Group, ParallelContext
from megapack.parallel.lm_head import wide

VALUES_PER_CHUNK = 1 << 25
"""Logits that are worked on at once: 128 MiB in float32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VocabShard:
    """The columns of the logits that this tensor parallel rank holds.

    Attributes:
        start: first vocabulary id of this rank.
        real: columns of this rank that belong to the real vocabulary, from its first on.
        group: tensor parallel group, None in one process.
        tokens_per_chunk: tokens that are worked on at once, the same on all ranks of the group;
            None takes as many as make `VALUES_PER_CHUNK` logits.
    """

    start: int
    real: int
    group: Group | None = None
    tokens_per_chunk: int | None = None

    @classmethod
    def of(
        cls,
        context: ParallelContext,
        *,
        columns: int,
        vocab_size: int,
        tokens_per_chunk: int | None = None,
    ) -> "VocabShard":
        """Shard of this rank.

        Args:
            context: this rank.
            columns: V/tp, columns that the rank holds, padding included.
            vocab_size: real vocabulary, padding not included.
            tokens_per_chunk: tokens that are worked on at once.
        """
        start = context.tp_rank * columns
        return cls(
            start=start,
            real=min(max(vocab_size - start, 0), columns),
            group=context.tp_group,
            tokens_per_chunk=tokens_per_chunk,
        )

    def chunks(self, tokens: int, *, columns: int) -> Iterator[slice]:
        """Slices that cover the tokens, the same on all ranks of the group.

        Args:
            tokens: n.
            columns: V/tp, padding included.
        """
        step = self.tokens_per_chunk or max(VALUES_PER_CHUNK // max(columns, 1), 1)
        for at in range(0, tokens, step):
            yield slice(at, min(at + step, tokens))

    def scaled(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        """[c, real]: the real columns of a chunk in the wide dtype, divided by the temperature.

        May share the logits' memory: callers do not write to it.
        """
        values = logits[:, : self.real].to(wide(logits.dtype))
        # Dividing by one costs 5% of a training step on CPU.
        return values if temperature == 1.0 else values / temperature

    def find(self, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether each target is on this rank, and its column there (0 where it is not).

        Args:
            targets: int64 [n], global ids; negative ones count as 0.

        Returns:
            bool [n] and int64 [n].
        """
        column = targets.clamp(min=0) - self.start
        inside = (column >= 0) & (column < self.real)
        return inside, torch.where(inside, column, 0)
