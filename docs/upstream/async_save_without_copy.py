"""An asynchronous save holds host tensors themselves, no copy. See async_save_without_copy.md."""

import queue
import sys
import tempfile

import torch

from megapack.parallel.runtime import install_cpu_runtime, start_process_group


def fault_is_present() -> bool:
    """Whether a checkpoint holds a value that was set after the save was asked for."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    # Only spares this script the process that upstream starts for its results.
    filesystem_async._results_queue = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        value = torch.zeros(4)
        state = {"value": ShardedTensor.from_rank_offsets("value", value)}
        request = dist_checkpointing.save(
            state, folder, async_sharded_save=True, async_strategy="mcore"
        )
        rank, _, results = request.async_fn_args
        staged = request.preload_fn()
        value.fill_(1.0)
        request.async_fn(rank, staged, results)
        for finalize in request.finalize_fns:
            finalize()
        found = torch.zeros(4)
        wanted = {"value": ShardedTensor.from_rank_offsets("value", found)}
        loaded = dist_checkpointing.load(wanted, folder)["value"]
    return bool((loaded == 1.0).all())


if __name__ == "__main__":
    start_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
