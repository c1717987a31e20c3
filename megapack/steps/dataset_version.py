"""Rows and drops to parts, and parts to a committed version: what pack and refresh share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from megapack.errors import DataError
from megapack.jobs.prepare import PrepareJob
from megapack.packing.rows import RowShape
from megapack.records.drops import DropLedger, DropReason, check_conservation
from megapack.steps.admission import Admission, Side
from megapack.steps.described_drops import drop_frames
from megapack.steps.drop_examples import place
from megapack.steps.drops_part import write_frames
from megapack.steps.gather import Gathered
from megapack.steps.lay_rows import OnRows, lay_rows
from megapack.steps.placement import place_documents
from megapack.steps.recipe import recipe_of
from megapack.steps.split_sides import split_sides
from megapack.store.document_frames import frame_to_drops
from megapack.store.location import Location
from megapack.store.manifest import Contents, Part, Split
from megapack.store.schema import PackedInfo, SchemaId
from megapack.store.sinks import RowSink, row_counts

_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Where and how a version is written.

    Attributes:
        location: the dataset's store.
        job: the preparation job.
        info: what all rows share.
        memory_bytes: bytes of tokens to hold at once.
        on_rows: told how many rows are done, and how many there will be.
    """

    location: Location
    job: PrepareJob
    info: PackedInfo
    memory_bytes: int
    on_rows: OnRows | None = None


def _write_rows(writing: Writing, gathered: Gathered, placed: Side) -> list[Part]:
    """Pack documents among themselves into new parts, training side first.

    Args:
        writing: where and how.
        gathered: all documents.
        placed: which of them, ascending.

    Raises:
        DataError: a table is damaged.
        StoreError: the store failed, or the scratch space is full.
    """
    info = writing.info
    placement = place_documents(
        gathered.index,
        split_sides(gathered.index, placed, writing.job),
        info=info,
        config=writing.job.pack,
    )
    shape = RowShape(row_length=info.row_length, granularity=info.granularity, pad_id=info.pad_id)
    laid = lay_rows(gathered.index, placement, shape, memory_bytes=writing.memory_bytes)
    sinks = {
        split: RowSink(writing.location, info=info, split=split)
        for split in (Split.TRAIN, Split.VALIDATION)
    }
    for done, row in enumerate(laid, start=1):
        sinks[placement.split(done - 1)].add(row)
        if writing.on_rows is not None:
            writing.on_rows(done, placement.num_rows)
    return [part for sink in sinks.values() for part in sink.close()]


def write_version(
    writing: Writing,
    gathered: Gathered,
    admission: Admission,
    *,
    new: Side,
    kept: Sequence[Part] = (),
) -> Contents:
    """Write rows and drops; the contents of a version, without its address.

    Args:
        writing: where and how.
        gathered: all documents.
        admission: what becomes of each.
        new: places of documents to pack into new parts, ascending document numbers.
        kept: parts of an earlier version that hold all other places.

    Raises:
        DataError: no document can be placed on the training side, or a table is damaged.
        ContractError: documents got lost on the way.
        StoreError: the store failed.
    """
    job = writing.job
    _check_trainable(gathered, admission, job)
    check_conservation(
        documents_in=gathered.documents_in,
        placed=int(admission.placed.size) - admission.num_copies,
        drops=gathered.dropped.plus(admission.counts),
        where="pack",
    )
    drops, ledger = write_frames(writing.location, _all_drops(gathered, admission, job))
    rows = [*kept, *_write_rows(writing, gathered, new)]
    placed = sum(part.counts["num_documents"] for part in rows)
    check_conservation(
        documents_in=int(admission.placed.size), placed=placed, drops=DropLedger(), where="rows"
    )
    ids = gathered.index.keys(admission.placed).select("high", "low")
    return Contents(
        schema_id=SchemaId.PACKED_ROWS,
        kind="dataset",
        parts=[*rows, *drops],
        counts={
            "documents_in": gathered.documents_in,
            "documents_placed": placed,
            "documents_repeated": placed - ids.n_unique(),
            "documents_copied": admission.num_copies,
            **row_counts(rows),
        },
        drops=ledger,
        settings=job.model_dump(mode="json"),
        parents={ref.uri: ref.digest for ref in gathered.tables},
        recipe=recipe_of(job, writing.info),
        files=gathered.files,
        packed=writing.info,
    )


def _all_drops(gathered: Gathered, admission: Admission, job: PrepareJob) -> Iterator[pl.DataFrame]:
    """Drops of the steps before, then those of this one, each in reading order."""
    yield from gathered.drop_frames()
    yield from drop_frames(gathered.index, admission, job)


def _check_trainable(gathered: Gathered, admission: Admission, job: PrepareJob) -> None:
    """Refuse a dataset that nothing can be trained on.

    Raises:
        DataError: the training side has no documents.
        StoreError: a table cannot be read.
    """
    train, held_out = split_sides(gathered.index, admission.placed, job)
    if train.size:
        return
    first: dict[DropReason, str] = {}
    ledger = DropLedger()
    for frame in _all_drops(gathered, admission, job):
        drops = list(frame_to_drops(frame))
        ledger = ledger.plus(DropLedger.of(drops))
        for drop in drops:
            example = f"{place(drop)}: {drop.detail}"
            first.setdefault(drop.reason, f"\n  first {drop.reason.value}: {example}")
    if held_out.size:
        found = (
            f"all that are placed ({held_out.size}) on the validation side (validation_fraction = "
            f"{job.validation_fraction})"
        )
        advice = "Lower validation_fraction, or add documents."
    elif ledger.total:
        found, advice = "none placed", "Change what the first drops below name, or the sources."
    else:
        looked = sorted(gathered.files) or [source.uri for source in job.sources]
        more = f" and {len(looked) - _NAMED} more" if len(looked) > _NAMED else ""
        found = f"no record at all in {', '.join(looked[:_NAMED])}{more}"
        advice = "Check that the sources hold conversations."
    counts = ledger.documents
    dropped = ", ".join(f"{reason.value} {count}" for reason, count in counts.items())
    examples = "".join(first[reason] for reason in counts)
    raise DataError(
        f"pack: expected documents on the training side, found {found}; dropped: "
        f"{dropped or 'none'}. No version was committed. {advice}{examples}"
    )
