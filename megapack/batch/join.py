"""Several rows as one: a microbatch of more than one row is a row of B*T positions.

Slots stand back to back in row order, all tails at the end, so that everything that works on one
row works on several, however ragged their boundaries are. Letters: B rows of T positions,
N segments over all of them.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from megapack.errors import ContractError
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import Int32, locked
from megapack.records.packed_row import PackedRow


def join_rows(rows: Sequence[PackedRow]) -> PackedRow:
    """One row of all documents of the rows, in order.

    Args:
        rows: at least one row; filler rows add to the tail alone. One row is returned as it is.

    Raises:
        ContractError: there is no row, or their multiples differ.
    """
    if not rows:
        raise ContractError("join_rows: expected at least one row, found none.")
    first = rows[0]
    if len(rows) == 1:
        return first
    multiples = {(row.layout.granularity.segment, row.layout.granularity.row) for row in rows}
    if len(multiples) > 1:
        raise ContractError(
            f"join_rows: expected rows of one granularity, found (segment, row) of "
            f"{sorted(multiples)}."
        )
    layout = PackLayout(
        row_length=sum(row.layout.row_length for row in rows),
        lengths=np.concatenate([row.layout.lengths for row in rows]),
        granularity=first.layout.granularity,
    )
    ends, final = _end_labels(rows, layout)
    sources = tuple(source for row in rows for source in row.sources)
    return PackedRow.trusted(
        tokens=_tokens(rows),
        # Runs of neighbours may touch where a document's last position counts; each stays one.
        target_runs=locked(
            np.concatenate(
                [row.target_runs + start for row, start in zip(rows, _starts(rows), strict=True)]
            )
        ),
        layout=layout,
        names=(
            tuple(one for row in rows for one in row.document_ids),
            sources if len(sources) == layout.num_segments else (),
        ),
        final_label=final,
        inner_labels=ends,
    )


def groups_of(rows: Sequence[PackedRow], size: int) -> Iterator[Sequence[PackedRow]]:
    """The rows, `size` at a time."""
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


def _starts(rows: Sequence[PackedRow]) -> list[int]:
    """Position at which each row's slots begin."""
    used = np.cumsum([0, *(row.layout.num_slot_tokens for row in rows)])
    return [int(start) for start in used[:-1]]


def _tokens(rows: Sequence[PackedRow]) -> Int32:
    slots = [row.tokens[: row.layout.num_slot_tokens] for row in rows]
    tails = [row.tokens[row.layout.num_slot_tokens :] for row in rows]
    return locked(np.concatenate([*slots, *tails]))


def _end_labels(
    rows: Sequence[PackedRow], layout: PackLayout
) -> tuple[tuple[tuple[int, int], ...], int | None]:
    """Labels of last positions, moved along with their documents."""
    found: list[tuple[int, int]] = []
    for row, start in zip(rows, _starts(rows), strict=True):
        found += [(position + start, label) for position, label in row.inner_labels]
        if row.final_label is not None:
            found.append((start + row.layout.row_length - 1, row.final_label))
    return split_end_labels(found, layout.row_length)


def split_end_labels(
    found: Sequence[tuple[int, int]], row_length: int
) -> tuple[tuple[tuple[int, int], ...], int | None]:
    """Inner labels, and the label of the row's last position.

    Args:
        found: (position, label) of last positions that have a label.
        row_length: T.
    """
    inner = tuple((position, label) for position, label in found if position != row_length - 1)
    final = [label for position, label in found if position == row_length - 1]
    return inner, final[0] if final else None
