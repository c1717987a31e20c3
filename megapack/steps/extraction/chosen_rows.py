"""Which rows an extraction runs, and which of their documents it writes.

In stored order, training split first; a document that stands in several places is written where
it stands first, and a row with nothing to write is not run. Reads narrow columns of every part.
Memory: 21 bytes a document, and once 16 more to tell documents apart. Letters: R rows that are
run, D documents in them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from megapack.errors import ConfigError
from megapack.jobs.extract import ExtractSettings
from megapack.layout.runs import Bool, Int32, Int64
from megapack.steps.document_index import id_halves
from megapack.steps.row_columns import placed_documents
from megapack.store.committed import Committed
from megapack.store.manifest import Split

SPLITS = (Split.TRAIN, Split.VALIDATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlace:
    """A row that is run.

    Attributes:
        split: side of the split.
        number: of the row inside it.
        written: of its documents, by segment.
    """

    split: Split
    number: int
    written: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenRows:
    """Rows in stored order.

    Attributes:
        numbers: int64 [R], number of each row inside its split.
        num_train: rows of the training split; they come first.
        offsets: int64 [R+1], where the documents of each row begin.
        written: bool [D], documents that are written.
        lengths: int32 [D], positions of each document.
    """

    numbers: Int64
    num_train: int
    offsets: Int64
    written: Bool
    lengths: Int32

    @property
    def num_rows(self) -> int:
        """R."""
        return int(self.numbers.size)

    @property
    def num_documents(self) -> int:
        """Documents that are written."""
        return int(self.written.sum())

    @property
    def num_positions(self) -> int:
        """Positions of the documents that are written."""
        return int(self.lengths[self.written].sum(dtype=np.int64))

    @property
    def tokens_run(self) -> int:
        """Real tokens that pass the teacher: those of whole rows."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def pairs_run(self) -> int:
        """Query-key pairs of causal attention over those tokens."""
        lengths = self.lengths.astype(np.int64)
        return int((lengths * (lengths + 1) // 2).sum())

    def places(self, first: int, last: int) -> Iterator[RowPlace]:
        """Rows `first` to `last`, the last one not included."""
        for at in range(first, min(last, self.num_rows)):
            yield RowPlace(
                split=SPLITS[0] if at < self.num_train else SPLITS[1],
                number=int(self.numbers[at]),
                written=tuple(self.written[self.offsets[at] : self.offsets[at + 1]].tolist()),
            )


def choose_rows(dataset: Committed, settings: ExtractSettings) -> ChosenRows:
    """Rows and documents of an extraction.

    Args:
        dataset: a packed dataset.
        settings: its `max_rows` and `sources`.

    Raises:
        ConfigError: there are none, or the dataset has no source of a name.
        StoreError: a part is missing, or the store failed.
        DataError: a part is damaged.
    """
    flat = pl.concat([_documents(dataset, split, settings.max_rows) for split in SPLITS])
    if flat.is_empty():
        raise ConfigError(f"{dataset.uri}: expected rows, found none. Add documents.")
    wanted = _of_sources(flat, settings.sources, where=dataset.uri)
    firsts = wanted.filter(wanted.select(pl.struct("high", "low").is_first_distinct()).to_series())
    written = np.zeros(flat.height, dtype=np.bool_)
    written[firsts["at"].to_numpy()] = True
    return _rows_with(flat, written)


def _documents(dataset: Committed, split: Split, max_rows: int | None) -> pl.DataFrame:
    """One record a document: `validation`, `row` inside the split, key, source, length, place."""
    schema = {
        "validation": pl.Boolean,
        "row": pl.Int64,
        "length": pl.Int32,
        "source": pl.Categorical,
        "high": pl.UInt64,
        "low": pl.UInt64,
    }
    chosen = (
        pl.lit(split is Split.VALIDATION).alias("validation"),
        pl.col("row"),
        pl.col("length"),
        pl.col("source").cast(pl.Categorical),
        *id_halves(),
    )
    frames = placed_documents(dataset, split, max_rows=max_rows)
    return pl.concat([pl.DataFrame(schema=schema), *(frame.select(chosen) for frame in frames)])


def _of_sources(flat: pl.DataFrame, sources: tuple[str, ...] | None, *, where: str) -> pl.DataFrame:
    """The documents of some sources, with their number `at` among all."""
    numbered = flat.with_row_index("at")
    if sources is None:
        return numbered
    known = set(flat["source"].cast(pl.String).unique().drop_nulls().to_list())
    if missing := [name for name in sources if name not in known]:
        raise ConfigError(
            f"ExtractSettings.sources: {where} has no rows of {', '.join(missing)} among those "
            f"chosen, found sources {', '.join(sorted(known)) or 'without names'}. Name one of "
            "these, or raise max_rows."
        )
    return numbered.filter(pl.col("source").cast(pl.String).is_in(sources))


def _rows_with(flat: pl.DataFrame, written: Bool) -> ChosenRows:
    """The rows that hold a document to write, with all of their documents."""
    validation, row = flat["validation"].to_numpy(), flat["row"].to_numpy()
    begins = np.flatnonzero(
        np.diff(row, prepend=-1).astype(np.bool_)
        | np.diff(validation.astype(np.int8), prepend=0).astype(np.bool_)
    )
    ends = np.append(begins, row.size)[1:]
    kept = np.add.reduceat(written, begins, dtype=np.int64) > 0
    documents = np.repeat(kept, ends - begins)
    return ChosenRows(
        numbers=row[begins][kept].astype(np.int64),
        num_train=int((~validation[begins][kept]).sum()),
        offsets=np.concatenate([[0], np.cumsum((ends - begins)[kept])]).astype(np.int64),
        written=written[documents],
        lengths=flat["length"].to_numpy()[documents],
    )
