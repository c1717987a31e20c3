"""Documents to the training side or the validation side.

A document's side follows from its id alone. Rows that are kept as given hold several: a record is
held out when its first document is, unless one of its conversations is in a record that is not;
then it trains, so that nothing evaluated was trained on.
"""

import numpy as np

from megapack.jobs.prepare import PrepareJob
from megapack.layout.runs import Bool
from megapack.packing.config import PackAlgorithm
from megapack.packing.sides import held_out
from megapack.steps.admission import Side
from megapack.steps.document_index import DocumentIndex


def split_sides(index: DocumentIndex, placed: Side, job: PrepareJob) -> tuple[Side, Side]:
    """Documents of the training side, then of the validation side.

    Args:
        index: all documents.
        placed: int64 [M], documents to place, ascending.
        job: the preparation job.
    """
    out = held_out(index.high[placed], job.validation_fraction)
    if job.pack.algorithm is PackAlgorithm.AS_GIVEN:
        out = _by_record(index, placed, out)
    return placed[~out], placed[out]


def _by_record(index: DocumentIndex, placed: Side, out: Bool) -> Bool:
    """bool [M], equal for all documents of a record, and for all places of a conversation."""
    _, first, record = np.unique(index.given[placed], return_index=True, return_inverse=True)
    _, conversation = np.unique(index.high[placed], return_inverse=True)
    out = out[first][record]
    while True:
        trained = np.zeros(placed.size, dtype=bool)
        trained[conversation[~out]] = True
        leaks = out & trained[conversation]
        if not leaks.any():
            return out
        moved = np.zeros(first.size, dtype=bool)
        moved[record[leaks]] = True
        out = out & ~moved[record]
