"""Which documents are placed, on which side, and why each of the others is not.

Decided on entry, over flat arrays; nothing is left out later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from megapack.jobs.prepare import PrepareJob
from megapack.layout.runs import Int64
from megapack.packing.config import Duplicates
from megapack.packing.sides import held_out
from megapack.records.drops import DropLedger, DropReason
from megapack.steps.document_index import DocumentIndex
from megapack.store.location import open_location
from megapack.store.part_reader import PartReader
from megapack.store.schema import SCHEMAS, SchemaId

Side = Int64
"""int64 [M]: document numbers, ascending; one that is placed twice stands there twice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Admission:
    """What becomes of each document.

    Attributes:
        placed: int64 [M], ascending document numbers; one that a blend repeats stands there
            several times.
        dropped: int64, ascending document numbers by reason.
    """

    placed: Side
    dropped: dict[DropReason, Int64]

    @property
    def counts(self) -> DropLedger:
        """Documents that are not placed, by reason; without their tokens."""
        return DropLedger(
            documents={reason: numbers.size for reason, numbers in self.dropped.items()}
        )

    @property
    def num_copies(self) -> int:
        """Places beyond the first of each document."""
        return int(self.placed.size - np.count_nonzero(np.diff(self.placed, prepend=-1)))


def admit(index: DocumentIndex, job: PrepareJob) -> Admission:
    """Decide which documents are placed.

    Args:
        index: all documents.
        job: the preparation job.
    """
    too_long = index.num_tokens > job.pack.row_length + 1
    repeated = np.zeros(index.size, dtype=bool)
    if job.pack.duplicates is Duplicates.DROP:
        fitting = np.flatnonzero(~too_long)
        ids = pl.DataFrame({"high": index.high[fitting], "low": index.low[fitting]})
        first = ids.select(pl.struct("high", "low").is_first_distinct()).to_series()
        repeated[fitting] = ~first.to_numpy()
    masks = {DropReason.LONGER_THAN_ROW: too_long, DropReason.DUPLICATE: repeated}
    return Admission(
        placed=np.flatnonzero(~too_long & ~repeated),
        dropped={reason: np.flatnonzero(mask) for reason, mask in masks.items() if mask.any()},
    )


def sides(index: DocumentIndex, placed: Side, job: PrepareJob) -> tuple[Side, Side]:
    """Documents of the training side, then of the validation side."""
    out = held_out(index.high[placed], job.validation_fraction)
    return placed[~out], placed[out]


def drop_frames(
    index: DocumentIndex, admission: Admission, job: PrepareJob
) -> Iterator[pl.DataFrame]:
    """The documents that are not placed, described, in reading order.

    Yields:
        Frames of `megapack.drops/1`, one for each table part that has some.

    Raises:
        StoreError: a table cannot be read.
    """
    reasons = list(admission.dropped)
    numbers = np.concatenate([np.zeros(0, np.int64), *admission.dropped.values()])
    why = np.repeat(np.arange(len(reasons)), [admission.dropped[one].size for one in reasons])
    order = np.argsort(numbers, kind="stable")
    numbers, why = numbers[order], why[order]
    details = {reason: _detail(reason, job) for reason in reasons}
    done = 0
    for owner, own in index.by_part(numbers):
        reason = [reasons[at] for at in why[done : done + own.size].tolist()]
        done += own.size
        columns = ("uri", "line", "document_id", "num_tokens")
        frame = PartReader(open_location(owner.uri)).read(owner.part, columns=columns)
        told = frame[index.record[own].tolist()].with_columns(
            pl.Series("reason", [one.value for one in reason]),
            pl.Series("detail", [details[one] for one in reason]),
            pl.col("num_tokens").cast(pl.Int64).alias("tokens"),
        )
        detail = pl.col("detail").str.replace(
            "{tokens}", pl.col("tokens").cast(pl.String), literal=True
        )
        yield told.with_columns(detail).select(SCHEMAS[SchemaId.DROPS].names())


def _detail(reason: DropReason, job: PrepareJob) -> str:
    if reason is DropReason.LONGER_THAN_ROW:
        return (
            f"expected at most row_length + 1 = {job.pack.row_length + 1} tokens, found "
            "{tokens}. Raise pack.row_length, or let tokenize.long_documents split it."
        )
    return "the same conversation was placed before. Set pack.duplicates = keep to keep."
