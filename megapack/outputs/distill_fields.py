"""Fields of a microbatch that hold what teachers said, and how the loss reads them.

All have the leading shape of the labels; what stands where no label counts is never read.
Letters: n tokens of this rank, r of them whose label counts, K, H and V of the widest teacher.
"""

from dataclasses import dataclass

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ContractError
from megapack.parallel.payload_dtypes import TORCH_DTYPES
from megapack.parallel.teacher_columns import TeacherColumns, TeacherLogits
from megapack.records.payload import PayloadDtype

TEACHER = "teacher"
"""int64: number of the token's teacher, -1 at padding."""

TOPK_LOGPROBS = "teacher_topk_logprobs"
"""float32 [*, K], nats, -inf where there is no entry."""

TOPK_IDS = "teacher_topk_ids"
"""int64 [*, K], in the student's vocabulary, -1 where there is no entry."""

TAIL_LOGPROBS = "teacher_tail_logprobs"
"""float32, nats: log of the probability outside the entries."""

HIDDEN = "teacher_hidden"
"""[*, H], payload dtype as numpy carries it, zeros behind the teacher's own width."""

LOGITS = "teacher_logits"
"""[*, V], likewise."""

_NO_TEACHER, _NOT_COUNTED = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """The tokens whose label counts, and who teaches them.

    Attributes:
        rows: int64 [r], rising, on the host: their places among the n.
        teacher: int64 [r], on the host.
    """

    rows: torch.Tensor
    teacher: torch.Tensor


def counted_tokens(microbatch: MicroBatch) -> Counted:
    """One copy to the host, so that indices are made there and no kernel waits for another.

    Raises:
        ContractError: a token whose label counts has no teacher.
    """
    teacher = field_of(microbatch, TEACHER)
    counts = microbatch.loss_mask.reshape(-1) > 0
    host = torch.where(counts, teacher.clamp(min=_NO_TEACHER), _NOT_COUNTED).cpu()
    rows = (host != _NOT_COUNTED).nonzero().squeeze(1)
    missing = int((host == _NO_TEACHER).sum())
    if missing:
        raise ContractError(
            f"MicroBatch.fields[{TEACHER!r}]: expected a teacher at all {rows.shape[0]} positions "
            f"whose label counts, found none at {missing}, in a row of the documents "
            f"{list(microbatch.document_ids)[:3]}. Join the payloads of all documents."
        )
    return Counted(rows=rows, teacher=host[rows])


def field_of(microbatch: MicroBatch, name: str) -> torch.Tensor:
    """[n, ...]: a field without the microbatch's two leading dimensions.

    Raises:
        ContractError: the microbatch has no such field.
    """
    found = microbatch.fields.get(name)
    if found is None:
        raise ContractError(
            f"MicroBatch.fields: expected {name!r}, found {sorted(microbatch.fields)}. Give the "
            "step a stage that joins payloads of the kind that the settings name."
        )
    return found.flatten(end_dim=1)


def teacher_logits(
    microbatch: MicroBatch,
    counted: Counted,
    teachers: tuple[TeacherColumns, ...],
    dtype: PayloadDtype,
) -> tuple[TeacherLogits, ...]:
    """Each teacher's logits at its tokens.

    Args:
        microbatch: with the field of the payload's kind.
        counted: its tokens.
        teachers: by number; all with a weight, or none.
        dtype: of the payload.

    Raises:
        ContractError: a token names a teacher that is not there, or the field has another dtype
            or is too narrow.
    """
    stored = all(teacher.weight is None for teacher in teachers)
    name = LOGITS if stored else HIDDEN
    values = field_of(microbatch, name)
    meant = TORCH_DTYPES[dtype]
    carried = torch.uint16 if dtype is PayloadDtype.BF16 else meant
    widest = max(teacher.width for teacher in teachers)
    if values.dtype != carried or values.shape[1] < widest:
        raise ContractError(
            f"MicroBatch.fields[{name!r}]: expected {carried} of width {widest} at least for a "
            f"payload of {dtype.value}, found {values.dtype} of width {values.shape[1]}."
        )
    if bool((counted.teacher >= len(teachers)).any()):
        raise ContractError(
            f"MicroBatch.fields[{TEACHER!r}]: expected numbers below {len(teachers)}, found "
            f"{int(counted.teacher.max())}. Give the head the columns of every teacher."
        )
    return tuple(
        TeacherLogits(
            columns=teacher,
            rows=counted.rows[counted.teacher == number].to(values.device),
            values=values.view(meant),
        )
        for number, teacher in enumerate(teachers)
    )
