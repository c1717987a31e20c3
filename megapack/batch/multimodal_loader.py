"""A `StatefulDataLoader` with the settings that multimodal rows need.

It differs from its base in four ways, each of which keeps an epoch whole: a state taken at the end
of an epoch gives an empty rest of that epoch, not the next one at once; another number of data
workers is refused by name, and so is an empty state; asking for a state before the first batch does
not fix the epoch.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import ValidationError
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.errors import ConfigError
from megapack.steps.multimodal.stream_statistics import StreamStatistics


@runtime_checkable
class ChecksWorkers(Protocol):
    """A data set that can say in this process what its data workers would refuse."""

    def check_workers(self, workers: int) -> None:
        """Refuse what each of these workers would refuse."""

    def check_state(self, state: Mapping[str, Any], *, worker: int, workers: int) -> None:
        """Refuse a state that this worker would refuse."""


class MultimodalLoader(StatefulDataLoader):  # type: ignore[misc]  # no types there
    """Loads rows; made by `multimodal_loader`."""

    _before_state: dict[str, Any] | None = None
    _initial_iter_for_state_dict: bool

    def __iter__(self) -> Iterator[MultimodalBatch]:
        """Batches of an epoch, or what is left of it."""
        if self._initial_iter_for_state_dict:
            self._iterator = None
            self._initial_iter_for_state_dict = False
            self.next_iter_state = self._before_state
        return cast("Iterator[MultimodalBatch]", super().__iter__())

    def state_dict(self) -> dict[str, Any]:
        """State of what was handed out, of all data workers of this rank."""
        if self._iterator is None:
            self._before_state = self.next_iter_state
        return cast("dict[str, Any]", super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after `state_dict`.

        Raises:
            ConfigError: it is empty, no state of a loader, or of another number of data workers,
                or one of these would refuse its own.
        """
        if not _is_state(state_dict):
            found = str(sorted(state_dict)) if state_dict else "an empty one"
            raise ConfigError(
                f"MultimodalLoader.load_state_dict: expected a state, found {found}. Load what "
                "state_dict returned; to begin anew, load nothing."
            )
        workers = len(_worker_states(state_dict)) if "_snapshot" in state_dict else 0
        if workers != self.num_workers:
            raise ConfigError(
                f"MultimodalLoader.load_state_dict: expected a state of {self.num_workers} data "
                f"workers as in this run, found one of {workers}. Go on with {workers}, or begin "
                "the next epoch without a state."
            )
        if workers and isinstance(self.dataset, ChecksWorkers):
            for one in _worker_states(state_dict).values():
                if one["dataset_state"] is not None:
                    self.dataset.check_state(
                        one["dataset_state"], worker=one["worker_id"], workers=workers
                    )
        super().load_state_dict({**state_dict, "_iterator_finished": False})


def multimodal_loader(
    dataset: IterableDataset[MultimodalBatch],
    *,
    workers: int = 0,
    ahead: int = 2,
    start: str | None = None,
) -> MultimodalLoader:
    """A loader of rows, one batch each.

    Args:
        dataset: a `MultimodalDataset`, or another one of rows with `state_dict`.
        workers: data workers; they live on between epochs.
        ahead: rows that each has ready.
        start: how workers are started: "fork", "spawn", or None for the system's way.

    Raises:
        ConfigError: the data workers would refuse the job, or to be so many.
    """
    if workers and isinstance(dataset, ChecksWorkers):
        dataset.check_workers(workers)
    with warnings.catch_warnings():
        # torchdata 0.11 calls torch.set_vital, which torch 2.15 calls deprecated.
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
        return MultimodalLoader(
            dataset,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=ahead if workers else None,
            persistent_workers=workers > 0,
            multiprocessing_context=start if workers else None,
        )


def loader_statistics(state: Mapping[str, Any]) -> StreamStatistics:
    """What all data workers of a rank did, by the state of a loader or of a dataset.

    Raises:
        ConfigError: it is no state of a `MultimodalDataset` or of a loader of one.
    """
    total = StreamStatistics()
    try:
        for dataset in _dataset_states(state):
            if dataset is not None and dataset["stream"]:
                total = total.plus(StreamStatistics.model_validate(dataset["stream"]["statistics"]))
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise ConfigError(
            "loader_statistics: expected what state_dict of a MultimodalDataset, or of a loader of "
            f"one, returned, found {state!r:.80}."
        ) from error
    return total


def _is_state(state: Mapping[str, Any]) -> bool:
    snapshot = state.get("_snapshot")
    several = isinstance(snapshot, Mapping) and bool(snapshot.get("_worker_snapshots"))
    return several or "_num_yielded" in state


def _dataset_states(state: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """States of the data set in each worker, or of the one in this process."""
    if "_snapshot" in state:
        return [worker["dataset_state"] for worker in _worker_states(state).values()]
    return [state.get("dataset_state", state)]


def _worker_states(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", state["_snapshot"]["_worker_snapshots"])
