"""The documents that packing leaves out, described: where they came from and what to change."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from megapack.jobs.prepare import PrepareJob
from megapack.packing.config import PackAlgorithm
from megapack.records.drops import DropReason
from megapack.steps.admission import Admission
from megapack.steps.document_index import DocumentIndex
from megapack.store.location import open_location
from megapack.store.part_reader import PartReader
from megapack.store.schema import SCHEMAS, SchemaId


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
    if reason is DropReason.DUPLICATE:
        return "the same conversation was placed before. Set pack.duplicates = keep to keep."
    if reason is DropReason.LEFT_OUT_BY_BLEND:
        return (
            "the weights of pack.blend ask for fewer documents of this source than there are. "
            "Raise the weight of the source, or choose another blend.total."
        )
    if job.pack.algorithm is PackAlgorithm.AS_GIVEN:
        return (
            f"expected the documents of one record to fit a row of {job.pack.row_length} "
            "positions, as pack.algorithm = as_given keeps them together; found that they do not. "
            "Raise pack.row_length, or pack them with algorithm = best."
        )
    return (
        f"expected at most row_length + 1 = {job.pack.row_length + 1} tokens, found {{tokens}}. "
        "Raise pack.row_length, or let tokenize.long_documents split it."
    )
