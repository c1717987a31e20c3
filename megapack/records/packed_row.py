"""`PackedRow`: one fixed-length row of documents, shifted once and for all.

Tokens are token-aligned; target runs are target-aligned: position t counts when labels[t] does.
Nothing after this class shifts again. Letters: N segments, T = row_length.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.layout.row_arrays import RowArrays
from megapack.layout.runs import Bool, Int32, Int64, check_runs, count_targets, locked


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedRow:
    """Documents laid into the slots of one row.

    Attributes:
        tokens: int32 [T]; slot padding and tail hold the dataset's pad id.
        target_runs: int32 [2R], target-aligned runs over row positions. No run contains the last
            real position of a segment, except the row's last one when `final_label` is set.
        layout: geometry.
        document_ids: N ids, in segment order.
        sources: N source names, in segment order.
        final_label: label of position T-1 when the row's one document has T+1 tokens, the last
            of them supervised; None otherwise.
        inner_labels: (position, label) of the last positions of other segments whose documents
            have one token more than they have positions. Stored rows have none: they come about
            where rows are joined or laid out anew for a microbatch (`megapack.batch`).
    """

    tokens: Int32
    target_runs: Int32
    layout: PackLayout
    document_ids: tuple[str, ...]
    sources: tuple[str, ...] = ()
    final_label: int | None = None
    inner_labels: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("tokens", "target_runs"):
            object.__setattr__(self, name, locked(getattr(self, name)))
        length = self.layout.row_length
        if self.tokens.size != length:
            raise ContractError(
                f"PackedRow.tokens: expected row_length = {length}, found {self.tokens.size}."
            )
        for name in ("document_ids", "sources"):
            found = len(getattr(self, name))
            if found != self.layout.num_segments and not (name == "sources" and found == 0):
                raise ContractError(
                    f"PackedRow.{name}: expected {self.layout.num_segments}, one a segment, "
                    f"found {found}."
                )
        check_runs(self.target_runs, low=0, high=length, where="PackedRow.target_runs")
        self._check_boundaries()

    @classmethod
    def trusted(
        cls,
        *,
        tokens: Int32,
        target_runs: Int32,
        layout: PackLayout,
        names: tuple[tuple[str, ...], tuple[str, ...]],
        final_label: int | None,
        inner_labels: tuple[tuple[int, int], ...] = (),
    ) -> Self:
        """A row whose caller has checked it, as a reader checks many rows at once.

        Args:
            tokens: int32 [T], read-only.
            target_runs: int32 [2R], read-only.
            layout: geometry.
            names: document ids and sources, N each.
            final_label: label of position T-1.
            inner_labels: labels of the last positions of other segments.
        """
        row = object.__new__(cls)
        for name, value in (
            ("tokens", tokens),
            ("target_runs", target_runs),
            ("layout", layout),
            ("document_ids", names[0]),
            ("sources", names[1]),
            ("final_label", final_label),
            ("inner_labels", inner_labels),
        ):
            object.__setattr__(row, name, value)
        return row

    @property
    def num_real_tokens(self) -> int:
        """Real positions of all segments."""
        return self.layout.num_real_tokens

    @property
    def num_target_tokens(self) -> int:
        """Positions whose label counts."""
        return count_targets(self.target_runs)

    def targets_by_document(self) -> Int64:
        """int64 [N]: positions of each document whose label counts."""
        starts, ends = self.target_runs[0::2], self.target_runs[1::2]
        owner = np.searchsorted(self.layout.slot_starts, starts, side="right") - 1
        counts = np.zeros(self.layout.num_segments, dtype=np.int64)
        np.add.at(counts, owner, ends - starts)
        return counts

    def labels(self) -> Int64:
        """int64 [T], target-aligned, IGNORE_INDEX where masked."""
        labels = self.layout.labels(self.tokens, self.target_runs, final_label=self.final_label)
        for position, label in self.inner_labels:
            labels[position] = label
        return labels

    def loss_mask(self) -> Bool:
        """bool [T], target-aligned: True where the label counts."""
        return self.layout.loss_mask(self.target_runs)

    def arrays(self, into: RowArrays | None = None) -> RowArrays:
        """Everything that a model is fed with, in narrow dtypes.

        Args:
            into: arrays of T positions to write into, new ones by default.
        """
        arrays = RowArrays.empty(self.layout.row_length) if into is None else into
        arrays.fill(self.layout, self.tokens, self.target_runs, final_label=self.final_label)
        for position, label in self.inner_labels:
            arrays.labels[position] = label
        return arrays

    def _check_boundaries(self) -> None:
        """No label may cross a segment, and none may stand on padding. Costs O(runs)."""
        starts = self.target_runs[0::2].astype(np.int64)
        ends = self.target_runs[1::2].astype(np.int64)
        slots = self.layout.slot_starts.astype(np.int64)
        limits = slots + self.layout.lengths - 1
        if (
            self.final_label is not None
            and limits.size
            and limits[-1] == self.layout.row_length - 1
        ):
            limits[-1] += 1
        owner = np.searchsorted(slots, starts, side="right") - 1
        # A filler row has no slots: whatever counts there stands on padding.
        allowed = limits[owner] if limits.size else np.zeros_like(ends)
        wrong = np.flatnonzero(ends > allowed)
        if wrong.size:
            position = max(int(starts[wrong[0]]), int(allowed[wrong[0]]))
            raise ContractError(
                f"PackedRow.target_runs: position {position} counts, but it is padding or the "
                "last position of a segment, which has no next token."
            )


def filler_row(*, row_length: int, granularity: Granularity, pad_id: int = 0) -> PackedRow:
    """A row without documents: all tail, no targets."""
    nothing = np.zeros(0, dtype=np.int32)
    return PackedRow(
        tokens=np.full(row_length, pad_id, dtype=np.int32),
        target_runs=nothing,
        layout=PackLayout(row_length=row_length, lengths=nothing, granularity=granularity),
        document_ids=(),
    )
