"""Planning: a million log-normal documents, rows against the lower bound."""

import numpy as np

from benchmarks.record import cpu_seconds, emit
from megapack.packing.planner import plan_rows


def lognormal_lengths(count: int, capacity: int) -> np.ndarray:
    """Lengths with median 600 and sigma 1.2, clipped to the capacity."""
    rng = np.random.default_rng(0)
    return np.clip(rng.lognormal(np.log(600), 1.2, count).astype(np.int64), 1, capacity)


def main() -> None:
    """Print one line a capacity."""
    for capacity in (4096, 32768, 131072):
        lengths = lognormal_lengths(1_000_000, capacity)
        bound = -(-int(lengths.sum()) // capacity)
        rows = plan_rows(lengths, capacity).num_rows
        seconds = cpu_seconds(lambda lengths=lengths, c=capacity: plan_rows(lengths, c))
        emit(
            "plan_rows",
            documents=lengths.size,
            capacity=capacity,
            cpu_s=round(seconds, 4),
            rows=rows,
            lower_bound=bound,
            over_bound_percent=round(100 * (rows / bound - 1), 4),
        )


if __name__ == "__main__":
    main()
