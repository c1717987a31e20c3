"""The draft: a decoder layer behind the policy that guesses its next tokens (`jobs.draft`).

It is a module of the last stage's chunk, so that gradient buffers, optimizer and checkpoints take
it along, and is built from megatron-core's multi-token prediction layer. Everything it takes from
the policy is detached. Its gradient has a norm of its own, so that the policy's is clipped as it
would be without it. Letters: S positions along the row (divided by cp, and by tp under sequence
parallelism), B rows, H.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from megatron.core.optimizer.optimizer import GRAD_NORM_GROUP_ATTR, MTP_GRAD_NORM_GROUP
from megatron.core.transformer.module import MegatronModule

from megapack.errors import ConfigError
from megapack.jobs.draft import DraftJob, DraftTraining
from megapack.jobs.model import ModelJob
from megapack.model.initialize import initialize_weights
from megapack.model.mtp import PackedMtpLayer, mtp_block
from megapack.model.spec import Mlp, PortableSpecProvider, portable_layer
from megapack.parallel.context import ParallelContext

NAME = "draft"
"""Attribute of a chunk, and first word of its parameters' names."""


class Draft(MegatronModule):  # type: ignore[misc]
    """Projection of the captured layers, and one decoder layer.

    Args:
        policy: chunk of the last stage.
        job: what it reads and how far it guesses.
        context: this rank.
    """

    def __init__(self, policy: Any, job: DraftJob, context: ParallelContext) -> None:  # noqa: ANN401 - upstream type
        super().__init__(config=policy.config)
        self.layers = job.layers
        self.depth = job.depth
        # Upstream builds the inner layer of models that say they have such layers.
        config = copy.copy(policy.config)
        config.mtp_num_layers = 1
        block = mtp_block(config, portable_layer(config, Mlp.DENSE), PortableSpecProvider())
        (spec,) = block.layer_specs
        if self.layers:
            size = config.hidden_size, config.hidden_size * len(self.layers)
            weight = torch.nn.Parameter(torch.empty(size, dtype=config.params_dtype))
            # Every tp rank has the whole weight and, under sequence parallelism, sees its part of
            # the row: finalize_model_grads sums the gradients then.
            weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
            self.join = torch.nn.ParameterDict({"weight": weight})
        self.layer = PackedMtpLayer(config, spec.submodules, pg_collection=context.collection)

    def features(self, hidden: torch.Tensor, captured: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """What the first guess is made from.

        Args:
            hidden: [S, B, H], the policy's before the LM head.
            captured: outputs [S, B, H] of the layers that it reads.

        Returns:
            [S, B, H]; nothing flows back to the policy.
        """
        if not self.layers:
            # A leaf that asks for a gradient, or recompute would give none to the layer.
            return hidden.detach().requires_grad_(torch.is_grad_enabled())
        read = torch.cat([captured[number].detach() for number in self.layers], dim=-1)
        return F.linear(read, self.join["weight"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftCall:
    """A draft inside a forward of its policy.

    Attributes:
        policy: chunk of the last stage, with a draft.
        captured: outputs [S, B, H] of the layers that the draft reads.
        position_ids: int64 [B, S] of the microbatch.
        attention_mask: as the policy takes it.
        packed_seq_params: as the policy takes it.
    """

    policy: Any
    captured: Mapping[int, torch.Tensor]
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    packed_seq_params: Any

    @classmethod
    def of(
        cls,
        policy: Any,  # noqa: ANN401 - upstream type
        keywords: Mapping[str, Any],
        captured: Mapping[int, torch.Tensor],
    ) -> Self:
        """The draft of a policy that is called with these keywords."""
        names = ("position_ids", "attention_mask", "packed_seq_params")
        return cls(policy=policy, captured=captured, **{name: keywords[name] for name in names})

    def guesses(
        self, hidden: torch.Tensor, tokens: Sequence[torch.Tensor]
    ) -> Iterator[torch.Tensor]:
        """Collective over the tp and cp groups: guesses further and further ahead.

        Args:
            hidden: [S, B, H], the policy's before the LM head.
            tokens: int64 [B, S] each: the token one position on, then two.

        Yields:
            [S, B, H] each, for the policy's LM head; each is made from the one before.
        """
        features = self.policy.draft.features(hidden, self.captured)
        for shifted in tokens:
            features = self.guess(features, shifted)
            yield features

    def guess(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Collective over the tp and cp groups: one pass of the decoder layer.

        Args:
            features: [S, B, H] of each position: `Draft.features`, or the draft's own outputs.
            tokens: int64 [B, S], the token behind what the features know.

        Returns:
            [S, B, H], for the policy's LM head.
        """
        hidden, _, _, _ = self.policy.draft.layer(
            input_ids=tokens,
            position_ids=self.position_ids,
            hidden_states=features,
            attention_mask=self.attention_mask,
            rotary_pos_emb=self._rotary(features),
            packed_seq_params=self.packed_seq_params,
            embedding=self._embed,
        )
        guessed: torch.Tensor = hidden
        return guessed

    def _embed(self, **inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            embedded: torch.Tensor = self.policy.embedding(**inputs)
        return embedded

    def _rotary(self, features: torch.Tensor) -> torch.Tensor:
        """The angles that the policy's layers get."""
        params, rotary = self.packed_seq_params, self.policy.rotary_pos_emb
        length = rotary.get_rotary_seq_len(
            None, self.policy.decoder, features, self.policy.config, params
        )
        group = None if params is None else params.cp_group
        angles: torch.Tensor = rotary(length, packed_seq=params is not None, cp_group=group)
        return angles


def attach_draft(
    chunks: Sequence[Any],
    job: DraftJob,
    *,
    model: ModelJob,
    context: ParallelContext,
    seed: int,
) -> None:
    """Give the last stage's chunk a draft. Call it on all ranks, before `wrap_ddp`.

    Args:
        chunks: from `build_model`, with the weights that the run begins with.
        job: the draft. ALONE stops gradients of everything else.
        model: shape of the policy.
        context: this rank.
        seed: of its weights.

    Raises:
        ConfigError: the layout has pipeline stages.
    """
    if context.sizes.pp > 1:
        raise ConfigError(f"a draft needs pp = 1, found pp = {context.sizes.pp}.")
    chunk = chunks[-1]
    if job.training is DraftTraining.ALONE:
        chunk.requires_grad_(requires_grad=False)
    chunk.draft = Draft(chunk, job, context).to(context.device)
    initialize_weights(
        chunk, job=model, context=context, vocab_size=chunk.real_vocab_size, seed=seed, part=NAME
    )
    for parameter in chunk.draft.parameters():
        setattr(parameter, GRAD_NORM_GROUP_ATTR, MTP_GRAD_NORM_GROUP)


def draft_of(chunk: Any) -> Draft | None:  # noqa: ANN401 - upstream type
    """The draft of a chunk without wrappers, None for none."""
    draft: Draft | None = getattr(chunk, NAME, None)
    return draft


@contextmanager
def captured_layers(chunk: Any, draft: Draft | None) -> Iterator[Mapping[int, torch.Tensor]]:  # noqa: ANN401 - upstream type
    """Layers' outputs [S, B, H] of the forward that runs inside the block, as the draft reads them.

    What recompute runs again in backward is outside the block.
    """
    wanted = () if draft is None else draft.layers
    found: dict[int, torch.Tensor] = {}
    with ExitStack() as hooks:
        for layer in chunk.decoder.layers if wanted else ():
            if layer.layer_number in wanted:
                keep = partial(_keep, found, layer.layer_number)
                hooks.callback(layer.register_forward_hook(keep).remove)
        yield found


def _keep(
    found: dict[int, torch.Tensor],
    number: int,
    _module: object,
    _inputs: object,
    output: Any,  # noqa: ANN401 - upstream type
) -> None:
    found[number] = output[0] if isinstance(output, tuple) else output
