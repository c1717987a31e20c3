"""Records: what heads hand over for each document, on the host, in document order, real length.

Letters: m = positions of the document, K = top-k.
"""

from dataclasses import dataclass

import torch

from megapack.records.payload import TeacherPayload
from megapack.records.routed_experts import RoutedExperts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRecord:
    """Log-probabilities of one document.

    Attributes:
        document_id: key.
        target_logprobs: float32 [m] on the host, nats, target-aligned; NaN where no label counts.
    """

    document_id: str
    target_logprobs: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopkRecord:
    """The likeliest tokens at each position of one document.

    Attributes:
        document_id: key.
        values: float32 [m, K] on the host, falling; log-probs over the whole vocabulary in nats,
            or logits, as the head says.
        token_ids: int32 [m, K], global ids; of equal values the lower id comes first.
        target_logprobs: float32 [m], nats, target-aligned; NaN where no label counts.
    """

    document_id: str
    values: torch.Tensor
    token_ids: torch.Tensor
    target_logprobs: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueRecord:
    """One number a position of one document.

    Attributes:
        document_id: key.
        values: float32 [m] on the host, token-aligned.
    """

    document_id: str
    values: torch.Tensor


Record = TeacherPayload | TokenRecord | TopkRecord | ValueRecord | RoutedExperts
