"""`PackedDotProductAttention`: causal attention inside each document of a THD row, any device.

Each document is one call of torch's scaled_dot_product_attention, so no mask over the row exists
and a neighbour cannot leak in: not even bitwise. Padding and tail are not computed; their outputs
are zero. Context parallelism costs one gather of K|V a layer (and its reduce-scatter backward):
each rank then attends with its two zigzag chunks of every document to what precedes them.
A dense batch comes with a mask instead of boundaries and goes to `dense_attention`.

Letters: t = T/cp local positions, h and g = query and key/value heads of this rank, d = head size.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule

from megapack.errors import ConfigError, ContractError
from megapack.model.attention_plan import Piece, attention_plan
from megapack.model.dense_attention import dense_attention


class PackedDotProductAttention(MegatronModule):  # type: ignore[misc]
    """Core attention for megatron-core's SelfAttention. Constructor arguments are upstream's.

    Raises:
        ConfigError: attention dropout is on (its draws would depend on the packing), or the model
            asks for something this attention does not compute.
    """

    def __init__(  # noqa: PLR0913 - megatron-core calls it
        self,
        config: Any,  # noqa: ANN401 - upstream type
        layer_number: int,
        attn_mask_type: Any,  # noqa: ANN401 - upstream type
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,  # noqa: ANN401 - upstream type
    ) -> None:
        super().__init__(config=config)
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        unsupported = {
            "attention_dropout": dropout != 0.0,
            "window_size": config.window_size is not None,
            "softmax_type": config.softmax_type != "vanilla",
            "attention_type": attention_type != "self",
        }
        if any(unsupported.values()):
            names = [name for name, found in unsupported.items() if found]
            raise ConfigError(
                "PackedDotProductAttention: expected plain causal self-attention without dropout, "
                f"found settings of {', '.join(names)} in layer {layer_number}. Use the te backend."
            )
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
        self.cp_group = groups.cp
        self.scale = 1.0 / math.sqrt(config.kv_channels) if softmax_scale is None else softmax_scale

    def forward(  # noqa: PLR0913 - megatron-core calls it
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        attn_mask_type: Any = None,  # noqa: ANN401 - upstream type
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """Collective over cp_group. Attend within documents.

        Args:
            query: [t, h, d], positions already rotated; [S, B, h, d] of a dense batch.
            key: [t, g, d], or [S, B, g, d].
            value: [t, g, d], or [S, B, g, d].
            attention_mask: bool [B, 1, S, S] of a dense batch, True where a query may not see a
                key; not read where there are boundaries.
            attn_mask_type: not read.
            attention_bias: not read.
            packed_seq_params: boundaries of the row; the same object in every layer.

        Returns:
            [t, h * d], zero at padding; [S, B, h * d] of a dense batch.

        Raises:
            ContractError: there are neither boundaries nor a mask.
        """
        if packed_seq_params is None:
            if attention_mask is None:
                raise ContractError(
                    "PackedDotProductAttention: expected packed_seq_params, or the mask of a "
                    "dense batch, found neither: a pipeline stage that lost them would attend "
                    "across documents."
                )
            return dense_attention(query, key, value, attention_mask, scale=self.scale)
        plan = attention_plan(packed_seq_params, self.cp_group.size(), self.cp_group.rank())
        local = (query, key, value)
        if plan.to_row is not None:
            both = torch.cat((key, value), dim=-1)
            both = gather_from_sequence_parallel_region(both, group=self.cp_group)[plan.to_row]
            key, value = both.split((key.shape[-1], value.shape[-1]), dim=-1)
            local = (query, both, both)
        outputs = []
        done = 0
        for piece in plan.pieces:
            start, end = piece.query
            if start > done:
                outputs.append(query.new_zeros(start - done, *query.shape[1:]))
            outputs.append(self._attend(query, key, value, piece))
            done = end
        if done < plan.num_local:
            outputs.append(query.new_zeros(plan.num_local - done, *query.shape[1:]))
        out = torch.cat(outputs).flatten(1)
        return out if plan.pieces else out + _anchor(*local)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, piece: Piece
    ) -> torch.Tensor:
        """[queries, h, d] of one piece."""
        q = query[slice(*piece.query)].transpose(0, 1)[None]
        k = key[slice(*piece.key)].transpose(0, 1)[None]
        v = value[slice(*piece.key)].transpose(0, 1)[None]
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=piece.mask,
            is_causal=piece.mask is None,
            scale=self.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)


def _anchor(*tensors: torch.Tensor) -> torch.Tensor:
    """A zero that depends on the tensors.

    A rank that holds only padding must still take part in the backward of the gather, and its
    parameters must still report a gradient, or the other ranks wait for ever.
    """
    return torch.stack([(tensor * 0.0).sum() for tensor in tensors]).sum()
