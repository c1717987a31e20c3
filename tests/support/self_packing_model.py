"""Two small consumers of the batches that are not THD rows, for tests on ranks.

Both are GPTModel with another forward, so `build_model` makes them: give a chunk the class.
They stand for models of other people and share no code with megapack's own packing: both cut by
`arange` and slices, as mbridge's `preprocess_packed_seqs` does.
"""

from itertools import pairwise
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams


def own_share(values: torch.Tensor, cp_size: int, cp_rank: int) -> torch.Tensor:
    """[m, ...] of one item: chunks r and 2*cp-1-r."""
    if cp_size == 1:
        return values
    chunks = values.chunk(2 * cp_size)
    return torch.cat((chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]))


class SelfPackingGPT(GPTModel):
    """Takes [B, S] and a mask of valid tokens; packs and cuts by itself."""

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        packed_seq_params: PackedSeqParams | None = None,
        *,
        padding_mask: None = None,
        **rest: Any,
    ) -> Any:
        cp = self.pg_collection.cp
        tp = self.pg_collection.tp.size()
        align = tp * (2 * cp.size() if cp.size() > 1 else 1)
        lengths = attention_mask.sum(1)
        slots = (lengths + align - 1) // align * align
        width = int(slots.max())
        ids = torch.nn.functional.pad(input_ids, (0, max(width - input_ids.shape[1], 0)))
        local = torch.cat(
            [
                own_share(ids[i, : int(slot)], cp.size(), cp.rank())
                for i, slot in enumerate(slots.tolist())
            ]
        )
        zero = torch.zeros(1, dtype=torch.int64)
        own = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=torch.cat((zero, lengths.cumsum(0))).int(),
            cu_seqlens_kv=torch.cat((zero, lengths.cumsum(0))).int(),
            cu_seqlens_q_padded=torch.cat((zero, slots.cumsum(0))).int(),
            cu_seqlens_kv_padded=torch.cat((zero, slots.cumsum(0))).int(),
            max_seqlen_q=width,
            max_seqlen_kv=width,
        )
        given = packed_seq_params.cu_seqlens_q_padded
        if own.cu_seqlens_q_padded.tolist() != given.tolist():
            raise AssertionError(f"{own.cu_seqlens_q_padded} is not {given}")
        return super().forward(local[None], None, None, packed_seq_params=own, **rest)


class MediaGPT(GPTModel):
    """Takes a whole THD row, puts features at media tokens, then cuts for context parallelism."""

    def forward(  # noqa: PLR0913 - called by keyword
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: None,
        packed_seq_params: PackedSeqParams,
        *,
        media_features: torch.Tensor | None = None,
        media_token_validity_mask: torch.Tensor | None = None,
        padding_mask: None = None,
        **rest: Any,
    ) -> Any:
        from megatron.core.tensor_parallel.mappings import scatter_to_sequence_parallel_region

        cp = self.pg_collection.cp
        embedded = None
        if self.pre_process:
            offsets = packed_seq_params.cu_seqlens_q_padded.tolist()
            # The embedding may cut for sequence parallelism: media come first.
            scatter = self.embedding.scatter_to_sequence_parallel
            reduce = self.embedding.reduce_scatter_embeddings
            words = self.embedding.word_embeddings
            words.reduce_scatter_embeddings = False
            whole = words(input_ids)[0]
            words.reduce_scatter_embeddings = reduce
            if media_features is not None:
                whole = whole.clone()
                whole[media_token_validity_mask[0]] = media_features.to(whole.dtype)
            parts = [
                own_share(whole[start:end], cp.size(), cp.rank())
                for start, end in pairwise(offsets)
            ]
            embedded = torch.cat(parts)[:, None]
            if scatter and self.config.sequence_parallel:
                embedded = scatter_to_sequence_parallel_region(embedded)
        return super().forward(
            input_ids,
            position_ids,
            None,
            decoder_input=embedded,
            packed_seq_params=packed_seq_params,
            **rest,
        )
