"""A label of an MTP layer weighs what its row says. See mtp_loss_by_microbatch.md."""

import sys
from types import SimpleNamespace

import torch


def fault_is_present() -> bool:
    """Whether a label weighs more in a row that loses more of its labels to the shift."""
    from megatron.core.transformer.multi_token_prediction import process_mtp_loss

    config = SimpleNamespace(
        mtp_num_layers=1,
        mtp_loss_scaling_factor=1.0,
        mtp_detach_heads=False,
        calculate_per_token_loss=True,
    )

    def gradient(masks: torch.Tensor) -> float:
        hidden = torch.ones(2 * masks.shape[1], masks.shape[0], 1, requires_grad=True)
        process_mtp_loss(
            hidden_states=hidden,
            labels=torch.zeros_like(masks, dtype=torch.int64),
            loss_mask=masks,
            output_layer=lambda states, **_: (states, None),
            output_weight=None,
            runtime_gather_output=None,
            is_training=False,
            compute_language_model_loss=lambda _, logits: logits[..., 0].transpose(0, 1),
            config=config,
        ).sum().backward()
        return float(hidden.grad[masks.shape[1] :].sum())

    # One label is left after the shift, of two; three are left, of three.
    few = gradient(torch.tensor([[1.0, 1, 0, 0]]))
    many = gradient(torch.tensor([[0.0, 1, 1, 1]]))
    return few / 1 != many / 3


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
