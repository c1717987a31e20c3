"""Geometry: positions, masks, labels and the context-parallel index of long rows."""

import numpy as np

from benchmarks.record import cpu_seconds, emit
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout


def main() -> None:
    """Print one line: tokens a CPU second for all arrays a rank needs."""
    row_length = 1 << 20
    lengths = np.random.default_rng(0).integers(1, 128, 12_000, np.int32)
    layout = PackLayout(
        row_length=row_length, lengths=lengths, granularity=Granularity(segment=8, row=8)
    )
    tokens = np.arange(row_length, dtype=np.int32)
    runs = np.array([1, row_length // 2], np.int32)

    def work() -> None:
        layout.position_ids()
        layout.padding_mask()
        layout.labels(tokens, runs)
        layout.cp_index(cp_size=4, cp_rank=3)

    seconds = cpu_seconds(work)
    emit(
        "layout",
        tokens=row_length,
        segments=layout.num_segments,
        cpu_s=round(seconds, 4),
        million_tokens_per_cpu_s=round(row_length / seconds / 1e6, 1),
    )


if __name__ == "__main__":
    main()
