"""Fields of a microbatch that hold what teachers said, and how the loss reads them.

All have the leading shape of the labels; what stands where no label counts is never read.
Letters: n tokens of this rank, r of them whose label counts, K, H and V of the widest teacher.
"""

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ContractError
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

_CARRIED_AND_MEANT = {
    PayloadDtype.BF16: (torch.uint16, torch.bfloat16),
    PayloadDtype.FP16: (torch.float16, torch.float16),
    PayloadDtype.FP32: (torch.float32, torch.float32),
}


def counted_rows(microbatch: MicroBatch) -> torch.Tensor:
    """int64 [r], rising: the tokens whose label counts.

    Raises:
        ContractError: one of them has no teacher.
    """
    rows = (microbatch.loss_mask.reshape(-1) > 0).nonzero().squeeze(1)
    missing = int((_teacher_of(microbatch)[rows] < 0).sum())
    if missing:
        raise ContractError(
            f"MicroBatch.fields[{TEACHER!r}]: expected a teacher at all {rows.shape[0]} positions "
            f"whose label counts, found none at {missing}, in a row of the documents "
            f"{list(microbatch.document_ids)[:3]}. Join the payloads of all documents."
        )
    return rows


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
    rows: torch.Tensor,
    teachers: tuple[TeacherColumns, ...],
    dtype: PayloadDtype,
) -> tuple[TeacherLogits, ...]:
    """Each teacher's logits at its tokens among `rows`.

    Args:
        microbatch: with the field of the payload's kind.
        rows: int64 [r], from `counted_rows`.
        teachers: by number; all with a weight, or none.
        dtype: of the payload.

    Raises:
        ContractError: a token names a teacher that is not there, or the field has another dtype
            or is too narrow.
    """
    stored = all(teacher.weight is None for teacher in teachers)
    name = LOGITS if stored else HIDDEN
    values = field_of(microbatch, name)
    carried, meant = _CARRIED_AND_MEANT[dtype]
    widest = max(teacher.width for teacher in teachers)
    if values.dtype != carried or values.shape[1] < widest:
        raise ContractError(
            f"MicroBatch.fields[{name!r}]: expected {carried} of width {widest} at least for a "
            f"payload of {dtype.value}, found {values.dtype} of width {values.shape[1]}."
        )
    of = _teacher_of(microbatch)[rows]
    _check_numbers(of, len(teachers))
    return tuple(
        TeacherLogits(columns=teacher, rows=rows[of == number], values=values.view(meant))
        for number, teacher in enumerate(teachers)
    )


def _teacher_of(microbatch: MicroBatch) -> torch.Tensor:
    return field_of(microbatch, TEACHER)


def _check_numbers(of: torch.Tensor, teachers: int) -> None:
    if int((of >= teachers).sum()):
        raise ContractError(
            f"MicroBatch.fields[{TEACHER!r}]: expected numbers below {teachers}, found "
            f"{int(of.max())}. Give the head the columns of every teacher."
        )
