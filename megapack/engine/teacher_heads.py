"""What a student's tensor parallel rank needs of each teacher's vocabulary and LM head.

Of a teacher's LM head only the files that hold rows of this rank are read, one at a time.
Letters: V/tp columns of the rank, H width of the teacher.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from megapack.parallel.context import ParallelContext
from megapack.parallel.payload_dtypes import TORCH_DTYPES
from megapack.parallel.teacher_columns import TeacherColumns
from megapack.records.payload import PayloadKind
from megapack.steps.distill.teachers import OpenTeacher
from megapack.steps.distill.vocabulary import NO_TOKEN, Int64
from megapack.store.lm_head import SHARD_ROWS, LmHeadReader


def teacher_columns(
    teachers: Sequence[OpenTeacher],
    *,
    kind: PayloadKind,
    columns: int,
    context: ParallelContext,
) -> tuple[TeacherColumns, ...]:
    """Columns of all teachers, in order; none for top-k. Stages without outputs have no columns.

    Args:
        teachers: of the job.
        kind: payload that the loss reads.
        columns: V/tp, padding included.
        context: this rank.

    Raises:
        DataError: a shard of an LM head is damaged.
        StoreError: the store failed.
    """
    if kind is PayloadKind.TOPK:
        return ()
    here = columns if context.is_last_stage else 0
    found = []
    for teacher in teachers:
        column_of = column_ids(teacher, first=context.tp_rank * columns, columns=here)
        weight = None
        if kind is PayloadKind.HIDDEN:
            weight = lm_head_rows(teacher.payloads.lm_head(), column_of).to(context.device)
        found.append(
            TeacherColumns(column_of=torch.from_numpy(column_of).to(context.device), weight=weight)
        )
    return tuple(found)


def column_ids(teacher: OpenTeacher, *, first: int, columns: int) -> Int64:
    """int64 [V/tp]: the teacher's id of each column, NO_TOKEN for none and for padding."""
    teacher_of = teacher.vocabulary.teacher_of
    ids = np.full(columns, NO_TOKEN, dtype=np.int64)
    own = teacher_of[first : first + columns]
    ids[: own.size] = own
    return ids


def lm_head_rows(head: LmHeadReader, ids: Int64) -> torch.Tensor:
    """[V/tp, H]: rows of an LM head by the teacher's ids, in its dtype; zeros for NO_TOKEN.

    Args:
        head: of the teacher.
        ids: int64 [V/tp].

    Raises:
        DataError: a shard is damaged.
        StoreError: the store failed.
    """
    weight = torch.zeros(ids.size, head.width, dtype=TORCH_DTYPES[head.dtype])
    order = np.argsort(ids, kind="stable")
    for first, last, places in _blocks(ids, order):
        rows = torch.from_numpy(np.ascontiguousarray(head.rows(first, last)))
        wanted = torch.from_numpy(ids[places] - first)
        weight[torch.from_numpy(places)] = rows.view(weight.dtype)[wanted]
    return weight


def _blocks(ids: Int64, order: Int64) -> Iterator[tuple[int, int, Int64]]:
    """Ranges of teacher rows, and the columns whose rows lie in each."""
    sorted_ids = ids[order]
    at = int(np.searchsorted(sorted_ids, 0))
    while at < ids.size:
        first = int(sorted_ids[at])
        # Files begin at multiples, so that each is read once.
        end = int(np.searchsorted(sorted_ids, (first // SHARD_ROWS + 1) * SHARD_ROWS))
        yield first, int(sorted_ids[end - 1]) + 1, order[at:end]
        at = end
