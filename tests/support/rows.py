"""Rows of random documents and what a step gave: no torch, so the test process may import it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import runs_of_mask
from megapack.records.packed_row import PackedRow

VOCAB = 101
GRANULARITY = Granularity(segment=8, row=16)


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """One training step, seen from rank 0: numbers, whole gradients (or parameters after it)."""

    loss_sum: float
    num_target_tokens: int
    normalizer_tokens: int
    metrics: dict[str, float]
    gradients: dict[str, np.ndarray]
    compared: str = "gradients"

    def without_gradients(self) -> "StepOutcome":
        """The numbers alone: cheap to send."""
        return replace(self, gradients={})


def make_row(
    lengths: Sequence[int],
    *,
    seed: int,
    row_length: int = 96,
    supervised: float = 0.6,
    granularity: Granularity = GRANULARITY,
) -> PackedRow:
    """A row of random documents; the last position of each is never supervised."""
    layout = PackLayout(
        row_length=row_length, lengths=np.array(lengths, np.int32), granularity=granularity
    )
    draw = np.random.default_rng(seed)
    tokens = np.zeros(row_length, np.int32)
    counted = np.zeros(row_length, np.bool_)
    for start, length in zip(layout.slot_starts.tolist(), lengths, strict=True):
        tokens[start : start + length] = draw.integers(0, VOCAB, length)
        counted[start : start + length - 1] = draw.random(length - 1) < supervised
    return PackedRow(
        tokens=tokens,
        target_runs=runs_of_mask(counted),
        layout=layout,
        document_ids=tuple(f"{seed:08x}{i:024x}" for i in range(len(lengths))),
    )


def one_document(row: PackedRow, i: int) -> PackedRow:
    """Document i of a row, alone in a row of its own, without padding."""
    start, length = int(row.layout.slot_starts[i]), int(row.layout.lengths[i])
    return PackedRow(
        tokens=row.tokens[start : start + length],
        target_runs=runs_of_mask(row.loss_mask()[start : start + length]),
        layout=PackLayout(
            row_length=length,
            lengths=np.array([length], np.int32),
            granularity=Granularity(segment=1, row=1),
        ),
        document_ids=(row.document_ids[i],),
    )


def replace_token(row: PackedRow, position: int) -> PackedRow:
    """The row with another token at one position."""
    tokens = row.tokens.copy()
    tokens[position] = (tokens[position] + 1) % VOCAB
    return PackedRow(
        tokens=tokens,
        target_runs=row.target_runs,
        layout=row.layout,
        document_ids=row.document_ids,
    )


def worst_error(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Largest over parameters of max|difference| / max|expected|."""
    assert got.keys() == expected.keys()
    return max(
        float(np.abs(got[name] - expected[name]).max() / np.abs(expected[name]).max())
        for name in expected
    )
