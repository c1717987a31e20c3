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
from megapack.batch.mtp import MtpView, mtp_views
from megapack.model.flat import flat_hidden, flat_rows
from megapack.model.keywords import bare, model_keywords


class Need(Flag):
    """What a head wants from a forward."""

    NOTHING = 0
    LOGITS = auto()
    HIDDEN = auto()
    MTP = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MtpOutput:
    """What one multi-token prediction layer gives.

    Attributes:
        logits: [T/cp, V/tp], in the model's dtype.
        labels: int64 [T/cp], what they predict, -100 where it does not count.
    """

    logits: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelOutput:
    """What the last pipeline stage gives, flat: n positions in `labels.reshape(-1)` order.

    n = T/cp of a packed row, B*S of a dense batch.

    Attributes:
        logits: [n, V/tp], target-aligned, in the model's dtype; None when not asked for.
        hidden: [n(/tp), H], input of the LM head; split along the row over tp ranks too when
            sequence parallelism is on; None when not asked for.
        vocab_size: real vocabulary; later columns of the logits are padding.
        mtp: what each multi-token prediction layer gives; empty when not asked for.
    """

    logits: torch.Tensor | None
    hidden: torch.Tensor | None
    vocab_size: int
    mtp: tuple[MtpOutput, ...] = ()


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
        ModelOutput on the last pipeline stage; the stage's activations [T/cp(/tp), 1, H], or
        [S(/tp), B, H] of a dense batch, elsewhere.
    """
    chunk = bare(model)
    output: ModelOutput | torch.Tensor = model(
        **model_keywords(chunk, request.microbatch),
        output_processor=_process,
        output_processor_context=_Context(
            needs=request.needs,
            vocab_size=chunk.real_vocab_size,
            mtp_views=_views(chunk, request),
        ),
    )
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    needs: Need
    vocab_size: int
    mtp_views: tuple[MtpView, ...]


def _views(chunk: Any, request: ForwardRequest) -> tuple[MtpView, ...]:  # noqa: ANN401 - upstream type
    if Need.MTP not in request.needs or not chunk.post_process:
        return ()
    return mtp_views(request.microbatch, depths=chunk.config.mtp_num_layers or 0)


def _process(
    *,
    hidden_states: torch.Tensor,
    output_layer: Any,  # noqa: ANN401 - upstream type
    output_weight: torch.Tensor | None,
    context: _Context,
    config: Any,  # noqa: ANN401 - upstream type
    mtp_hidden_states: tuple[torch.Tensor, ...] = (),
    **_: object,
) -> ModelOutput:
    logits = hidden = None
    if Need.LOGITS in context.needs:
        logits = flat_rows(output_layer(hidden_states, weight=output_weight)[0])
    if Need.HIDDEN in context.needs:
        hidden = flat_hidden(hidden_states, config)
    return ModelOutput(
        logits=logits,
        hidden=hidden,
        vocab_size=context.vocab_size,
        mtp=tuple(
            MtpOutput(
                logits=flat_rows(output_layer(hidden, weight=output_weight)[0]),
                labels=view.labels.reshape(-1),
            )
            for hidden, view in zip(mtp_hidden_states, context.mtp_views, strict=True)
        ),
    )
