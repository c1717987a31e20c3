"""load_tensors_metadata fails on every checkpoint. See tensors_metadata.md."""

import sys
import tempfile

import torch
import torch.distributed as dist


def fault_is_present() -> bool:
    """Whether the shapes of a checkpoint's tensors cannot be asked for."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    with tempfile.TemporaryDirectory() as folder:
        held = ShardedTensor.from_rank_offsets("weight", torch.zeros(2, 3))
        dist_checkpointing.save({"weight": held}, folder)
        try:
            dist_checkpointing.load_tensors_metadata(folder)
        except TypeError as error:
            return "strides" in str(error)
    return False


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
