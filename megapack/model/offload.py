"""Activation offload, and keeping phases without a backward pass out of it.

megatron-core learns which activations to copy to the host from the forwards of its first step
(its warm-up) and then expects the same forwards in every step. An evaluation or extraction before
or between training steps would be taken for one. Only the te backend can offload; never run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from megatron.core.pipeline_parallel.fine_grained_activation_offload import PipelineOffloadManager

from megapack.jobs.model import OffloadModule


def offload_settings(modules: Sequence[OffloadModule]) -> dict[str, Any]:
    """Arguments of TransformerConfig that say whose inputs are kept on the host."""
    if not modules:
        return {}
    return {
        "fine_grained_activation_offloading": True,
        "offload_modules": [module.value for module in modules],
    }


@contextmanager
def suspended_offload(chunks: Sequence[Any]) -> Iterator[None]:
    """Inside the block the chunks offload nothing and megatron-core's plan stays as it was.

    Both switches are needed: the configuration's keeps a forward from being counted, the manager's
    keeps modules, which decided at construction, from offloading.

    Args:
        chunks: model chunks of this rank, wrapped or not.
    """
    offloading = [chunk.config for chunk in chunks if _offloads(chunk.config)]
    if not offloading:
        yield
        return
    manager = PipelineOffloadManager.get_instance()
    was_on = manager.do_offload
    for config in offloading:
        config.fine_grained_activation_offloading = False
    manager.disable_offload()
    try:
        yield
    finally:
        for config in offloading:
            config.fine_grained_activation_offloading = True
        if was_on:
            manager.enable_offload()


def _offloads(config: Any) -> bool:  # noqa: ANN401 - upstream type
    return bool(config.fine_grained_activation_offloading)
