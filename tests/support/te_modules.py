"""Stand-ins with the parameter names, shapes and meaning of Transformer Engine's modules.

Imports torch and megatron-core: only functions that run on ranks may import this module.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from megapack.model.attention import PackedDotProductAttention
from megapack.model.norm import PortableRMSNorm


class NormLinear(ColumnParallelLinear):
    """TELayerNormColumnParallelLinear: the norm's weight is called layer_norm_weight."""

    def __init__(self, input_size: int, output_size: int, **others: Any) -> None:
        super().__init__(input_size, output_size, **others)
        config = others["config"]
        self.epsilon = config.layernorm_epsilon
        self.layer_norm_weight = torch.nn.Parameter(
            torch.ones(input_size, dtype=config.params_dtype)
        )
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel

    def forward(self, input_: torch.Tensor, *others: Any, **named: Any) -> Any:
        normed = F.rms_norm(input_, (input_.shape[-1],), self.layer_norm_weight, self.epsilon)
        return super().forward(normed, *others, **named)

    def get_extra_state(self) -> torch.Tensor:
        """Of FP8, in Transformer Engine; it is in every state dict."""
        return torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        """Empty without FP8."""

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: Any = None
    ) -> dict[str, Any]:
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"weight": 0, "bias": 0},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )


class LitteringAttention(PackedDotProductAttention):
    """Leaves what was in memory at padding, in outputs and in gradients, as kernels may."""

    littered = 0

    def forward(self, query, key, value, *others: Any, packed_seq_params=None, **named: Any):
        if not packed_seq_params.pad_between_seqs:
            return super().forward(
                query, key, value, *others, packed_seq_params=packed_seq_params, **named
            )
        from megapack.model.te import local_padding

        padding = local_padding(packed_seq_params, self.cp_group.size(), self.cp_group.rank())
        LitteringAttention.littered += int(padding.sum())
        inputs = [Litter.apply(one, padding) for one in (query, key, value)]
        out = super().forward(*inputs, *others, packed_seq_params=packed_seq_params, **named)
        return out.masked_fill(padding[:, None], torch.nan)


class Litter(torch.autograd.Function):
    """The identity whose gradient is NaN at padding."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(padding)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (padding,) = ctx.saved_tensors
        return gradient.masked_fill(padding[:, None, None], torch.nan), None


class StandInProvider(LocalSpecProvider):
    """Answers like megatron-core's TESpecProvider, without grouped experts."""

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        return NormLinear

    def layer_norm(self, *_: Any, **__: Any) -> type:
        return PortableRMSNorm

    def core_attention(self) -> type:
        return LitteringAttention

    def grouped_mlp_modules(self, _: Any) -> Any:
        return super().grouped_mlp_modules(False)  # noqa: FBT003 - upstream signature
