"""Rows whose documents are of every awkward kind: odd lengths, one position, a label at the end."""

import numpy as np

from megapack.layout.granularity import Granularity
from megapack.packing.rows import RowShape, build_row
from megapack.records.document import Document
from tests.support.rows import GRANULARITY, VOCAB, make_row

SHAPE = RowShape(row_length=96, granularity=GRANULARITY, pad_id=0)


def one_longer_than_a_row(seed: int, *, granularity: Granularity = GRANULARITY):
    """A row of one document of 97 tokens: its last token is only a label."""
    draw = np.random.default_rng(seed)
    document = Document(
        document_id=f"{seed:032x}",
        tokens=draw.integers(0, VOCAB, 97),
        target_runs=np.array([40, 97], np.int32),
    )
    return build_row([document], RowShape(row_length=96, granularity=granularity, pad_id=0))


def pieces_of_a_split(seed: int):
    """A row of the two pieces of a split document: both begin with the same unsupervised tokens."""
    draw = np.random.default_rng(seed)
    system = draw.integers(0, VOCAB, 5)
    pieces = [
        Document(
            document_id=f"{seed:08x}{piece:024x}",
            tokens=np.concatenate((system, draw.integers(0, VOCAB, length))),
            target_runs=np.array([8, 8 + 2 * length // 3], np.int32),
            piece=piece,
        )
        for piece, length in enumerate((17, 10))
    ]
    return build_row(pieces, SHAPE)


def ragged_rows() -> list:
    """Five rows: of 2 documents, of 5, of one that is longer than the row, of 3 and of 1."""
    return [
        make_row([40, 9], seed=1),
        make_row([5, 17, 3, 1, 23], seed=0),
        one_longer_than_a_row(9),
        make_row([2, 1, 15], seed=2, supervised=1.0),
        make_row([33], seed=5),
    ]
