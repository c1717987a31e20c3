"""Which parts of rows may stay when the documents changed, and what is left to pack.

Documents are told apart by id and source, and counted: one that is there twice must be in two
places. A part stays when all that it holds is still there, counted against the parts before it.
Memory: 40 bytes a document of the old version and as much for the new one. Letters: U different
documents, M places.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from megapack.layout.runs import Int64
from megapack.steps.admission import Side
from megapack.steps.document_index import KEY_SCHEMA, DocumentIndex, id_halves
from megapack.store.committed import Committed
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import PartReader

_KEY = list(KEY_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """What stays of a version, and what has to be packed.

    Attributes:
        kept: parts of rows of which every document is still there.
        dissolved: the other parts.
        new: int64, documents to pack, ascending; with repetitions.
        kept_places: places in the kept parts.
        added: places that the version before did not have.
        removed: places of the version before that nothing takes any more.
    """

    kept: tuple[Part, ...]
    dissolved: tuple[Part, ...]
    new: Side
    kept_places: int
    added: int
    removed: int


def standing_rows(
    before: Committed, location: Location, index: DocumentIndex, placed: Side
) -> Standing:
    """Compare a version's rows with the documents that there are now.

    Args:
        before: the version.
        location: its store.
        index: all documents.
        placed: those to place, ascending, with repetitions.

    Raises:
        StoreError: a part cannot be read.
        DataError: a part is damaged.
    """
    # Every different document has a number; `wanted` counts its places now.
    now = index.keys(placed)
    known = now.group_by(_KEY, maintain_order=True).len("places").with_row_index("key")
    wanted = known["places"].to_numpy().astype(np.int64)
    numbers = now.join(known, on=_KEY, how="left", maintain_order="left")["key"].to_numpy()
    parts = before.manifest.parts_of(PartKind.ROWS)
    held = _held(PartReader(location), parts, known)
    used = np.zeros(wanted.size, dtype=np.int64)
    shared = np.zeros(wanted.size, dtype=np.int64)
    stays = np.ones(len(parts), dtype=bool)
    for (at,), own in held.group_by("part", maintain_order=True):
        ours = own.drop_nulls("key")
        keys, counts = ours["key"].to_numpy(), ours["held"].to_numpy().astype(np.int64)
        shared[keys] += counts
        if ours.height < own.height or np.any(used[keys] + counts > wanted[keys]):
            stays[at] = False
        else:
            used[keys] += counts
    had = int(held["held"].sum())
    common = int(np.minimum(shared, wanted).sum())
    return Standing(
        kept=tuple(part for part, stay in zip(parts, stays, strict=True) if stay),
        dissolved=tuple(part for part, stay in zip(parts, stays, strict=True) if not stay),
        new=placed[_turns(numbers) >= used[numbers]],
        kept_places=int(used.sum()),
        added=int(placed.size) - common,
        removed=had - common,
    )


def _held(reader: PartReader, parts: Sequence[Part], known: pl.DataFrame) -> pl.DataFrame:
    """Places of each document in each part, in their order.

    Returns:
        Columns `part`, `held` (places) and `key` (the document's number, null when it is gone).
    """
    blocks = [pl.DataFrame(schema={**KEY_SCHEMA, "part": pl.Int32})]
    for at, part in enumerate(parts):
        frame = reader.read(part, columns=("document_ids", "sources"))
        flat = frame.select(pl.col("document_ids").explode(), pl.col("sources").explode())
        blocks.append(
            flat.select(
                *id_halves("document_ids"),
                pl.col("sources").alias("source"),
                pl.lit(at, pl.Int32).alias("part"),
            )
        )
    counted = pl.concat(blocks).group_by("part", *_KEY, maintain_order=True).len("held")
    return counted.join(known, on=_KEY, how="left", maintain_order="left")


def _turns(numbers: Int64) -> Int64:
    """int64 [M]: how many equal numbers stand before each.

    >>> _turns(np.array([3, 1, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(numbers, kind="stable")
    arranged = numbers[order]
    firsts = np.flatnonzero(np.diff(arranged, prepend=-1))
    lengths = np.diff(np.append(firsts, arranged.size))
    turns = np.empty(numbers.size, dtype=np.int64)
    turns[order] = np.arange(numbers.size) - np.repeat(firsts, lengths)
    return turns
