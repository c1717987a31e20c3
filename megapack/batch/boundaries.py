"""The boundaries of a packed row in the forms that Transformer Engine's attention takes.

EXACT: true and padded offsets, for cuDNN's attention. SLOTS: padded offsets as if documents filled
their slots, for FlashAttention. Both are right for real tokens: padding stands behind the document
in its slot, so under a causal mask nothing real sees it. Neither touches the device.
"""

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams


class Boundaries(Enum):
    """How the boundaries of documents are handed to an attention kernel."""

    EXACT = "exact"
    SLOTS = "slots"


def hand_over(params: "PackedSeqParams", how: Boundaries) -> "PackedSeqParams":
    """The same row's boundaries for a kernel.

    Args:
        params: of `megapack.batch.thd`, with both kinds of offsets.
        how: form.

    Returns:
        A new object. `pad_between_seqs` says what is in it, or the kernel would compare the
        offsets on the device and wait for the answer.
    """
    # total_tokens would make megatron-core compute sequence numbers, which attention does not read.
    if how is Boundaries.EXACT:
        return replace(params, total_tokens=None, pad_between_seqs=True)
    return replace(
        params,
        cu_seqlens_q=params.cu_seqlens_q_padded,
        cu_seqlens_kv=params.cu_seqlens_kv_padded,
        total_tokens=None,
        pad_between_seqs=False,
    )
