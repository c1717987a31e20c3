"""The no-pipelining schedule needs CUDA for a token counter. See cuda_literals.md."""

import sys
from types import SimpleNamespace

import torch


def fault_is_present() -> bool:
    """Whether the schedule fails on a machine without CUDA before it runs anything."""
    from megatron.core.pipeline_parallel import schedules

    config = SimpleNamespace(timers=None, no_sync_func=None, moe_paged_stash=False)
    model = SimpleNamespace(config=config, model_type=None)
    one = SimpleNamespace(size=lambda: 1)
    # Plain torch, whatever runtime this process has installed.
    with torch._C.DisableTorchFunction():
        try:
            schedules.forward_backward_no_pipelining(
                forward_step_func=None,
                data_iterator=None,
                model=model,
                num_microbatches=1,
                seq_length=1,
                micro_batch_size=1,
                pg_collection=SimpleNamespace(tp=one, cp=one),
            )
        except (AssertionError, RuntimeError) as error:
            return "CUDA" in str(error) or "NVIDIA" in str(error)
        except AttributeError:
            return False
    return False


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
