"""Parts of one router loss are weighted by each rank's own tokens. See router_loss_by_rank.md."""

import sys
from types import SimpleNamespace

import torch

from megapack.parallel.runtime import install_cpu_runtime


def fault_is_present() -> bool:
    """Whether two ranks' parts of one loss get different gradients."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        num_moe_experts=4,
        moe_ffn_hidden_size=8,
        moe_aux_loss_coeff=0.1,
        calculate_per_token_loss=True,
    )
    two = SimpleNamespace(size=lambda: 2)
    groups = ProcessGroupCollection(tp=None, cp=two, tp_cp=two, tp_dp_cp=two)
    router = TopKRouter(config, pg_collection=groups)
    gradients = []
    # The row's loss is the sum of the parts; one rank holds 6 real tokens, the other 2.
    for real_tokens in (6, 2):
        part = torch.tensor(0.5, requires_grad=True)
        weights = router.attach_and_log_load_balancing_loss(
            torch.zeros(8, 4), 0.1, part, "loss", two, valid_token_count=real_tokens
        )
        weights.sum().backward()
        gradients.append(float(part.grad))
    return gradients[0] != gradients[1]


if __name__ == "__main__":
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
