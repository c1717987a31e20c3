"""A teacher's logits in the order of the student's columns, projected or read by chunks.

Letters: n tokens of the student's rank, r of them that are this teacher's, c of a chunk, V/tp
columns of the student's rank, s of them that student and teacher share, H_t the teacher's width.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from megapack.errors import ContractError

WIDENED_VALUES = 1 << 22
"""Values of a teacher's LM head that are widened at once: 16 MiB in float32."""


# No slots: a cached property needs a place.
@dataclass(frozen=True, kw_only=True, eq=False)
class TeacherColumns:
    """What the student's columns on this tensor parallel rank stand for in a teacher's vocabulary.

    Columns that stand for nothing take no part in the divergence: both distributions are
    conditioned on the others.

    Attributes:
        column_of: int64 [V/tp], the teacher's id that each of the student's columns stands for,
            -1 for none; -1 in columns that pad the student's vocabulary. On the rank's device.
        weight: [V/tp, H_t], rows of the teacher's LM head in the student's column order, anything
            where there is none; None for a teacher whose logits are stored.
    """

    column_of: torch.Tensor
    weight: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.column_of.ndim != 1 or self.column_of.dtype != torch.int64:
            raise ContractError(
                "TeacherColumns.column_of: expected int64 [V/tp], found "
                f"{self.column_of.dtype} {tuple(self.column_of.shape)}."
            )
        if self.weight is not None and self.weight.shape[:-1] != self.column_of.shape:
            raise ContractError(
                f"TeacherColumns.weight: expected [{self.column_of.shape[0]}, H_t], one row for "
                f"each of column_of, found {tuple(self.weight.shape)}."
            )

    @cached_property
    def shared(self) -> slice | torch.Tensor:
        """The s columns that take part: the first s as a slice, or int64 [s], rising."""
        found = (self.column_of >= 0).nonzero().squeeze(1)
        first = slice(0, found.shape[0])
        return first if bool((self.column_of[first] >= 0).all()) else found

    @cached_property
    def last_shared(self) -> int:
        """The last shared column, -1 where none is."""
        found = (self.column_of >= 0).nonzero()
        return int(found[-1]) if found.shape[0] else -1

    @cached_property
    def ids(self) -> torch.Tensor:
        """int64 [s]: the teacher's ids of the shared columns."""
        return self.column_of[self.shared]

    @cached_property
    def width(self) -> int:
        """Values that the teacher's payload must have: H_t, or the highest shared id and one."""
        if self.weight is not None:
            return self.weight.shape[1]
        return int(self.ids.max()) + 1 if self.ids.shape[0] else 0


def same_ids(
    first: int, columns: int, *, student_vocab: int, teacher_vocab: int, device: torch.device
) -> torch.Tensor:
    """`TeacherColumns.column_of` of two models with one tokenizer: the ids below both sizes.

    >>> same_ids(4, 4, student_vocab=7, teacher_vocab=6, device=torch.device("cpu")).tolist()
    [4, 5, -1, -1]

    Args:
        first: first id of the student's rank.
        columns: V/tp.
        student_vocab: the student's real vocabulary.
        teacher_vocab: the teacher's real vocabulary.
        device: of the rank.
    """
    ids = torch.arange(first, first + columns, device=device)
    return torch.where(ids < min(student_vocab, teacher_vocab), ids, -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherLogits:
    """One teacher's logits at its tokens.

    Attributes:
        columns: its vocabulary in the student's columns.
        rows: int64 [r], its tokens among the n, each once; the same on all tp ranks.
        values: [n, >= H_t] hidden states, or [n, >= V_t] logits; read at `rows` only.
    """

    columns: TeacherColumns
    rows: torch.Tensor
    values: torch.Tensor

    def read(self, part: slice, dtype: torch.dtype) -> torch.Tensor:
        """[c, s]: logits of a chunk of `rows` at the shared columns; the callers' own.

        Args:
            part: of the r rows.
            dtype: to give them in.
        """
        values = self.values[self.rows[part]]
        weight = self.columns.weight
        if weight is None:
            return values.index_select(1, self.columns.ids).to(dtype)
        shared = self.columns.shared
        if isinstance(shared, slice):
            return project(values[:, : weight.shape[1]], weight[shared], dtype)
        return project(values[:, : weight.shape[1]], weight, dtype)[:, shared]


def project(hidden: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[c, columns]: hidden states times rows of an LM head, not rounded to their narrow dtype.

    A product of bfloat16 that comes out in bfloat16 is off by up to 2^-8 of a logit, 0.06 nats at
    16. Products of narrow values are exact in float32 and summed there: on CUDA by the tensor
    cores when both are of one narrow dtype, else from values that are widened, the weight a
    block of rows at a time.

    Args:
        hidden: [c, H_t], any float dtype.
        weight: [columns, H_t], any float dtype.
        dtype: float32 or float64, to compute and give logits in.
    """
    if weight.dtype == dtype:
        return F.linear(hidden.to(dtype), weight)
    if hidden.is_cuda and hidden.dtype == weight.dtype and dtype == torch.float32:
        return torch.mm(hidden, weight.t(), out_dtype=dtype)
    columns = weight.shape[0]
    logits = torch.empty((hidden.shape[0], columns), dtype=dtype, device=hidden.device)
    widened = hidden.to(dtype)
    step = max(WIDENED_VALUES // weight.shape[1], 1)
    for at in range(0, columns, step):
        block = weight[at : at + step].to(dtype)
        torch.mm(widened, block.t(), out=logits[:, at : at + step])
    return logits
