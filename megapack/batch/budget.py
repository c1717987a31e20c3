"""Dynamic shapes: documents grouped so that a dense batch stays within a budget of positions.

Sorting by length puts alike documents together, so that little is padded; which documents share
a batch changes no number but the order of a sum. Letters: B documents of a group, S its width.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError


def groups_within_budget(
    lengths: npt.ArrayLike, *, budget: int, multiple: int
) -> tuple[tuple[int, ...], ...]:
    """Groups of documents with B * S <= budget, longest first.

    >>> groups_within_budget([3, 9, 4, 8], budget=16, multiple=4)
    ((1,), (3,), (2, 0))

    Args:
        lengths: int [N].
        budget: most positions of a batch, padding included.
        multiple: S is a multiple of it.

    Returns:
        Indices into `lengths`, each once; equal lengths in their given order.

    Raises:
        ConfigError: a document alone is over the budget.
    """
    flat = np.asarray(lengths, dtype=np.int64)
    widths = -(-flat // multiple) * multiple
    if flat.size and int(widths.max()) > budget:
        raise ConfigError(
            f"token budget = {budget}: expected at least {int(widths.max())}, the width of the "
            f"longest of these {flat.size} documents ({int(flat.max())} positions; others of the "
            "dataset may be longer). Raise the budget, or train on packed rows."
        )
    groups: list[tuple[int, ...]] = []
    order: Sequence[int] = np.argsort(-flat, kind="stable").tolist()
    begin = 0
    while begin < len(order):
        most = budget // int(widths[order[begin]])
        groups.append(tuple(order[begin : begin + most]))
        begin += most
    return tuple(groups)
