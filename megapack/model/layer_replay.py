"""`LayerReplay`: what stands in one router while routes are recorded or replayed.

megatron-core's routers ask an object in their attribute `router_replay` for the top-k, in place
of choosing it. Letters: n = positions that this rank's routers see, K experts per token, E
experts.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import torch

from megapack.errors import ContractError

TopK = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class ReplayMode(StrEnum):
    """What the routers of a run do.

    OFF: they are left alone. RECORD: they choose, and what they chose is kept for each forward.
    REPLAY: captured routes are in force in forwards. REPLAY_AND_BACKWARD: and again when a
    forward is recomputed in the backward.
    """

    OFF = "off"
    RECORD = "record"
    REPLAY = "replay"
    REPLAY_AND_BACKWARD = "replay_and_backward"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerRoutes:
    """Routes of one layer for one forward.

    Attributes:
        experts: int64 [n, K]; negative where a route was not captured.
        real: bool [n], False at padding.
    """

    experts: torch.Tensor
    real: torch.Tensor


@dataclass(slots=True, kw_only=True, eq=False)
class LayerReplay:
    """One router's part of a session.

    Attributes:
        mode: of the session; not OFF.
        layer_number: global number of the layer from 1, dense layers and earlier stages included.
        index: of the layer among the model's MoE layers, from 0.
        forward: whether a forward is running.
        target: routes of the forward that is running, when replaying.
        recorded: int64 [n, K], what the router chose in the last forward, when recording.
        pending: routes of forwards that will be recomputed, oldest first.
        counts: int64 [3] over the forwards: real positions whose captured route was replayed,
            those of them for which the router would have chosen other experts, and real
            positions without a captured route. On the device.
    """

    mode: ReplayMode
    layer_number: int
    index: int
    forward: bool = False
    target: LayerRoutes | None = None
    recorded: torch.Tensor | None = None
    pending: deque[LayerRoutes] = field(default_factory=deque)
    counts: torch.Tensor | None = None

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: TopK | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """megatron-core's call for the top-k of a router; its names.

        Args:
            scores: [n, E].
            topk: K.
            num_groups: groups of experts, for group-limited routing.
            group_topk: groups to choose.
            default_compute_topk: the router's own choice.

        Returns:
            Scores [n, K] and experts, int64 [n, K].

        Raises:
            ContractError: there are no routes for this call, or they have another shape.
        """
        if default_compute_topk is None:
            raise ContractError("LayerReplay: expected the router's own top-k, found None.")
        own, choice = default_compute_topk(
            scores, topk, num_groups=num_groups, group_topk=group_topk
        )
        if self.mode is ReplayMode.RECORD:
            if self.forward:
                self.recorded = choice.detach()
            return own, choice
        routes = self._in_force()
        if routes.experts.shape != choice.shape:
            raise ContractError(
                f"replay: layer {self.layer_number}: expected routes {tuple(choice.shape)}, one a "
                f"position of this rank, found {tuple(routes.experts.shape)}."
            )
        experts = torch.where(routes.experts < 0, choice, routes.experts)
        if self.forward:
            self._count(routes, choice)
        return scores.gather(1, experts), experts

    def reset(self) -> None:
        """Forget everything but the counts."""
        self.forward = False
        self.target = self.recorded = None
        self.pending.clear()

    def _in_force(self) -> LayerRoutes:
        """Routes of the forward that runs, or of the forward that is recomputed now.

        A forward that will be recomputed runs without gradients.
        """
        again = self.mode is ReplayMode.REPLAY_AND_BACKWARD
        if self.forward and self.target is not None:
            if again and not torch.is_grad_enabled():
                self.pending.append(self.target)
            return self.target
        if again and self.pending:
            return self.pending.popleft()
        raise ContractError(
            f"replay = {self.mode}: layer {self.layer_number} routes outside a forward, and no "
            "forward of it waits to be recomputed."
        )

    def _count(self, routes: LayerRoutes, choice: torch.Tensor) -> None:
        captured = (routes.experts >= 0).all(dim=1)
        differs = (routes.experts.sort(dim=1).values != choice.sort(dim=1).values).any(dim=1)
        replayed = routes.real & captured
        found = torch.stack(
            (replayed.sum(), (replayed & differs).sum(), (routes.real & ~captured).sum())
        )
        self.counts = found if self.counts is None else self.counts + found
