"""`PackedRouter`: megatron-core's top-k router, right for rows that hold padding.

Three things differ from upstream, each with a reproduction in `docs/upstream/`: a rank's part of
the load balancing loss is weighted by the tokens of all ranks that share the row, not by its own;
a microbatch without real tokens has a loss of zero instead of 0/0; and the mask of padding can be
combined with the map of chosen experts when the expert bias counts tokens.
"""

import torch
from megatron.core.transformer.moe.moe_utils import (
    get_tokens_per_expert_and_token_count,
    switch_load_balancing_loss_func,
)
from megatron.core.transformer.moe.router import TopKRouter


class PackedRouter(TopKRouter):  # type: ignore[misc]
    """Router of a layer. Constructor arguments are upstream's.

    Attributes:
        sums: float64 [2] on the model's device: this rank's part of the load balancing
            loss times tokens, and the sum of squared log-partition values, without coefficients,
            since `reset`; None before the first training forward.
    """

    sums: torch.Tensor | None = None

    def reset(self) -> None:
        """Begin a step."""
        self.sums = None

    def apply_z_loss(
        self, logits: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attach the z-loss, and keep its sum when there is one.

        Args:
            logits: [n, E].
            padding_mask: bool [n], True at padding.
        """
        if self.config.moe_z_loss_coeff is not None and self.training and torch.is_grad_enabled():
            with torch.no_grad():
                squares = torch.logsumexp(logits, dim=-1).square()
                real = squares if padding_mask is None else squares[~padding_mask]
                self._keep(1, real.sum())
        attached: torch.Tensor = super().apply_z_loss(logits, padding_mask=padding_mask)
        return attached

    def _keep(self, which: int, value: torch.Tensor) -> None:
        if self.sums is None:
            self.sums = torch.zeros(2, dtype=torch.float64, device=value.device)
        self.sums[which] += value.detach()

    def _apply_aux_loss(
        self,
        probs: torch.Tensor,
        scores_for_aux_loss: torch.Tensor,
        routing_map: torch.Tensor,
        with_padding_mask: bool = False,  # noqa: FBT001, FBT002 - upstream signature
    ) -> torch.Tensor:
        """Collective over the tp x cp group: attach the load balancing loss of the microbatch.

        Args:
            probs: [n, E], weights of the chosen experts.
            scores_for_aux_loss: float32 [n, E], zero at padding.
            routing_map: bool [n, E], False at padding.
            with_padding_mask: whether there is padding.
        """
        coefficient = self.get_aux_loss_coeff("aux_loss")
        if coefficient == 0:
            return probs
        tokens_per_expert, _, total = get_tokens_per_expert_and_token_count(
            routing_map=routing_map,
            reduce_group=self.tp_cp_group,
            topk=self.topk,
            with_padding_mask=with_padding_mask,
        )
        total = torch.as_tensor(total, dtype=torch.float64, device=probs.device)
        loss = switch_load_balancing_loss_func(
            probs=scores_for_aux_loss,
            tokens_per_expert=tokens_per_expert,
            total_num_tokens=total.clamp(min=1),
            topk=self.topk,
            num_experts=self.config.num_moe_experts,
            moe_aux_loss_coeff=coefficient,
        )
        self._keep(0, loss.detach().double() / coefficient * total)
        attached: torch.Tensor = self.attach_and_log_load_balancing_loss(
            probs,
            coefficient,
            loss,
            "load_balancing_loss",
            self.tp_cp_group,
            # Upstream multiplies by the group's size: with its own tokens, ranks would be
            # weighted by how many real tokens they happen to hold.
            valid_token_count=total / self.tp_cp_group.size(),
        )
        return attached

    def _apply_expert_bias(
        self, routing_map: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> None:
        """Count the real tokens of each expert.

        Args:
            routing_map: bool [n, E].
            padding_mask: bool [n], True at padding.
        """
        column = None if padding_mask is None else padding_mask[:, None]
        super()._apply_expert_bias(routing_map, padding_mask=column)
