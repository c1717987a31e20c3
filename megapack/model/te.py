"""Transformer layers from Transformer Engine's modules. Never run: no GPU was available.

What could be seen on a CPU was: `tests/distributed/test_te.py` builds these layers from stand-ins
with Transformer Engine's parameter names and compares names, checkpoints and numbers with the
portable backend's. Letters: t = T/cp local positions, h and g = query and key/value heads of this
rank, d = head size.
"""

import weakref
from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
)

from megapack.batch.boundaries import Boundaries, hand_over
from megapack.errors import ContractError
from megapack.model.attention_plan import attention_plan
from megapack.model.router import PackedRouter


def te_provider() -> Any:  # noqa: ANN401 - upstream type
    """megatron-core's table of Transformer Engine's modules."""
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    return TESpecProvider()


def te_layer(
    config: Any,  # noqa: ANN401 - upstream type
    boundaries: Boundaries,
    *,
    provider: Any,  # noqa: ANN401 - upstream type
    num_experts: int | None,
) -> ModuleSpec:
    """One transformer layer whose norms are fused into the matrices that follow.

    Args:
        config: megatron-core's TransformerConfig.
        boundaries: how attention is told where documents end.
        provider: gives the modules.
        num_experts: routed experts of this layer, None for a dense MLP.
    """
    qk_norm = provider.layer_norm(for_qk=True) if config.qk_layernorm else IdentityOp
    dense = get_mlp_module_spec_for_backend(backend=provider, num_experts=None)
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=provider.column_parallel_layer_norm_linear(),
                    core_attention=bounded(provider.core_attention(), boundaries),
                    linear_proj=provider.row_parallel_linear(),
                    q_layernorm=qk_norm,
                    k_layernorm=qk_norm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            # The dense MLP's norm is in its first matrix; experts share one that stands alone.
            pre_mlp_layernorm=IdentityOp if num_experts is None else provider.layer_norm(),
            mlp=dense if num_experts is None else te_experts(provider),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def te_experts(provider: Any) -> Any:  # noqa: ANN401 - upstream types
    """Experts computed together (grouped GEMM), with a router that knows padding."""
    shared = MLPSubmodules(
        linear_fc1=provider.column_parallel_linear(),
        linear_fc2=provider.row_parallel_linear(),
    )
    return partial(
        MoELayer,
        submodules=MoESubmodules(
            experts=provider.grouped_mlp_modules(True),  # noqa: FBT003 - upstream signature
            shared_experts=partial(SharedExpertMLP, submodules=shared),
            router=PackedRouter,
        ),
    )


def bounded(attention: Any, boundaries: Boundaries) -> type:  # noqa: ANN401 - upstream type
    """A core attention that is handed the boundaries of a packed row in a form of its own.

    With EXACT boundaries a kernel computes nothing at padding and may leave there what was in
    memory, in outputs and in gradients. Zero times that must not become NaN in a weight's
    gradient, so padding is zeroed on the way in (which zeroes its gradient on the way back) and on
    the way out.

    Args:
        attention: class of the attention.
        boundaries: the form.
    """

    class Bounded(attention):  # type: ignore[misc]
        """Constructor arguments are upstream's."""

        def __init__(self, config: Any, **others: Any) -> None:  # noqa: ANN401 - upstream signature
            super().__init__(config=config, **others)
            groups = others.get("pg_collection")
            self.row_group = (groups or ProcessGroupCollection.use_mpu_process_groups()).cp

        def forward(
            self,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attention_mask: torch.Tensor | None = None,
            packed_seq_params: PackedSeqParams | None = None,
            **others: Any,  # noqa: ANN401 - upstream signature
        ) -> torch.Tensor:
            """Attend within documents: [t, h, d], [t, g, d], [t, g, d] to [t, h * d]."""
            if packed_seq_params is None:
                raise ContractError(
                    "te attention: expected packed_seq_params, found None: a pipeline stage that "
                    "lost them would attend across documents. Dense batches need backend = "
                    "portable."
                )
            handed = hand_over(packed_seq_params, boundaries)
            inputs = (query, key, value)
            if boundaries is Boundaries.SLOTS:
                out = super().forward(*inputs, attention_mask, packed_seq_params=handed, **others)
                return torch.as_tensor(out)
            padding = local_padding(packed_seq_params, self.row_group.size(), self.row_group.rank())
            clean = [one.masked_fill(padding[:, None, None], 0) for one in inputs]
            out = super().forward(*clean, attention_mask, packed_seq_params=handed, **others)
            return torch.as_tensor(out).masked_fill(padding[:, None], 0)

    return Bounded


_PADDING: dict[int, tuple["weakref.ref[PackedSeqParams]", torch.Tensor]] = {}


def local_padding(params: PackedSeqParams, cp_size: int, cp_rank: int) -> torch.Tensor:
    """bool [t] on the offsets' device: True at this rank's padding. Made once a microbatch."""
    key = id(params)
    entry = _PADDING.get(key)
    if entry is not None and entry[0]() is params:
        return entry[1]
    plan = attention_plan(params, cp_size, cp_rank)
    padding = torch.ones(plan.num_local, dtype=torch.bool)
    for piece in plan.pieces:
        padding[slice(*piece.query)] = False
    padding = padding.to(params.cu_seqlens_q_padded.device)
    _PADDING[key] = (weakref.ref(params, lambda _: _PADDING.pop(key, None)), padding)
    return padding
