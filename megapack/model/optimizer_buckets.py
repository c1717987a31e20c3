"""Where a distributed optimizer's parameters stand in what it saves.

megatron-core's DistributedOptimizer puts the buckets of a buffer together without the padding at
their ends, but cuts parameters out at their places in the padded buffer. Behind a padded bucket
every parameter's main copy and moments come out shifted, without an error: a tied embedding on
more than one pipeline stage has a bucket of its own (docs/upstream/bucket_padding.md).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Places = dict[Any, tuple[int, int, int]]
"""By parameter: start and end in the buffer, in elements, and the number of its bucket."""


@contextmanager
def places_without_bucket_padding(optimizers: Sequence[Any]) -> Iterator[None]:
    """Inside the block buffers say where parameters stand when no bucket is padded.

    Args:
        optimizers: parts of a chain; those without buffers are left alone.
    """
    buffers = {id(buffer): buffer for one in optimizers for buffer in getattr(one, "buffers", ())}
    before = [(buffer, buffer.param_index_map) for buffer in buffers.values()]
    try:
        for buffer, places in before:
            buffer.param_index_map = _without_padding(places, buffer.buckets)
        yield
    finally:
        for buffer, places in before:
            buffer.param_index_map = places


def _without_padding(places: Places, buckets: Sequence[Any]) -> Places:
    """The same places, less the padding of the buckets before."""
    padding, gone = 0, []
    for bucket in buckets:
        gone.append(padding)
        padding += bucket.grad_data.numel() - bucket.numel_unpadded
    return {
        parameter: (start - gone[bucket], end - gone[bucket], bucket)
        for parameter, (start, end, bucket) in places.items()
    }
