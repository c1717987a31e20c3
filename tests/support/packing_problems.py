"""Lengths to pack, for tests: distributions of real data, and textbook loops to compare with."""

import numpy as np

DISTRIBUTIONS = ("lognormal", "uniform", "few", "two_humps")


def lengths_of(kind, count, capacity, seed=0):
    """int32 [count] in [1, capacity]."""
    rng = np.random.default_rng(seed)
    if kind == "lognormal":
        drawn = np.exp(rng.normal(np.log(600), 1.2, count))
    elif kind == "uniform":
        drawn = rng.integers(1, capacity + 1, count)
    elif kind == "few":
        values = rng.integers(capacity // 50, capacity // 2, 32)
        drawn = rng.choice(values, count, p=rng.dirichlet(np.ones(32)))
    else:
        short = rng.integers(16, 200, count)
        long = rng.integers(int(0.9 * capacity), capacity + 1, count)
        drawn = np.where(rng.random(count) < 0.9, short, long)
    return np.clip(drawn, 1, capacity).astype(np.int32)


def best_fit_decreasing(lengths, capacity):
    """The textbook loop, a document at a time: remaining space of each row, sorted."""
    rows = []
    for length in sorted(lengths, reverse=True):
        fitting = [r for r, space in enumerate(rows) if space >= length]
        if fitting:
            rows[min(fitting, key=lambda r: rows[r])] -= length
        else:
            rows.append(capacity - length)
    return sorted(rows)


def fewest_rows(lengths, capacity):
    """The optimum, by trying every placement; for a handful of documents."""
    best = len(lengths)

    def place(index, spaces):
        nonlocal best
        if len(spaces) >= best:
            return
        if index == len(lengths):
            best = len(spaces)
            return
        for row in {space: r for r, space in enumerate(spaces)}.values():
            if spaces[row] >= lengths[index]:
                place(
                    index + 1,
                    (*spaces[:row], spaces[row] - lengths[index], *spaces[row + 1 :]),
                )
        place(index + 1, (*spaces, capacity - lengths[index]))

    lengths = sorted(lengths, reverse=True)
    place(0, ())
    return best


def rows_of(plan):
    """Rows as lists of documents."""
    return [plan.row(r).tolist() for r in range(plan.num_rows)]


def check_plan(plan, lengths, capacity):
    """Every document once, no row empty or over the capacity."""
    assert np.array_equal(np.sort(plan.document), np.arange(len(lengths)))
    if len(lengths):
        filled = np.add.reduceat(np.asarray(lengths)[plan.document], plan.offsets[:-1])
        assert np.diff(plan.offsets).min() >= 1
        assert filled.max() <= capacity
    else:
        assert plan.num_rows == 0


def same_plan(one, other):
    """Bit for bit."""
    return (
        one.document.dtype == other.document.dtype
        and one.offsets.dtype == other.offsets.dtype
        and np.array_equal(one.document, other.document)
        and np.array_equal(one.offsets, other.offsets)
    )
