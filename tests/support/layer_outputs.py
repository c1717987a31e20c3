"""Hidden states after every layer of a row, by position of the row; only ranks may import torch."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from tests.support.layout_table import model_job


@dataclass(frozen=True, kw_only=True)
class LayerOutputs:
    """What one rank computed.

    Attributes:
        positions: row position of each local entry.
        layers: by name of the layer in the whole model, [entries, ...] each.
    """

    positions: NDArray[np.int64]
    layers: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One forward.

    Attributes:
        sizes: layout.
        model: name of a model of the table.
        row: what goes in.
        lost_on_stage: pipeline stage on which the boundaries are lost: the row is one document.
        dtype: arithmetic.
    """

    sizes: ParallelSizes
    model: str
    row: PackedRow
    lost_on_stage: int | None = None
    dtype: str = "float32"


def layer_outputs(*, request: Request) -> LayerOutputs:
    """Run on ranks: one training step, in which MTP runs too, with hooks on every layer."""
    import torch

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.outputs.loss import TokenLossHead
    from tests.support.tiny_training import start

    context, chunks, wrapped = start(
        request.sizes, dtype=getattr(torch, request.dtype), job=model_job(request.model)
    )
    seen: dict[str, NDArray[Any]] = {}
    for name, module in _watched(chunks[0]):
        module.register_forward_hook(_keep(seen, name))
    layout = request.row.layout
    step = step_batch(
        [request.row],
        context=context,
        row_length=layout.row_length,
        granularity=layout.granularity,
    )
    plan = SchedulePlan(step=step, head=TokenLossHead())
    lost = context.pp_rank == request.lost_on_stage
    with _losing_boundaries() if lost else nullcontext():
        run_schedule(wrapped, plan, context)
    index = layout.cp_index(cp_size=request.sizes.cp, cp_rank=context.cp_rank)
    if request.sizes.sequence_parallel:
        index = np.split(index, request.sizes.tp)[context.tp_rank]
    context.destroy()
    return LayerOutputs(positions=index, layers=seen)


def _watched(chunk: Any) -> list[tuple[str, Any]]:
    """Layers of this stage by global number, their routers, and the layers of MTP."""
    found = [(f"layer {layer.layer_number}", layer) for layer in chunk.decoder.layers]
    found += [
        (f"routing {layer.layer_number}", layer.mlp.router)
        for layer in chunk.decoder.layers
        if hasattr(layer.mlp, "router")
    ]
    for number, layer in enumerate(getattr(getattr(chunk, "mtp", None), "layers", ()), 1):
        found.append((f"mtp {number}", layer))
    return found


def _keep(seen: dict[str, NDArray[Any]], name: str) -> Callable[..., None]:
    def hook(module: object, arguments: object, output: Any) -> None:
        # A router gives (weights, choices), a layer (hidden states, ...).
        kept = output[1] if name.startswith("routing") else output[0]
        seen[name] = kept.detach().reshape(-1, kept.shape[-1]).numpy().copy()

    return hook


def _losing_boundaries() -> AbstractContextManager[object]:
    """Make this rank's forward see a row of one document, as if its boundaries had been lost."""
    from megapack.batch.thd import packed_seq_params
    from megapack.engine import schedule
    from megapack.layout.pack_layout import PackLayout

    forward = schedule.forward

    def losing(model: Any, request: Any) -> Any:
        batch = request.microbatch
        whole = PackLayout(
            row_length=batch.attention.layout.row_length,
            lengths=np.array([batch.attention.layout.row_length], np.int32),
            granularity=batch.attention.layout.granularity,
        )
        attention = replace(
            batch.attention, packed_seq_params=packed_seq_params(whole, device=batch.tokens.device)
        )
        return forward(model, replace(request, microbatch=replace(batch, attention=attention)))

    return patch.object(schedule, "forward", losing)
