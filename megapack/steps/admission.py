"""Which documents are placed, how often, and why each of the others is not.

Decided on entry, over flat arrays; nothing is left out later.
"""

from dataclasses import dataclass

import numpy as np

from megapack.errors import ConfigError, DataError
from megapack.jobs.prepare import PrepareJob
from megapack.layout.pack_layout import padded_lengths
from megapack.layout.runs import Bool, Int64
from megapack.packing.config import BlendConfig, Duplicates, PackAlgorithm
from megapack.packing.hash_order import IdHalves
from megapack.packing.mixture import copies
from megapack.packing.sides import held_out
from megapack.records.drops import DropLedger, DropReason
from megapack.steps.document_index import DocumentIndex

Side = Int64
"""int64 [M]: document numbers, ascending; one that is placed twice stands there twice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Admission:
    """What becomes of each document.

    Attributes:
        placed: int64 [M], ascending document numbers; one that a blend repeats stands there
            several times.
        dropped: int64, ascending document numbers by reason.
    """

    placed: Side
    dropped: dict[DropReason, Int64]

    @property
    def counts(self) -> DropLedger:
        """Documents that are not placed, by reason; without their tokens."""
        return DropLedger(
            documents={reason: numbers.size for reason, numbers in self.dropped.items()}
        )

    @property
    def num_copies(self) -> int:
        """Places beyond the first of each document."""
        return int(self.placed.size - np.count_nonzero(np.diff(self.placed, prepend=-1)))


def admit(index: DocumentIndex, job: PrepareJob) -> Admission:
    """Decide which documents are placed, and how often.

    A blend repeats and leaves out documents of the training side; every held-out one is placed
    once.

    Args:
        index: all documents.
        job: the preparation job.

    Raises:
        ConfigError: the blend asks for a source more often than it allows.
        DataError: a source with a share of the blend has no documents.
    """
    why: dict[DropReason, Bool] = {DropReason.LONGER_THAN_ROW: _too_long(index, job)}
    left = ~why[DropReason.LONGER_THAN_ROW]
    if job.pack.duplicates is Duplicates.DROP:
        why[DropReason.DUPLICATE] = _repeated(index, left)
        left &= ~why[DropReason.DUPLICATE]
    placed = np.flatnonzero(left)
    if job.pack.blend is not None:
        # What a model is evaluated on stays the same, whatever the weights are.
        trained = ~held_out(index.high[placed], job.validation_fraction)
        counts = np.ones(placed.size, dtype=np.int64)
        counts[trained] = _copies(index, placed[trained], job, job.pack.blend)
        out = np.zeros(index.size, dtype=bool)
        out[placed[counts == 0]] = True
        why[DropReason.LEFT_OUT_BY_BLEND] = out
        placed = np.repeat(placed, counts)
    return Admission(
        placed=placed,
        dropped={reason: np.flatnonzero(mask) for reason, mask in why.items() if mask.any()},
    )


def _too_long(index: DocumentIndex, job: PrepareJob) -> Bool:
    """bool [D], True for documents that do not fit a row, alone or with those of their record."""
    too_long = index.num_tokens > job.pack.row_length + 1
    if job.pack.algorithm is not PackAlgorithm.AS_GIVEN:
        return too_long
    positions = np.minimum(index.num_tokens, job.pack.row_length).astype(np.int64)
    slots = padded_lengths(positions, job.granularity().segment)
    taken = np.bincount(index.given, weights=slots)
    alone = np.bincount(index.given, weights=too_long)
    return ((taken > job.pack.row_length) | (alone > 0))[index.given]


def _repeated(index: DocumentIndex, left: Bool) -> Bool:
    """bool [D], True for documents whose id stands before them among those that are left."""
    numbers = np.flatnonzero(left)
    high, low = index.high[numbers], index.low[numbers]
    # Equal ids stand together then, in reading order.
    order = np.lexsort((low, high))
    same = (np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)
    repeated = np.zeros(index.size, dtype=bool)
    repeated[numbers[order[1:][same]]] = True
    return repeated


def _copies(index: DocumentIndex, placed: Side, job: PrepareJob, blend: BlendConfig) -> Int64:
    """int64 [M]: how often each of the documents is placed."""
    weights = job.weights()
    numbers = {label: number for number, label in enumerate(weights)}
    number_of = np.array([numbers[label] for label in index.sources], dtype=np.int64)
    try:
        return copies(
            IdHalves(index.high[placed], index.low[placed]),
            number_of[index.source[placed]],
            index.num_tokens[placed],
            weights=list(weights.values()),
            blend=blend,
            seed=job.pack.seed,
        )
    except (ConfigError, DataError) as error:
        named = ", ".join(f"{number} = {label}" for label, number in numbers.items())
        raise type(error)(f"{error} Sources: {named}.") from error
