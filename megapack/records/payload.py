"""`TeacherPayload`: what a teacher leaves behind for one document.

In document order, real tokens and real vocabulary only, whatever the teacher's packing and
parallel layout were. Letters: m positions of the document, H hidden size, V vocabulary, K top-k.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError


class PayloadKind(StrEnum):
    """What `values` holds."""

    HIDDEN = "hidden"
    LOGITS = "logits"
    TOPK = "topk"


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
    """Teacher outputs for one document.

    Attributes:
        document_id: join key.
        teacher: stable index of the teacher in the manifest.
        kind: what `values` is.
        dtype: how `values` is stored.
        values: [m, H | V | K], C order, dtype as `dtype.numpy`.
        target_logprobs: float32 [m], nats, target-aligned; NaN where no label counts.
        labels_digest: `megapack.records.document.labels_digest` of the document's positions.
        indices: int32 [m, K], global vocabulary ids, for TOPK only.
    """

    document_id: str
    teacher: int
    kind: PayloadKind
    dtype: PayloadDtype
    values: npt.NDArray[Any]
    target_logprobs: npt.NDArray[np.float32]
    labels_digest: int
    indices: npt.NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        where = f"TeacherPayload {self.document_id}"
        if len(self.values.shape) != len(("m", "width")) or self.values.dtype != self.dtype.numpy:
            raise ContractError(
                f"{where}.values: expected [m, width] of {self.dtype.numpy}, found "
                f"{self.values.shape} of {self.values.dtype}."
            )
        if self.target_logprobs.shape != self.values.shape[:1]:
            raise ContractError(
                f"{where}.target_logprobs: expected shape {self.values.shape[:1]}, found "
                f"{self.target_logprobs.shape}."
            )
        if (self.indices is not None) != (self.kind is PayloadKind.TOPK):
            raise ContractError(f"{where}.indices: expected for kind topk, and for no other.")
        if self.indices is not None and self.indices.shape != self.values.shape:
            raise ContractError(
                f"{where}.indices: expected shape {self.values.shape}, found {self.indices.shape}."
            )

    @property
    def num_positions(self) -> int:
        """m."""
        return int(self.values.shape[0])
