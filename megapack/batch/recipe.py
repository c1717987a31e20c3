"""From documents to one microbatch: which kind it is, and the lengths that the run asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from megapack.batch.dense import dense_row, to_dense_microbatch
from megapack.batch.documents import PositionedDocument
from megapack.batch.microbatch import MicroBatch
from megapack.batch.runtime_packing import pack_documents
from megapack.batch.self_packing import to_self_packed_microbatch
from megapack.batch.thd import to_full_row_microbatch, to_microbatch
from megapack.layout.granularity import Granularity
from megapack.parallel.context import ParallelContext
from megapack.records.packed_row import PackedRow


class BatchKind(StrEnum):
    """What a model takes.

    PACKED: a THD row, cut for context parallelism. DENSE: a rectangle of one document a row.
    SELF_PACKED: a rectangle that the model packs and cuts. FULL_ROW: a whole THD row that the
    model cuts after it has put media in.
    """

    PACKED = "packed"
    DENSE = "dense"
    SELF_PACKED = "self_packed"
    FULL_ROW = "full_row"


_BUILDERS: dict[BatchKind, Callable[[PackedRow, ParallelContext], MicroBatch]] = {
    BatchKind.PACKED: to_microbatch,
    BatchKind.DENSE: to_dense_microbatch,
    BatchKind.SELF_PACKED: to_self_packed_microbatch,
    BatchKind.FULL_ROW: to_full_row_microbatch,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchRecipe:
    """How documents become microbatches.

    Attributes:
        kind: what the model takes.
        granularity: multiples that the run needs; the width of a dense batch is a multiple of
            `granularity.row`.
        row_length: T, or the width S of a dense batch, where it must be constant; None for the
            shortest that the multiples allow.
        dense_rows: B of a dense batch where it must be constant; None for as many as documents.
        pad_id: token at padding positions.
    """

    kind: BatchKind
    granularity: Granularity
    row_length: int | None = None
    dense_rows: int | None = None
    pad_id: int = 0


def lay_documents(documents: Sequence[PositionedDocument], recipe: BatchRecipe) -> PackedRow:
    """The row of one microbatch, in the geometry that its kind has.

    Args:
        documents: in order; none for a filler microbatch.
        recipe: kind and lengths.

    Raises:
        ConfigError: a constant length does not hold the documents.
        ContractError: a constant width does not.
    """
    if recipe.kind is not BatchKind.DENSE:
        return pack_documents(
            documents,
            recipe.granularity,
            row_length=recipe.row_length,
            pad_id=recipe.pad_id,
        )
    longest = max((document.num_positions for document in documents), default=1)
    return dense_row(
        documents,
        rows=max(len(documents), 1) if recipe.dense_rows is None else recipe.dense_rows,
        width=dense_width(longest, recipe.granularity)
        if recipe.row_length is None
        else recipe.row_length,
        pad_id=recipe.pad_id,
    )


def dense_width(longest: int, granularity: Granularity) -> int:
    """Width of a dense batch: its longest document, rounded up to the row multiple."""
    return -(-longest // granularity.row) * granularity.row


def build_microbatch(row: PackedRow, kind: BatchKind, context: ParallelContext) -> MicroBatch:
    """The microbatch of a row that was laid out for its kind.

    Args:
        row: the row.
        kind: what the model takes.
        context: this rank.

    Raises:
        ConfigError: this kind cannot run at the context's layout.
    """
    return _BUILDERS[kind](row, context)
