"""Hidden states of chosen layers, taken while the model runs: `capture_hidden`.

Hooks on the layers record what they return, one frame for each forward of a chunk. What
activation recompute runs again in backward is not recorded twice: it does not call the chunk.
Layers count from 1 over the whole model, as megatron-core's layer_number does, so that layer i is
entry i of Hugging Face's `hidden_states` (except that the last one is before the final norm).
Cost: [n(/tp), H] a layer and forward, on the device until the caller drops the frame.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from megapack.errors import ConfigError
from megapack.layout.pack_layout import PackLayout
from megapack.model.flat import flat_hidden
from megapack.model.keywords import bare
from megapack.parallel.collectives import gather_row
from megapack.parallel.context import ParallelContext

Frame = dict[int, torch.Tensor]
"""Layer number to hidden states [n(/tp), H], detached."""


@contextmanager
def capture_hidden(chunks: Sequence[Any], *, layers: Sequence[int]) -> Iterator[list[Frame]]:
    """Record the outputs of layers inside the block. All ranks of the tp group must do alike.

    Args:
        chunks: from `build_model` or `wrap_ddp`.
        layers: numbers from 1; each stage records those that it holds.

    Yields:
        One frame for each forward of a chunk, in order, so the i-th microbatch is the i-th frame
        when a rank has one chunk. Take frames out to bound memory.

    Raises:
        ConfigError: the model has no such layer.
    """
    frames: list[Frame] = []
    running: list[Frame] = []
    with ExitStack() as hooks:
        for chunk in chunks:
            model = bare(chunk)
            _check(layers, model.config.num_layers)
            for layer in model.decoder.layers:
                if layer.layer_number in layers:
                    record = _recorder(layer.layer_number, running, model.config)
                    hooks.callback(layer.register_forward_hook(record).remove)

            def begin(*_: object) -> None:
                running[:] = [{}]

            def end(*_: object) -> None:
                frames.append(running.pop())

            hooks.callback(model.register_forward_pre_hook(begin).remove)
            hooks.callback(model.register_forward_hook(end).remove)
        yield frames


def collect_layers(
    frame: Mapping[int, torch.Tensor], layout: PackLayout, context: ParallelContext
) -> Frame | None:
    """Collective over the tp, cp and pp groups: whole rows of all captured layers.

    Undoes sequence and context parallelism, then brings the stages' layers to the last stage. Call
    it after the schedule: inside it the stages are at different microbatches.

    Args:
        frame: of one microbatch; on each stage its own layers.
        layout: geometry of that microbatch's row.
        context: this rank.

    Returns:
        Layer number to [T, H] in row order on the writing rank, None on the others.
    """
    over_tp = context.sizes.sequence_parallel
    mine = {
        number: gather_row(frame[number], layout, context, over_tp=over_tp)
        for number in sorted(frame)
    }
    rows = {number: row for number, row in mine.items() if row is not None}
    if context.tp_rank or context.cp_rank:
        return None
    if context.pp_group is not None and context.sizes.pp > 1:
        return _to_last_stage(rows, context)
    return rows


def _to_last_stage(rows: Frame, context: ParallelContext) -> Frame | None:
    """Collective over pp_group: point to point, in the order of stages and layers."""
    held: list[Any] = [None] * context.sizes.pp
    about = {number: (tuple(row.shape), row.dtype) for number, row in rows.items()}
    dist.all_gather_object(held, about, group=context.pp_group)
    last = context.sizes.pp - 1
    if context.pp_rank != last:
        for row in rows.values():
            dist.send(row.contiguous(), group=context.pp_group, group_dst=last)
        return None
    for stage, layers in enumerate(held[:last]):
        for number, (shape, dtype) in layers.items():
            received = torch.empty(shape, dtype=dtype, device=context.device)
            dist.recv(received, group=context.pp_group, group_src=stage)
            rows[number] = received
    return dict(sorted(rows.items()))


def _recorder(
    number: int,
    running: list[Frame],
    config: Any,  # noqa: ANN401 - upstream type
) -> Callable[[Any, Any, Any], None]:
    def record(_module: object, _inputs: object, output: Any) -> None:  # noqa: ANN401 - upstream type
        if not running:
            return
        hidden = output[0] if isinstance(output, tuple) else output
        running[0][number] = flat_hidden(hidden.detach(), config)

    return record


def _check(layers: Sequence[int], num_layers: int) -> None:
    wrong = [number for number in layers if not 1 <= number <= num_layers]
    if wrong:
        raise ConfigError(
            f"capture_hidden: layers {wrong}, expected numbers from 1 to num_layers = {num_layers}."
        )
