"""`TeacherPayload`: what a teacher leaves behind for one document, of one kind.

In document order, real tokens and real vocabulary only, whatever the teacher's packing and
parallel layout were. Letters: m positions of the document, H hidden size, V vocabulary, K top-k.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError

Float32 = npt.NDArray[np.float32]


class PayloadKind(StrEnum):
    """What `values` holds.

    LOGPROBS: nothing, the log-probs of the labels are all there is. TOPK: log-probs of the K
    likeliest tokens. HIDDEN: input of the LM head. LOGITS: of the whole real vocabulary, as the
    model gives them (temperature 1).
    """

    LOGPROBS = "logprobs"
    TOPK = "topk"
    HIDDEN = "hidden"
    LOGITS = "logits"


class PayloadDtype(StrEnum):
    """How `values` is stored. bfloat16 travels as its uint16 bit pattern."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def numpy(self) -> np.dtype[Any]:
        """Numpy dtype that carries it."""
        return np.dtype({"bf16": "<u2", "fp16": "<f2", "fp32": "<f4"}[self.value])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherPayload:
    """Teacher outputs of one kind for one document.

    Attributes:
        document_id: join key.
        teacher: stable index of the teacher in the manifest.
        kind: what `values` is.
        dtype: how `values` is stored.
        values: [m, 0 | K | H | V], C order, dtype as `dtype.numpy`. TOPK: nats, normalised over
            the whole real vocabulary at the payload's temperature, falling; of equal values the
            lower id comes first.
        target_logprobs: float32 [m], nats, target-aligned; NaN where no label counts.
        labels_digest: `megapack.records.document.labels_digest` of the document's positions.
        indices: int32 [m, K], global vocabulary ids, for TOPK only.
        tail_logprobs: float32 [m], nats: log of the probability of all tokens outside the top-k,
            -inf where there are none; for TOPK only.
    """

    document_id: str
    teacher: int
    kind: PayloadKind
    dtype: PayloadDtype
    values: npt.NDArray[Any]
    target_logprobs: Float32
    labels_digest: int
    indices: npt.NDArray[np.int32] | None = None
    tail_logprobs: Float32 | None = None

    def __post_init__(self) -> None:
        where = f"TeacherPayload {self.document_id}"
        if len(self.values.shape) != len(("m", "width")) or self.values.dtype != self.dtype.numpy:
            raise ContractError(
                f"{where}.values: expected [m, width] of {self.dtype.numpy}, found "
                f"{self.values.shape} of {self.values.dtype}."
            )
        if (self.values.shape[1] == 0) != (self.kind is PayloadKind.LOGPROBS):
            raise ContractError(
                f"{where}.values: expected width 0 for kind logprobs, and for no other, found "
                f"{self.values.shape[1]} for {self.kind.value}."
            )
        _check_length(self.target_logprobs, self.num_positions, f"{where}.target_logprobs")
        for name in ("indices", "tail_logprobs"):
            if (getattr(self, name) is not None) != (self.kind is PayloadKind.TOPK):
                raise ContractError(f"{where}.{name}: expected for kind topk, and for no other.")
        if self.indices is not None and self.indices.shape != self.values.shape:
            raise ContractError(
                f"{where}.indices: expected shape {self.values.shape}, found {self.indices.shape}."
            )
        if self.tail_logprobs is not None:
            _check_length(self.tail_logprobs, self.num_positions, f"{where}.tail_logprobs")

    @property
    def num_positions(self) -> int:
        """m."""
        return int(self.values.shape[0])


def _check_length(values: Float32, expected: int, where: str) -> None:
    if values.shape != (expected,):
        raise ContractError(f"{where}: expected shape {(expected,)}, found {values.shape}.")
