"""What runs the loops of the planners: numba when it is there and pays, numpy otherwise.

The only place that imports numba. Results do not depend on it: both sets of loops decide the same.

Importing numba takes about a second, so it is loaded for a plan of `FROM_DOCUMENTS` documents or
more; once it is loaded in a process, smaller plans use it too. Compiling takes about ten seconds
more, once for a machine: the machine code is kept beside this package or, when that folder is
read-only, in the user's cache folder (`NUMBA_CACHE_DIR` names another). Where nothing can be kept,
every process would compile again, which costs more than it saves, so numpy plans there.
"""

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from megapack.layout.runs import Int32, Int64
from megapack.packing import best_fit, expansion, open_rows
from megapack.packing.row_groups import RowGroups, Table

logger = logging.getLogger(__name__)

FROM_DOCUMENTS = 4_000_000
"""Documents from which loading numba pays within one plan (numpy takes about 0.2 us each)."""

LOADED_FROM_DOCUMENTS = 20_000
"""Documents from which the compiled loops are used once numba is loaded."""


class Backend(Enum):
    """What runs the loops of a planner.

    AUTO decides by size. COMPILED still is numpy where numba is missing.
    """

    AUTO = auto()
    NUMPY = auto()
    COMPILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """The loops of the planners; see `expansion`, `best_fit` and `open_rows` for each."""

    sort_by_length: Callable[[Int32, int], tuple[Int32, Int64]]
    group_rows: Callable[[Int64, int], Table]
    expand: Callable[[Table, Int64, Int32, Int64], tuple[Int32, Int64]]
    close_rows: Callable[[Int32, int, int], tuple[Int32, Int32, int]]


PLAIN = Loops(
    sort_by_length=expansion.sort_by_length,
    group_rows=best_fit.group_rows,
    expand=expansion.expand,
    close_rows=open_rows.close_rows,
)


def loops_for(documents: int, backend: Backend = Backend.AUTO) -> Loops:
    """The fastest loops for a plan of this size."""
    if backend is Backend.NUMPY:
        return PLAIN
    least = LOADED_FROM_DOCUMENTS if "numba" in sys.modules else FROM_DOCUMENTS
    if backend is Backend.AUTO and documents < least:
        return PLAIN
    return compiled_loops() or PLAIN


@functools.cache
def compiled_loops() -> Loops | None:
    """The compiled loops, or None with a log line where they cannot be had."""
    try:
        from numba import config
        from numba.core.errors import NumbaError
    except ImportError as error:
        logger.info("planner=numpy reason=%s", error)
        return None
    if getattr(config, "DISABLE_JIT", 0):
        logger.info("planner=numpy reason=NUMBA_DISABLE_JIT is set")
        return None
    try:
        from megapack.packing import kernels

        loops = Loops(
            sort_by_length=kernels.sort_by_length,
            group_rows=kernels.group_rows,
            expand=kernels.expand,
            close_rows=kernels.close_rows,
        )
        _run_once(loops)
    except (ImportError, NumbaError, RuntimeError, OSError) as error:
        # RuntimeError: no folder can hold the machine code; OSError: the folder failed.
        logger.info("planner=numpy reason=%s", str(error).partition("\n")[0])
        return None
    return loops


def _run_once(loops: Loops) -> None:
    """Compile or load every loop on a plan of two documents."""
    lengths = np.array([3, 5], dtype=np.int32)
    ordered, starts = loops.sort_by_length(lengths, 8)
    table = loops.group_rows(starts, 8)
    loops.expand(table, RowGroups(table).leaves(), ordered, starts)
    loops.close_rows(lengths, 8, 1)
