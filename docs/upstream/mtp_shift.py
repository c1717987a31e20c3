"""MTP shifts tokens by offsets that do not match a row with slots. See mtp_shift.md."""

import sys

import torch


def fault_is_present() -> bool:
    """Whether shifting two documents in slots of four loses or crosses tokens."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    tokens = torch.tensor([[1, 2, 3, 0, 5, 6, 7, 8]])
    params = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=torch.tensor([0, 3, 7]),
        cu_seqlens_kv=torch.tensor([0, 3, 7]),
        cu_seqlens_q_padded=torch.tensor([0, 4, 8]),
        cu_seqlens_kv_padded=torch.tensor([0, 4, 8]),
    )
    shifted, _ = roll_tensor(tokens, packed_seq_params=params)
    return shifted[0, :3].tolist() != [2, 3, 0] or shifted[0, 4:].tolist() != [6, 7, 8, 0]


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
