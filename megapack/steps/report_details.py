"""Distributions of a dataset: lengths, fill, supervised shares, sources.

Reads the columns beside the tokens, one part at a time; what is kept grows with the row length and
the number of sources, not with the data.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from megapack.layout.pack_layout import padded_lengths
from megapack.layout.runs import Int64
from megapack.records.refs import DatasetRef
from megapack.steps.row_columns import geometry
from megapack.steps.tables import committed
from megapack.store.manifest import Split

SHARE_BINS = 20
"""Bins of the supervised share, each of 5%; a share of 1 is in the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One source.

    Attributes:
        name: its name.
        documents: documents placed.
        tokens: their positions.
        targets: positions whose label counts.
        train_documents: those of its documents that stand on the training side.
        train_tokens: their positions.
    """

    name: str
    documents: int
    tokens: int
    targets: int
    train_documents: int = 0
    train_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingDetails:
    """Distributions over all placed documents and rows of a version.

    Attributes:
        lengths: int64 [T + 1], documents by number of positions.
        fill: int64 [T + 1], rows by number of real positions.
        shares: int64 [SHARE_BINS], documents by targets over positions.
        sources: by name.
    """

    lengths: Int64
    fill: Int64
    shares: Int64
    sources: tuple[SourceReport, ...]


def packing_details(ref: DatasetRef) -> PackingDetails:
    """Distributions of a dataset version.

    Raises:
        ConfigError: the version is no packed dataset.
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    version = committed(ref)
    info = version.manifest.packed_info()
    lengths = np.zeros(info.row_length + 1, np.int64)
    fill = np.zeros(info.row_length + 1, np.int64)
    shares = np.zeros(SHARE_BINS, np.int64)
    sources: dict[str, Counter[str]] = {}
    for part, frame in geometry(version):
        documents = _documents(frame, info.row_length, segment=info.segment_granularity)
        own = documents["positions"].to_numpy()
        lengths += np.bincount(own, minlength=lengths.size)
        shares += _shares(documents["targets"].to_numpy(), own)
        real = frame["lengths"].list.sum().cast(pl.Int64).to_numpy()
        fill += np.bincount(real, minlength=fill.size)
        sums = documents.group_by("source").agg(
            pl.len().alias("documents"), pl.col("positions").sum(), pl.col("targets").sum()
        )
        for name, *counts in sums.iter_rows():
            total = sources.setdefault(name, Counter())
            total.update(dict(zip(("documents", "tokens", "targets"), counts, strict=True)))
            if part.split is Split.TRAIN:
                total.update(train_documents=counts[0], train_tokens=counts[1])
    return PackingDetails(
        lengths=lengths,
        fill=fill,
        shares=shares,
        sources=tuple(SourceReport(name=name, **sources[name]) for name in sorted(sources)),
    )


def _documents(frame: pl.DataFrame, row_length: int, *, segment: int) -> pl.DataFrame:
    """One record a document: `source`, `positions` (Int64), `targets` (Int64)."""
    positions = _flat(frame["lengths"])
    per_row = frame["lengths"].list.len().to_numpy().astype(np.int64)
    slots = padded_lengths(positions, segment).astype(np.int64)
    ends = np.cumsum(slots)
    # Slot starts inside each row, then on one axis on which row r begins at r * row_length.
    before = np.append(0, ends)[np.append(0, np.cumsum(per_row))[:-1]]
    rows = np.repeat(np.arange(per_row.size), per_row)
    starts = ends - slots - before[rows] + rows * row_length
    runs = _flat(frame["target_runs"])
    run_rows = np.repeat(np.arange(per_row.size), frame["target_runs"].list.len().to_numpy())
    edges = runs + run_rows * row_length
    owner = np.searchsorted(starts, edges[0::2], side="right") - 1
    targets = np.bincount(owner, weights=edges[1::2] - edges[0::2], minlength=positions.size)
    return pl.DataFrame(
        {
            "source": frame["sources"].explode(empty_as_null=False),
            "positions": positions,
            "targets": targets.astype(np.int64),
        }
    )


def _flat(column: pl.Series) -> Int64:
    return column.explode(empty_as_null=False).cast(pl.Int64).to_numpy()


def _shares(targets: Int64, positions: Int64) -> Int64:
    bins = np.minimum(targets * SHARE_BINS // np.maximum(positions, 1), SHARE_BINS - 1)
    return np.bincount(bins, minlength=SHARE_BINS).astype(np.int64)
