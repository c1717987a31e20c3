"""Which side of the train/validation split a document is on.

Decided by its id alone, so a document never changes sides between versions, and by the half of the
id that the pieces of one conversation share, so they stay together.
"""

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]

CONVERSATION_DIGITS = 16
"""Leading hex digits of a document id that all pieces of one conversation share."""


def is_held_out(document_id: str, validation_fraction: float) -> bool:
    """Whether a document belongs to the validation side.

    >>> is_held_out("0" * 32, 0.01), is_held_out("f" * 32, 0.99)
    (True, False)

    Args:
        document_id: 32 hex digits.
        validation_fraction: share of conversations held out, in [0, 1).
    """
    digits = document_id[:CONVERSATION_DIGITS]
    return int(digits, 16) < int(validation_fraction * 16**CONVERSATION_DIGITS)


def held_out(conversations: npt.NDArray[np.uint64], validation_fraction: float) -> Bool:
    """`is_held_out` for many documents at once.

    >>> held_out(np.array([0, 2**64 - 1], np.uint64), 0.5).tolist()
    [True, False]

    Args:
        conversations: uint64 [M], first 16 hex digits of each document id.
        validation_fraction: share of conversations held out, in [0, 1).

    Returns:
        bool [M], True on the validation side.
    """
    return conversations < np.uint64(int(validation_fraction * 16**CONVERSATION_DIGITS))
