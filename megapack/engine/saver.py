"""Saving while training goes on: at most one checkpoint under way, commits in order.

A save has three parts. The state is copied into host memory (collective; steps wait). Every rank
writes its files to the node's disk and uploads them (a thread, no communication). When all have,
rank 0 commits (a thread again). A failure of any part is raised on all ranks at the next look.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from megapack.engine.checkpoint import CheckpointStore, is_first_of_node, on_each_node
from megapack.engine.metric_log import MetricLog
from megapack.engine.progress import Moment
from megapack.engine.sharded_state import Snapshot, TrainState, take_snapshot
from megapack.engine.together import Work, all_ended, wait_for_all
from megapack.jobs.train import Saving
from megapack.store.committed import Committed
from megapack.store.manifest import Part

_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A save under way: `commit` is None until all ranks have uploaded, and on other ranks."""

    moment: Moment
    snapshot: Snapshot
    upload: Work[tuple[Part, ...]]
    held_s: float
    uploaded: bool = False
    commit: Work[Committed] | None = None


class Saver:
    """Saves one checkpoint after another. All methods are collective over the world.

    Args:
        store: where checkpoints go.
        log: metrics; its history is part of a checkpoint, and it announces what a save took.
        device: of this rank.
    """

    def __init__(self, store: CheckpointStore, log: MetricLog, device: torch.device) -> None:
        self._store = store
        self._log = log
        self._device = device
        self._flight: _Flight | None = None
        self.saved_step = -1

    def save(self, state: TrainState, moment: Moment) -> None:
        """Begin a save, after the previous one has ended; end it too when the job waits.

        Args:
            state: model, optimizer, schedule; may change as soon as this returns.
            moment: what the checkpoint is of.

        Raises:
            StoreError: the store failed, in this save or in the previous one. What was committed
                before still stands.
        """
        started = time.perf_counter()
        self.finish()
        folder = self._store.folder / f"step-{moment.progress.step:08d}"
        on_each_node(lambda: _make_empty(folder), self._device)
        snapshot = take_snapshot(state, folder)
        if dist.get_rank() == 0:
            self._store.write_notes(folder, moment, self._log)
        self._flight = _Flight(
            moment=moment,
            snapshot=snapshot,
            upload=Work(lambda: self._write(snapshot), name="checkpoint-upload"),
            held_s=time.perf_counter() - started,
        )
        self.saved_step = moment.progress.step
        if self._store.job.settings.saving is Saving.WAIT:
            self.finish()

    def look(self) -> None:
        """Go on with the save under way, if all ranks are ready; wait for nobody.

        Raises:
            StoreError: the save failed; on all ranks alike.
        """
        flight = self._flight
        if flight is None:
            return
        if not flight.uploaded:
            if all_ended(flight.upload, self._device):
                self._begin_commit(flight)
        elif all_ended(flight.commit, self._device):
            self._end(flight)

    def finish(self) -> None:
        """Wait until the save under way is committed.

        Raises:
            StoreError: the save failed; on all ranks alike.
        """
        flight = self._flight
        if flight is None:
            return
        started = time.perf_counter()
        if not flight.uploaded:
            wait_for_all(flight.upload, self._device)
            self._begin_commit(flight)
        wait_for_all(flight.commit, self._device)
        flight.held_s += time.perf_counter() - started
        self._end(flight)

    def _write(self, snapshot: Snapshot) -> tuple[Part, ...]:
        snapshot.write()
        return self._store.upload(snapshot.folder, snapshot.file_names())

    def _begin_commit(self, flight: _Flight) -> None:
        """All ranks have uploaded: the index, and rank 0 commits."""
        started = time.perf_counter()
        flight.snapshot.finalize()
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, flight.upload.result())
        flight.uploaded = True
        if dist.get_rank() == 0:
            parts: Sequence[Part] = [part for of_rank in everyones for part in of_rank]
            flight.commit = Work(
                lambda: self._store.commit(flight.snapshot.folder, parts, flight.moment),
                name="checkpoint-commit",
            )
        flight.held_s += time.perf_counter() - started

    def _end(self, flight: _Flight) -> None:
        self._flight = None
        if is_first_of_node():
            shutil.rmtree(flight.snapshot.folder, ignore_errors=True)
        if flight.commit is None:
            return
        step, version = flight.moment.progress.step, flight.commit.result().version
        self._log.announce(
            {
                "kind": "checkpoint",
                "step": step,
                "version": version,
                "held_s": flight.held_s,
                "upload_s": flight.upload.seconds,
                "commit_s": flight.commit.seconds,
            }
        )
        _logger.info(
            "checkpoint committed step=%d version=%d held_s=%.2f upload_s=%.2f commit_s=%.2f",
            step,
            version,
            flight.held_s,
            flight.upload.seconds,
            flight.commit.seconds,
        )


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
