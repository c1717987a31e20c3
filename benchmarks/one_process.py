"""A context of one process on the CPU with one thread, as a rank of a run has it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megapack.parallel.context import ParallelContext


@contextmanager
def one_process() -> "Iterator[ParallelContext]":
    """Imports torch and megatron-core; the process group ends with the block."""
    import torch

    from megapack.layout.granularity import ParallelSizes
    from megapack.parallel import runtime

    torch.set_num_threads(1)
    runtime.prepare_import()
    runtime.install_cpu_runtime()
    from megapack.parallel.context import ParallelContext

    with tempfile.TemporaryDirectory() as folder:
        runtime.start_process_group(
            rank=0, world_size=1, init_method=f"file://{Path(folder) / 'rendezvous'}"
        )
        try:
            context = ParallelContext.initialize(ParallelSizes(), seed=0)
            yield context
            context.destroy()
        finally:
            runtime.stop_process_group()
