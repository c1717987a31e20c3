"""Where logits come from: a stored tensor, or hidden states and the LM head's weight.

Everything that looks at logits reads them by chunks of tokens through `LogitChunks`, so that it
works on both. `LmHead` projects a chunk when it is read and again in backward: the logits of all
tokens, n * V/tp values, and their gradient never exist. Price: one more product of hidden states
and weight in backward. Letters: n tokens, c tokens of a chunk, V/tp = columns of this rank, H.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

Part = slice | torch.Tensor
"""Tokens of a chunk: a slice of the n, or int64 [c], their places among the n."""


class LogitGradients(Protocol):
    """Gradients of a source's tensors, built up chunk by chunk."""

    def add(self, part: Part, gradient: torch.Tensor) -> None:
        """Take the gradient of a chunk's first columns.

        Args:
            part: the chunk; each token comes at most once.
            gradient: [c, real], wide dtype; columns behind `real` have none.
        """
        ...

    def result(self) -> tuple[torch.Tensor, ...]:
        """One gradient for each of the source's tensors."""
        ...


class LogitChunks(Protocol):
    """A source of logits."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What the logits are a differentiable function of; the first is [n, ...]."""
        ...

    @property
    def columns(self) -> int:
        """V/tp, padding included."""
        ...

    @classmethod
    def of(cls, tensors: tuple[torch.Tensor, ...]) -> Self:
        """The source over these tensors."""
        ...

    def read(self, part: Part) -> torch.Tensor:
        """[c, V/tp]: logits of a chunk, in the source's dtype.

        Callers do not write to them when the part is a slice; else they are the callers' own.
        """
        ...

    def gradients(self) -> LogitGradients:
        """Zero gradients to add to."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredLogits:
    """Logits that exist as a whole.

    Attributes:
        logits: [n, V/tp], any float dtype.
    """

    logits: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The logits."""
        return (self.logits,)

    @property
    def columns(self) -> int:
        """V/tp."""
        return self.logits.shape[1]

    @classmethod
    def of(cls, tensors: tuple[torch.Tensor, ...]) -> Self:
        """The source over (logits,)."""
        return cls(logits=tensors[0])

    def read(self, part: Part) -> torch.Tensor:
        """[c, V/tp], a view where the part is a slice."""
        return self.logits[part]

    def gradients(self) -> LogitGradients:
        """Zeros of the logits' shape and dtype."""
        return _StoredGradients(torch.zeros_like(self.logits))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LmHead:
    """Hidden states and the LM head's weight.

    Attributes:
        hidden: [n, H], all tokens of this rank (sequence parallelism undone), the same on all tp
            ranks; its gradient is this rank's share, to be summed over tp by whoever made it.
        weight: [V/tp, H], rows of this rank.
    """

    hidden: torch.Tensor
    weight: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Hidden states and weight."""
        return self.hidden, self.weight

    @property
    def columns(self) -> int:
        """V/tp."""
        return self.weight.shape[0]

    @classmethod
    def of(cls, tensors: tuple[torch.Tensor, ...]) -> Self:
        """The source over (hidden, weight)."""
        return cls(hidden=tensors[0], weight=tensors[1])

    def read(self, part: Part) -> torch.Tensor:
        """[c, V/tp], projected anew at each call."""
        return F.linear(self.hidden[part], self.weight)

    def gradients(self) -> LogitGradients:
        """Zeros; the weight's gradient is summed over chunks in float32 at least."""
        return _LmHeadGradients(
            head=self,
            hidden=torch.zeros_like(self.hidden),
            weight=torch.zeros_like(self.weight, dtype=wide(self.weight.dtype)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _StoredGradients:
    logits: torch.Tensor

    def add(self, part: Part, gradient: torch.Tensor) -> None:
        self.logits[part, : gradient.shape[1]] = gradient.to(self.logits.dtype)

    def result(self) -> tuple[torch.Tensor, ...]:
        return (self.logits,)


@dataclass(frozen=True, slots=True, eq=False)
class _LmHeadGradients:
    head: LmHead
    hidden: torch.Tensor
    weight: torch.Tensor

    def add(self, part: Part, gradient: torch.Tensor) -> None:
        real = gradient.shape[1]
        # In the logits' dtype, as the gradient of stored logits would be.
        narrow = gradient.to(self.hidden.dtype)
        self.hidden[part] = narrow @ self.head.weight[:real]
        if self.weight.dtype == narrow.dtype:
            self.weight[:real].addmm_(narrow.t(), self.head.hidden[part])
        else:
            self.weight[:real] += narrow.t() @ self.head.hidden[part]

    def result(self) -> tuple[torch.Tensor, ...]:
        return self.hidden, self.weight.to(self.head.weight.dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums over the vocabulary run in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
