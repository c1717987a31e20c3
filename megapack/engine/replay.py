"""Router replay in a schedule: the session, the recorded routes and the counts of one run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ConfigError
from megapack.model.replay import ReplayMode, RouterSession
from megapack.outputs.routing import RouteCollector
from megapack.parallel.context import ParallelContext
from megapack.records.routed_experts import RoutedExperts


class RoutersOfRun:
    """What the routers do in one run of a schedule."""

    def __init__(self, chunks: Sequence[Any], mode: ReplayMode, context: ParallelContext) -> None:
        """Look the routers up.

        Args:
            chunks: this rank's model chunks.
            mode: what the routers do.
            context: this rank.

        Raises:
            ConfigError: the model cannot replay.
        """
        self.session = RouterSession(chunks, mode, context)
        self._collector = RouteCollector(self.session.layers, context)

    @contextmanager
    def forward(self, microbatch: MicroBatch) -> Iterator[None]:
        """One microbatch's forward. Collective over tp_group and cp_group when recording."""
        with self.session.forward(microbatch):
            yield
        if self.session.mode is ReplayMode.RECORD:
            self._collector.take(microbatch, self.session.recorded())

    def records(self) -> tuple[RoutedExperts, ...]:
        """Collective over pp_group: recorded routes, on the writing rank."""
        return self._collector.records() if self.session.mode is ReplayMode.RECORD else ()

    def metrics(self) -> Mapping[str, float]:
        """Collective over the world: counts of replayed routes, equal on all ranks."""
        if self.session.mode in (ReplayMode.OFF, ReplayMode.RECORD):
            return {}
        counts = self.session.counts()
        return {
            "routes_replayed": float(counts.replayed),
            "routes_changed": float(counts.changed),
            "routes_missing": float(counts.missing),
        }


def check_replay(mode: ReplayMode, *, trains: bool, recomputes: bool, has_sink: bool) -> None:
    """Refuse a mode that the run would not use as it says.

    Args:
        mode: what the routers do.
        trains: whether there is a backward.
        recomputes: whether the model recomputes activations in the backward.
        has_sink: whether records go somewhere.

    Raises:
        ConfigError: naming the mode and what to use.
    """
    if mode is ReplayMode.RECORD and not has_sink:
        raise ConfigError("replay = record: expected a sink for the routes, found none.")
    if mode is ReplayMode.REPLAY_AND_BACKWARD and not trains:
        raise ConfigError(
            "replay = replay_and_backward: expected a run with a backward, found phase = "
            "forward_only. Use replay."
        )
    if mode is ReplayMode.REPLAY and trains and recomputes:
        raise ConfigError(
            "replay = replay: the model recomputes activations, and its routers would choose anew "
            "in the backward. Use replay_and_backward."
        )
