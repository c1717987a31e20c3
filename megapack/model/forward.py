"""One forward: which keyword goes to the model, and what comes back.

megatron-core's `output_processor` hook hands over the hidden states before the LM head on the
last pipeline stage; what a head needs is computed there and nothing else. Letters: T = row_length,
cp and tp = sizes, H = hidden size, V = vocabulary.
"""

from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.model.moe import router_padding_mask


class Need(Flag):
    """What a head wants from a forward."""

    NOTHING = 0
    LOGITS = auto()
    HIDDEN = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelOutput:
    """What the last pipeline stage gives.

    Attributes:
        logits: [T/cp, V/tp], target-aligned, in the model's dtype; None when not asked for.
        hidden: [T/cp(/tp), H], input of the LM head; split along the row over tp ranks too when
            sequence parallelism is on; None when not asked for.
        vocab_size: real vocabulary; later columns of the logits are padding.
    """

    logits: torch.Tensor | None
    hidden: torch.Tensor | None
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardRequest:
    """One microbatch and what is wanted from it."""

    microbatch: MicroBatch
    needs: Need


def forward(
    model: Any,  # noqa: ANN401 - GPTModel or its DDP wrapper
    request: ForwardRequest,
) -> ModelOutput | torch.Tensor:
    """Run a model chunk on a microbatch. Collective over the tp and cp groups.

    Args:
        model: chunk from `build_model` or `wrap_ddp`.
        request: microbatch and needs.

    Returns:
        ModelOutput on the last pipeline stage; the stage's activations [T/cp(/tp), 1, H] elsewhere.
    """
    batch = request.microbatch
    chunk = bare(model)
    output: ModelOutput | torch.Tensor = model(
        batch.tokens,
        batch.position_ids,
        None,
        packed_seq_params=batch.attention.packed_seq_params,
        padding_mask=router_padding_mask(chunk, batch.padding_mask),
        output_processor=_process,
        output_processor_context=_Context(needs=request.needs, vocab_size=chunk.real_vocab_size),
    )
    return output


def bare(model: Any) -> Any:  # noqa: ANN401 - upstream types
    """The model of `build_model` inside its wrappers."""
    while not hasattr(model, "real_vocab_size"):
        model = model.module
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    needs: Need
    vocab_size: int


def _process(
    *,
    hidden_states: torch.Tensor,
    output_layer: Any,  # noqa: ANN401 - upstream type
    output_weight: torch.Tensor | None,
    context: _Context,
    **_: object,
) -> ModelOutput:
    logits = None
    if Need.LOGITS in context.needs:
        logits = output_layer(hidden_states, weight=output_weight)[0].squeeze(1)
    return ModelOutput(
        logits=logits,
        hidden=hidden_states.squeeze(1) if Need.HIDDEN in context.needs else None,
        vocab_size=context.vocab_size,
    )
