"""Which modules a transformer layer is made of: `portable` or Transformer Engine.

Both give checkpoints the same parameter names: the portable spec keeps megatron-core's map from
its separate norms to the names that TE's fused norm-and-linear modules have.
"""

from enum import Enum
from functools import partial
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)

from megapack.batch.boundaries import Boundaries
from megapack.errors import ConfigError
from megapack.jobs.model import BackendName
from megapack.model.attention import PackedDotProductAttention
from megapack.model.mtp import mtp_block
from megapack.model.norm import PortableRMSNorm
from megapack.model.router import PackedRouter
from megapack.model.te import te_layer, te_provider

NORM_NAMES = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


class PortableSpecProvider(LocalSpecProvider):  # type: ignore[misc]
    """megatron-core's local modules, with our norm and our attention."""

    def layer_norm(self, *_: Any, **__: Any) -> type:  # noqa: ANN401 - upstream signature
        """The norm of every place in a layer."""
        return PortableRMSNorm

    def core_attention(self) -> type:
        """The attention between the projections."""
        return PackedDotProductAttention


def layer_spec(config: Any, backend: BackendName) -> TransformerBlockSubmodules:  # noqa: ANN401 - upstream type
    """What GPTModel takes as its layer spec.

    Args:
        config: megatron-core's TransformerConfig.
        backend: from `select_backend`.
    """
    if backend is BackendName.PORTABLE:
        return portable_block(config)
    boundaries = Boundaries.EXACT if backend is BackendName.TE_EXACT else Boundaries.SLOTS
    return te_block(config, boundaries, te_provider())


def te_block(
    config: Any,  # noqa: ANN401 - upstream type
    boundaries: Boundaries,
    provider: Any,  # noqa: ANN401 - upstream type
) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage from Transformer Engine's modules.

    Args:
        config: megatron-core's TransformerConfig.
        boundaries: how attention is told where documents end.
        provider: gives the modules.
    """
    experts = {Mlp.DENSE: None, Mlp.EXPERTS: config.num_moe_experts}
    kinds = {
        mlp: te_layer(config, boundaries, provider=provider, num_experts=number)
        for mlp, number in experts.items()
    }
    return TransformerBlockSubmodules(
        layer_specs=[kinds[mlp_of_layer(config, layer)] for layer in layers_of_stage(config)],
        layer_norm=provider.layer_norm(),
    )


def layers_of_stage(config: Any) -> range:  # noqa: ANN401 - upstream type
    """Global numbers, from 0, of the layers of this pipeline stage."""
    first = get_transformer_layer_offset(config)
    return range(first, first + get_num_layers_to_build(config))


def mtp_spec(config: Any, backend: BackendName) -> Any:  # noqa: ANN401 - upstream types
    """What GPTModel takes as its MTP spec on the last stage; None for a model without MTP.

    Args:
        config: megatron-core's TransformerConfig.
        backend: a selected backend, not `auto`.

    Raises:
        ConfigError: the model has MTP layers and the backend cannot build them.
    """
    if not config.mtp_num_layers:
        return None
    if backend is not BackendName.PORTABLE:
        raise ConfigError(
            f"ModelJob.mtp_num_layers = {config.mtp_num_layers} with backend = {backend.value}, "
            "expected backend = portable: its MTP layers alone are fed document by document."
        )
    last = mlp_of_layer(config, config.num_layers - 1)
    return mtp_block(config, portable_layer(config, last), PortableSpecProvider())


def portable_block(config: Any) -> TransformerBlockSubmodules:  # noqa: ANN401 - upstream type
    """The layers of this pipeline stage from portable modules."""
    kinds = {mlp: portable_layer(config, mlp) for mlp in Mlp}
    return TransformerBlockSubmodules(
        layer_specs=[kinds[mlp_of_layer(config, layer)] for layer in layers_of_stage(config)],
        layer_norm=PortableSpecProvider().layer_norm(),
    )


class Mlp(Enum):
    """What stands behind the attention of a layer."""

    DENSE = "dense"
    EXPERTS = "experts"


def mlp_of_layer(config: Any, layer: int) -> Mlp:  # noqa: ANN401 - upstream type
    """What a layer's MLP is.

    Args:
        config: megatron-core's TransformerConfig.
        layer: global number, from 0.
    """
    if config.num_moe_experts is None:
        return Mlp.DENSE
    return Mlp.EXPERTS if config.moe_layer_freq[layer] else Mlp.DENSE


def portable_layer(config: Any, mlp: Mlp) -> ModuleSpec:  # noqa: ANN401 - upstream type
    """One transformer layer from portable modules."""
    provider = PortableSpecProvider()
    norm = provider.layer_norm()
    qk_norm = norm if config.qk_layernorm else IdentityOp
    names = dict(NORM_NAMES)
    dense = get_mlp_module_spec_for_backend(backend=provider, num_experts=None)
    if mlp is Mlp.EXPERTS:
        # Transformer Engine's norm before experts stands alone too, under its own name.
        del names["pre_mlp_layernorm."]
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=provider.column_parallel_linear(),
                    core_attention=provider.core_attention(),
                    linear_proj=provider.row_parallel_linear(),
                    q_layernorm=qk_norm,
                    k_layernorm=qk_norm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=norm,
            mlp=portable_experts(provider) if mlp is Mlp.EXPERTS else dense,
            mlp_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map=names,
        ),
    )


def portable_experts(provider: PortableSpecProvider) -> Any:  # noqa: ANN401 - upstream type
    """Experts one after the other, with a router that knows padding."""
    shared = MLPSubmodules(
        linear_fc1=provider.column_parallel_linear(),
        linear_fc2=provider.row_parallel_linear(),
        activation_func=provider.activation_func(),
    )
    return partial(
        MoELayer,
        submodules=MoESubmodules(
            experts=provider.grouped_mlp_modules(False),  # noqa: FBT003 - upstream signature
            shared_experts=partial(SharedExpertMLP, submodules=shared),
            router=PackedRouter,
        ),
    )
