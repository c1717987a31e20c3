"""Router replay: one state machine, open for one run of a schedule and gone afterwards.

A session puts a `LayerReplay` into the place that megatron-core's routers have for their own
`RouterReplay`, and takes it out again, also after an exception. The upstream class is not used:
it keeps one global list in order of construction that MTP's routers join, takes -1 for an index,
queues routes for backwards that never come, and leaves its state behind. MTP's routers never see
a session: they route other tokens than the decoder's.

A pipeline stage runs forwards and backwards of different microbatches in turn. Routes are set
for one forward and handed over to its own recompute, which comes in the order of the forwards.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from megatron.core.utils import get_attr_wrapped_model, get_model_config

from megapack.batch.microbatch import MicroBatch
from megapack.batch.routing import ROUTED_EXPERTS, for_routers, router_order
from megapack.errors import ConfigError, ContractError
from megapack.model.layer_replay import LayerReplay, LayerRoutes, ReplayMode
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import ParallelContext
from megapack.records.routed_experts import RouteShape

__all__ = ["ReplayMode", "RouteCounts", "RouterSession", "route_shape"]

_REPLAYS = (ReplayMode.REPLAY, ReplayMode.REPLAY_AND_BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCounts:
    """Routes, one a real position and MoE layer, over the whole model and step.

    Attributes:
        replayed: captured routes that were replayed.
        changed: those of them for which the router would have chosen other experts.
        missing: not captured; the router chose.
    """

    replayed: int
    changed: int
    missing: int


class RouterSession:
    """Routers under a mode, as a context manager; use one for each run of a schedule."""

    def __init__(self, chunks: Sequence[Any], mode: ReplayMode, context: ParallelContext) -> None:
        """Look the routers up; nothing changes yet.

        Args:
            chunks: this rank's model chunks, wrapped or not.
            mode: what the routers do.
            context: this rank.

        Raises:
            ConfigError: the model cannot replay.
            ContractError: the model's MoE layers are not where its configuration says.
        """
        self.mode = mode
        self._context = context
        self._routers: list[Any] = []
        self._layers: list[LayerReplay] = []
        self._before: list[Any] = []
        if mode is ReplayMode.OFF:
            return
        config = get_model_config(chunks[0])
        self._shape = route_shape(config)
        _refuse(config, mode)
        order = _moe_layer_numbers(config)
        decoders = [get_attr_wrapped_model(chunk, "decoder") for chunk in chunks]
        for layer in [layer for decoder in decoders for layer in decoder.layers]:
            router = getattr(layer.mlp, "router", None)
            if (router is not None) != (layer.layer_number in order):
                raise ContractError(
                    f"replay: expected MoE layers {order} of {config.num_layers} as "
                    f"moe_layer_freq says, found layer {layer.layer_number} otherwise."
                )
            if router is not None:
                self._routers.append(router)
                self._layers.append(
                    LayerReplay(
                        mode=mode,
                        layer_number=layer.layer_number,
                        index=order.index(layer.layer_number),
                    )
                )

    @property
    def layers(self) -> tuple[int, ...]:
        """This stage's MoE layers, as indices among those of the whole model."""
        return tuple(layer.index for layer in self._layers)

    def __enter__(self) -> Self:
        self._before = [router.router_replay for router in self._routers]
        for router, layer in zip(self._routers, self._layers, strict=True):
            router.router_replay = layer
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the routers as they were.

        Raises:
            ContractError: after a run without error, routes wait for a backward that did not come.
        """
        for router, before in zip(self._routers, self._before, strict=True):
            router.router_replay = before
        waiting = sum(len(layer.pending) for layer in self._layers)
        for layer in self._layers:
            layer.reset()
        if waiting and error is None:
            raise ContractError(
                f"replay = {self.mode}: expected every forward without gradients to be recomputed, "
                f"found {waiting} layers of forwards left over."
            )

    @contextmanager
    def forward(self, microbatch: MicroBatch) -> Iterator[None]:
        """The forward of one microbatch on this stage; what comes after is no part of it.

        Args:
            microbatch: with the field ROUTED_EXPERTS when replaying.

        Raises:
            ContractError: it has no routes, or routes of another model.
        """
        targets = self._targets(microbatch) if self.mode in _REPLAYS else None
        for i, layer in enumerate(self._layers):
            layer.forward, layer.recorded = True, None
            layer.target = None if targets is None else targets[i]
        try:
            yield
        finally:
            for layer in self._layers:
                layer.forward, layer.target = False, None

    def recorded(self) -> torch.Tensor:
        """What this stage's routers chose in the last forward.

        Returns:
            int64 [n, layers of this stage, K], in the order of the routers.

        Raises:
            ContractError: nothing was recorded.
        """
        chosen = [layer.recorded for layer in self._layers]
        for layer in self._layers:
            layer.recorded = None
        known = [one for one in chosen if one is not None]
        if not known or len(known) != len(chosen):
            raise ContractError(
                f"replay = {self.mode}: expected a recorded route of each of the MoE layers "
                f"{self.layers}, found {len(known)}."
            )
        return torch.stack(known, dim=1)

    def counts(self) -> RouteCounts:
        """Collective over tp_group, dp_cp_group and pp_group: what was replayed, on all ranks."""
        device = self._context.device
        total = torch.zeros(len(RouteCounts.__slots__), dtype=torch.int64, device=device)
        for layer in self._layers:
            total += 0 if layer.counts is None else layer.counts
        groups = [self._context.dp_cp_group, self._context.pp_group]
        if self._context.sizes.sequence_parallel:
            groups.append(self._context.tp_group)
        for group in groups:
            total = all_reduce(total, group)
        replayed, changed, missing = (int(count) for count in total.tolist())
        return RouteCounts(replayed=replayed, changed=changed, missing=missing)

    def _targets(self, microbatch: MicroBatch) -> list[LayerRoutes]:
        field = microbatch.fields.get(ROUTED_EXPERTS)
        expected = (self._shape.num_layers, self._shape.top_k)
        if field is None or tuple(field.shape[2:]) != expected:
            found = "none" if field is None else f"{tuple(field.shape[2:])}"
            raise ContractError(
                f"replay = {self.mode}: expected the microbatch to carry routes {expected} a "
                f"position (MoE layers, top-k), found {found}. Add AttachRoutes to the step's "
                "stages."
            )
        routes = for_routers(microbatch, self._context, num_experts=self._shape.num_experts)
        real = ~router_order(microbatch.padding_mask, self._context)
        return [LayerRoutes(experts=routes[:, layer.index], real=real) for layer in self._layers]


def route_shape(config: Any) -> RouteShape:  # noqa: ANN401 - upstream type
    """What routes of a model look like.

    Args:
        config: megatron-core's TransformerConfig.

    Raises:
        ConfigError: the model has no MoE layers.
    """
    return RouteShape(
        num_layers=len(_moe_layer_numbers(config)),
        top_k=config.moe_router_topk,
        num_experts=config.num_moe_experts or 0,
    )


def _moe_layer_numbers(config: Any) -> tuple[int, ...]:  # noqa: ANN401 - upstream type
    """Global numbers, from 1, of the layers that have a router."""
    if not config.num_moe_experts:
        return ()
    every = config.moe_layer_freq
    pattern = (
        [int(i % every == 0) for i in range(config.num_layers)] if isinstance(every, int) else every
    )
    return tuple(i for i, has_router in enumerate(pattern, start=1) if has_router)


def _refuse(config: Any, mode: ReplayMode) -> None:  # noqa: ANN401 - upstream type
    """Paths of megatron-core that would pass routes by without a word.

    Raises:
        ConfigError: naming the field.
    """
    balancing = config.moe_router_load_balancing_type
    reasons = {
        "moe_router_fusion: the fused top-k does not ask for routes": config.moe_router_fusion,
        f"moe_router_load_balancing_type = {balancing}: it chooses without a top-k": balancing
        in ("sinkhorn", "quantile_balancing"),
        "overlap_moe_expert_parallel_comm: it runs a backward inside a forward": (
            config.overlap_moe_expert_parallel_comm
        ),
        f"cuda_graph_impl = {config.cuda_graph_impl}: a graph keeps the routes of its capture": (
            config.cuda_graph_impl != "none"
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(f"replay = {mode} does not work with {reason}. Turn one of them off.")
