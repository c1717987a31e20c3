"""vocab_parallel_cross_entropy writes into its input. See cross_entropy_in_place.md."""

import sys

import torch
import torch.distributed as dist


def fault_is_present() -> bool:
    """Whether float32 logits differ after the loss has been computed."""
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    logits = torch.randn(3, 1, 8)
    before = logits.clone()
    vocab_parallel_cross_entropy(
        logits, torch.zeros(3, 1, dtype=torch.int64), tp_group=dist.group.WORLD
    )
    return not torch.equal(logits, before)


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
