"""One forward: which keyword goes to the model, and what comes back.

megatron-core's `output_processor` hook hands over the hidden states before the LM head on the
last pipeline stage; what a head needs is computed there and nothing else. All outputs are flat:
n positions in the order of `microbatch.labels.reshape(-1)`. Letters: tp = size, H = hidden size,
V = vocabulary with padding, S and B of megatron-core's [S, B, H].
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.batch.mtp import MtpView, mtp_views
from megapack.errors import ConfigError
from megapack.model.draft import DraftCall, captured_layers, draft_of
from megapack.model.flat import flat_hidden, flat_rows
from megapack.model.keywords import bare, model_keywords
from megapack.parallel.lm_head import LmHead, LogitChunks, StoredLogits, wide


class Need(Flag):
    """What a head wants from a forward.

    LOGITS: in the model's dtype. FP32_LOGITS: widened to float32 as a whole. HIDDEN: input of the
    LM head. LM_HEAD: the same with sequence parallelism undone, and the LM head's weight; no
    logits are made. TOKEN_LOSS: megatron-core's own loss of each position. MTP: what the
    multi-token prediction layers give, without logits where LM_HEAD is wanted. DRAFT: what the
    draft guesses, and what the policy gives there.
    """

    NOTHING = 0
    LOGITS = auto()
    FP32_LOGITS = auto()
    HIDDEN = auto()
    LM_HEAD = auto()
    TOKEN_LOSS = auto()
    MTP = auto()
    DRAFT = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MtpOutput:
    """What one multi-token prediction layer gives.

    Attributes:
        logits: source of [n, V/tp], in the model's dtype.
        labels: int64 [n], what they predict, -100 where it does not count.
    """

    logits: LogitChunks
    labels: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftOutput:
    """What a draft guesses, beside what the policy gives. Nothing flows back to the policy.

    Attributes:
        guesses: [n, H] each, to be projected by the policy's LM head: at position t the first is a
            guess of what the policy gives at t + 1, the second at t + 2.
        labels: int64 [n] each, what would be predicted there, -100 where it does not count.
        policy: what the policy gives at each position: hidden states [n, H] and weight [V/tp, H].
    """

    guesses: tuple[torch.Tensor, ...]
    labels: tuple[torch.Tensor, ...]
    policy: LmHead


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelOutput:
    """What the last pipeline stage gives; None for what was not asked for.

    Attributes:
        logits: [n, V/tp], target-aligned.
        hidden: [n(/tp), H], input of the LM head; the tp_rank-th part of the n positions when
            sequence parallelism is on.
        vocab_size: real vocabulary; later columns of the logits are padding.
        lm_head: hidden states [n, H] and weight [V/tp, H], to project by chunks.
        token_loss: [n], float32, nats; finite and meaningless where no label counts.
        mtp: what each multi-token prediction layer gives; empty when not asked for.
        draft: what the draft guesses; None when not asked for.
    """

    logits: torch.Tensor | None
    hidden: torch.Tensor | None
    vocab_size: int
    lm_head: LmHead | None = None
    token_loss: torch.Tensor | None = None
    mtp: tuple[MtpOutput, ...] = ()
    draft: DraftOutput | None = None


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

    Raises:
        ConfigError: the model's own token loss is wanted over a padded vocabulary.
    """
    chunk = bare(model)
    keywords = model_keywords(chunk, request.microbatch)
    draft = draft_of(chunk) if Need.DRAFT in request.needs else None
    with captured_layers(chunk, draft) as captured:
        output: ModelOutput | torch.Tensor = model(
            **keywords,
            output_processor=_process,
            output_processor_context=_Context(
                needs=request.needs,
                vocab_size=chunk.real_vocab_size,
                token_loss=lambda logits: chunk.compute_language_model_loss(
                    request.microbatch.labels, logits
                ),
                mtp_views=_views(chunk, request),
                draft=None if draft is None else DraftCall.of(chunk, keywords, captured),
                draft_views=()
                if draft is None
                else mtp_views(request.microbatch, depths=draft.depth),
            ),
        )
    return output


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Context:
    needs: Need
    vocab_size: int
    token_loss: Callable[[torch.Tensor], torch.Tensor]
    mtp_views: tuple[MtpView, ...]
    draft: DraftCall | None
    draft_views: tuple[MtpView, ...]


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
    needs, vocab_size = context.needs, context.vocab_size
    logits = token_loss = hidden = lm_head = None
    if Need.TOKEN_LOSS in needs:
        _check_unpadded(output_layer.output_size, vocab_size)
        # Logits of its own: it writes into float32 ones (docs/upstream/cross_entropy_in_place.md).
        own = output_layer(hidden_states, weight=output_weight)[0]
        token_loss = context.token_loss(own).reshape(-1)
    if needs & (Need.LOGITS | Need.FP32_LOGITS):
        logits = _stored(hidden_states, output_layer, output_weight).logits
    if Need.FP32_LOGITS in needs and logits is not None:
        logits = logits.to(wide(logits.dtype))
    if Need.HIDDEN in needs:
        hidden = flat_hidden(hidden_states, config)
    if Need.LM_HEAD in needs:
        lm_head = _lm_head(hidden_states, output_layer, output_weight)
    return ModelOutput(
        logits=logits,
        hidden=hidden,
        vocab_size=vocab_size,
        lm_head=lm_head,
        token_loss=token_loss,
        mtp=tuple(
            MtpOutput(
                logits=_lm_head(states, output_layer, output_weight)
                if Need.LM_HEAD in needs
                else _stored(states, output_layer, output_weight),
                labels=view.labels.reshape(-1),
            )
            for states, view in zip(mtp_hidden_states, context.mtp_views, strict=True)
        ),
        draft=_draft(hidden_states, output_layer, output_weight, context),
    )


def _draft(
    hidden: torch.Tensor,
    output_layer: Any,  # noqa: ANN401 - upstream type
    output_weight: torch.Tensor | None,
    context: _Context,
) -> DraftOutput | None:
    """Collective over the tp and cp groups: the draft behind the policy's hidden states."""
    if context.draft is None:
        return None
    with torch.no_grad():
        policy = _lm_head(hidden.detach(), output_layer, output_weight)
    guesses = context.draft.guesses(hidden, [view.tokens for view in context.draft_views])
    return DraftOutput(
        guesses=tuple(_lm_head(one, output_layer, output_weight).hidden for one in guesses),
        labels=tuple(view.labels.reshape(-1) for view in context.draft_views),
        policy=LmHead(hidden=policy.hidden, weight=policy.weight.detach()),
    )


def _stored(
    hidden: torch.Tensor,
    output_layer: Any,  # noqa: ANN401 - upstream type
    output_weight: torch.Tensor | None,
) -> StoredLogits:
    """Collective over tp_group under sequence parallelism: logits of all positions."""
    return StoredLogits(logits=flat_rows(output_layer(hidden, weight=output_weight)[0]))


def _lm_head(
    hidden: torch.Tensor,
    output_layer: Any,  # noqa: ANN401 - upstream type
    output_weight: torch.Tensor | None,
) -> LmHead:
    """Collective over tp_group: hidden states of all positions, and this rank's weight.

    What ColumnParallelLinear does to its input: backward sums the ranks' gradients.
    """
    from megatron.core.tensor_parallel.mappings import (
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
    )

    if output_layer.sequence_parallel:
        whole = gather_from_sequence_parallel_region(hidden, group=output_layer.tp_group)
    else:
        whole = copy_to_tensor_model_parallel_region(hidden, group=output_layer.tp_group)
    weight = output_layer.weight if output_weight is None else output_weight
    return LmHead(hidden=flat_rows(whole), weight=weight)


def _check_unpadded(columns: int, vocab_size: int) -> None:
    if columns != vocab_size:
        raise ConfigError(
            f"token loss by the model: expected a vocabulary without padding, found {columns} "
            f"columns for {vocab_size} tokens. megatron-core's cross-entropy sums over padded "
            "columns, whose number depends on tp. Use outputs.token_loss = megapack, or a "
            "vocab_multiple x tp that divides the vocabulary."
        )
