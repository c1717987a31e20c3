"""`Sampling`: how a distribution over the vocabulary is changed before log-probs are taken."""

import math
from dataclasses import dataclass

from megapack.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Temperature, then top-k, then top-p, as samplers apply them.

    A filter keeps every token whose logit is at least that of the last token it must keep: equal
    logits share one fate, so the kept set does not depend on the order of equal values, nor on
    how the vocabulary is split. Filtered tokens have log-probability -inf; the others are
    normalised among themselves.

    Attributes:
        temperature: logits are divided by it.
        top_k: keep the k largest logits; None keeps all.
        top_p: then keep the likeliest tokens until their mass reaches p; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(
                f"Sampling.temperature = {self.temperature}, expected a finite number above 0. "
                "For the most likely token only, use top_k = 1."
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(
                f"Sampling.top_k = {self.top_k}, expected at least 1, or None for no filter."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"Sampling.top_p = {self.top_p}, expected 0 < top_p <= 1.")

    @property
    def filters(self) -> bool:
        """Whether any token can be filtered out."""
        return self.top_k is not None or self.top_p < 1


PLAIN = Sampling()
"""The model's own distribution."""
