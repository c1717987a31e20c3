"""How losses and log-probs are computed: what is averaged, and what is kept in memory meanwhile."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job


class LossMean(StrEnum):
    """What the training loss is a mean over, in one step and over all its ranks.

    TOKEN_MEAN weighs every target token alike. SEQUENCE_MEAN weighs every document that has a
    target alike: a token counts 1 / targets of its document.
    """

    TOKEN_MEAN = "token_mean"
    SEQUENCE_MEAN = "sequence_mean"


class LogitsForm(StrEnum):
    """In which form the logits of a microbatch exist.

    MODEL_DTYPE keeps [n, V/tp] in the model's dtype and widens it chunk by chunk; FP32 keeps it
    in float32 at twice the memory of bf16; BY_CHUNKS never keeps it: hidden states are projected
    a chunk at a time, in backward again, which costs one more product with the LM head.
    The numbers are those of MODEL_DTYPE in each form, up to rounding of the products.
    """

    MODEL_DTYPE = "model_dtype"
    FP32 = "fp32"
    BY_CHUNKS = "by_chunks"


class TokenLossBy(StrEnum):
    """Who computes the loss of a token.

    MEGAPACK takes the real vocabulary only and keeps float64. MODEL is megatron-core's own
    cross-entropy, in float32 and over padded columns too: it is refused for a vocabulary that is
    padded, whose loss would depend on tp.
    """

    MEGAPACK = "megapack"
    MODEL = "model"


class OutputSettings(Job):
    """Ways to compute the same numbers.

    Attributes:
        logits: form of the logits.
        tokens_per_chunk: tokens that log-probs work on at once; None takes 32M logits.
        token_loss: who computes token losses; `model` needs logits = model_dtype.
    """

    logits: LogitsForm = LogitsForm.MODEL_DTYPE
    tokens_per_chunk: int | None = Field(default=None, ge=1)
    token_loss: TokenLossBy = TokenLossBy.MEGAPACK

    @model_validator(mode="after")
    def _model_loss_reads_whole_logits(self) -> Self:
        chosen = (self.logits, self.tokens_per_chunk)
        if self.token_loss is TokenLossBy.MODEL and chosen != (LogitsForm.MODEL_DTYPE, None):
            raise ValueError(
                "OutputSettings.token_loss = model: expected logits = model_dtype and no "
                f"tokens_per_chunk, found {self.logits.value} and {self.tokens_per_chunk}: "
                "megatron-core's loss works on whole logits. Use token_loss = megapack."
            )
        return self
