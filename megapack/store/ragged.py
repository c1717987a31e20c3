"""Lists of integers, flat and as polars columns: the two forms and the way between them.

Flat form: int32 values of all records one after another, and int64 offsets [records + 1]. Offsets
are 64-bit, because a part may hold more than 2**31 values.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def offsets_of(lengths: npt.ArrayLike) -> Int64:
    """int64 [n+1]: where each record begins in the flat values; the last one is their number.

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    offsets = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def list_series(name: str, arrays: Sequence[Int32]) -> pl.Series:
    """A List(Int32) column with one array a record. No Python runs per value.

    Args:
        name: column name.
        arrays: int32 [length], one a record; may be empty.
    """
    count = len(arrays)
    lengths = np.fromiter((array.size for array in arrays), dtype=np.int64, count=count)
    empty = pl.Series(name, [[]] * count, dtype=pl.List(pl.Int32))
    if not lengths.any():
        return empty
    records = pl.DataFrame({"record": np.arange(count, dtype=np.int64)})
    # Grouping consecutive equal numbers builds all lists in one pass, 10x faster than a list of
    # arrays; records without values have no group and come back through the join.
    grouped = (
        pl.DataFrame(
            {
                "record": np.repeat(np.arange(count, dtype=np.int64), lengths),
                name: np.concatenate(arrays).astype(np.int32, copy=False),
            }
        )
        .with_columns(pl.col("record").set_sorted())
        .group_by("record", maintain_order=True)
        .agg(name)
    )
    joined = records.join(grouped, on="record", how="left", maintain_order="left")[name]
    return joined.fill_null(pl.Series([[]], dtype=pl.List(pl.Int32)).first()).rechunk()


def flat_of(column: pl.Series) -> tuple[Int32, Int64]:
    """Values and offsets of a List(Int32) column without nulls."""
    lengths = column.list.len().to_numpy()
    values = column.filter(column.list.len() > 0).explode().to_numpy()
    return values.astype(np.int32, copy=False), offsets_of(lengths)


def lists_of(column: pl.Series) -> list[Int32]:
    """One int32 array a record, views of the flat values."""
    values, offsets = flat_of(column)
    edges = offsets.tolist()
    return [values[start:end] for start, end in pairwise(edges)]
