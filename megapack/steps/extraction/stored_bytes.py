"""How many bytes a payload takes on the store, told from what the store's encoding was seen to do.

Parts are zstd over byte planes (`megapack.store.payload_frames`). What a value takes depends on its
kind, its dtype and, for top-k, on K and V; fitted to outputs that differ from position to position,
K of 16 to 256, V of 2,048 to 131,072, widths of 128 to 512. A teacher whose outputs repeat takes
less: a model of the demo after 25 steps took 0.63 of it for hidden states and 0.42 for top-16.
"""

import math

from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.store.schema import KindInfo

_VALUE = {PayloadDtype.BF16: 1.79, PayloadDtype.FP16: 1.96, PayloadDtype.FP32: 3.93}
"""Bytes of one value of hidden states or logits."""
_FLOAT = 3.7
"""Bytes of one float32 of a column."""
_DOCUMENT = 40
"""Bytes of a document in a part, beside its positions: id, digest, counts."""
_PART = 3_500
"""Bytes of what a part says about itself."""
_GROUP = 1 << 20
_GROUP_BYTES = 1_200
"""Bytes that a part says about each of its row groups, which hold 1 MiB before compression."""


def index_bytes(*, documents: int, shards: int) -> int:
    """Bytes of the index beside the kinds.

    Args:
        documents: documents of the payload.
        shards: each has an index of its own.
    """
    return documents * _DOCUMENT + shards * 1_200


def kind_bytes(
    kind: KindInfo, *, vocab_size: int, positions: int, documents: int, shards: int
) -> int:
    """Bytes of all records of a kind.

    Args:
        kind: of the payload.
        vocab_size: ids lie below it.
        positions: of all documents.
        documents: of the payload.
        shards: each has at least one part.
    """
    own = kind.width * _value_bytes(kind, vocab_size) + _FLOAT
    if kind.kind is PayloadKind.TOPK:
        own += _FLOAT
    groups = positions * kind.width * kind.dtype.numpy.itemsize // _GROUP
    return round(positions * own + documents * _DOCUMENT + shards * _PART + groups * _GROUP_BYTES)


def _value_bytes(kind: KindInfo, vocab_size: int) -> float:
    if kind.kind is not PayloadKind.TOPK:
        return _VALUE[kind.dtype]
    ids = 0.95 + 0.0635 * math.log2(max(2, vocab_size))
    # Log-probs are stored as differences, and of many tokens they are nearer to one another.
    difference = max(0.3, 1.7 - 0.15 * math.log2(kind.width))
    return ids + difference + (1.75 if kind.dtype is PayloadDtype.FP32 else 0.0)
