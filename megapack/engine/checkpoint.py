"""Checkpoints of a training run: node-local files, then one committed version in the store.

Every rank writes its shards to the node's disk; the first rank of each node uploads what its node
holds; when all have, rank 0 commits the manifest. Before that commit the checkpoint does not exist
for anybody, and after it all of it does. The way back downloads a whole version to each node and
checks every digest before anything is unpickled.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megapack.engine.metric_log import MetricLog
from megapack.engine.sharded_state import TrainState, load_model, load_state, save_state
from megapack.jobs.addresses import train_address
from megapack.jobs.train import TrainJob
from megapack.parallel.context import ParallelContext
from megapack.records.refs import CheckpointRef
from megapack.steps.tables import usable_version
from megapack.store.files import fetch_folder, upload_files
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Part
from megapack.store.retention import retire
from megapack.store.schema import PackedInfo
from megapack.store.versions import commit

CHECKPOINT_SCHEMA = "megapack.checkpoint/1"
_PROGRESS = "progress.json"
_METRICS = "metrics.jsonl"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is.

    Attributes:
        step: steps taken, skipped ones included.
        consumed_rows: rows of the training split consumed, over all epochs.
        skipped_steps: steps without any target token.
    """

    step: int = 0
    consumed_rows: int = 0
    skipped_steps: int = 0

    def after(self, *, rows: int, skipped: bool) -> "Progress":
        """Progress after one more step over `rows` rows."""
        return Progress(
            step=self.step + 1,
            consumed_rows=self.consumed_rows + rows,
            skipped_steps=self.skipped_steps + skipped,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckpointStore:
    """Where the checkpoints of one job stand, and this node's folder on their way.

    Attributes:
        job: the training job.
        info: what the rows of its dataset share; recorded for those who read the checkpoint.
        folder: node-local folder.
    """

    job: TrainJob
    info: PackedInfo
    folder: Path

    def save(self, state: TrainState, progress: Progress, log: MetricLog) -> None:
        """Collective over the world: write, upload, commit; then let old checkpoints go.

        Args:
            state: model, optimizer, schedule.
            progress: steps and rows so far.
            log: metrics so far.

        Raises:
            StoreError: the store failed. What was committed before still stands.
        """
        started = time.perf_counter()
        folder = self.folder / f"step-{progress.step:08d}"
        _on_each_node(lambda: _make_empty(folder))
        save_state(state, folder)
        if dist.get_rank() == 0:
            (folder / _PROGRESS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
            log.save(folder / _METRICS)
        written = time.perf_counter()
        dist.barrier()
        parts = upload_files(self.job.output, folder) if _is_first_of_node() else ()
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, parts)
        if dist.get_rank() == 0:
            self._commit([part for of_rank in everyones for part in of_rank], progress)
            _logger.info(
                "checkpoint committed step=%d write_s=%.2f upload_s=%.2f",
                progress.step,
                written - started,
                time.perf_counter() - written,
            )
        # Nobody goes on before the commit: a rank that fails later cannot undo it.
        dist.barrier()
        _on_each_node(lambda: shutil.rmtree(folder))

    def resume(self, state: TrainState, log: MetricLog) -> Progress | None:
        """Collective over the world: continue from the newest checkpoint of this job.

        Args:
            state: freshly built; receives what the checkpoint holds.
            log: fresh; begins with the metrics of the checkpoint.

        Returns:
            Progress of the checkpoint, None when there is none and nothing was changed.

        Raises:
            StoreError: the store failed.
            DataError: a file's digest differs from the manifest's.
        """
        version, same_layout = _agreed(self._newest())
        if version == 0:
            return None
        folder = self.folder / f"version-{version:08d}"
        _on_each_node(lambda: _fetch(self.job.output, version, folder))
        load_state(state, folder, same_layout=same_layout)
        log.replay(MetricLog.load(folder / _METRICS))
        progress = Progress(**json.loads((folder / _PROGRESS).read_text(encoding="utf-8")))
        dist.barrier()
        _on_each_node(lambda: shutil.rmtree(folder))
        if dist.get_rank() == 0:
            _logger.info(
                "resumed step=%d consumed_rows=%d version=%d",
                progress.step,
                progress.consumed_rows,
                version,
            )
        return progress

    def _newest(self) -> tuple[int, bool]:
        """Number of the newest checkpoint, 0 for none, and whether it has this run's layout.

        Rank 0 asks the store; the others learn from it.
        """
        if dist.get_rank() != 0:
            return 0, False
        found = usable_version(open_location(self.job.output), train_address(self.job))
        if found is None:
            return 0, False
        written = TrainJob.model_validate(found.manifest.settings["job"])
        return found.version, written.settings.parallel == self.job.settings.parallel

    def _commit(self, parts: list[Part], progress: Progress) -> None:
        contents = Contents(
            schema_id=CHECKPOINT_SCHEMA,
            kind="checkpoint",
            parts=sorted(parts, key=lambda part: part.name),
            address=train_address(self.job),
            counts=asdict(progress),
            settings={
                "job": self.job.model_dump(mode="json"),
                "packed": self.info.model_dump(mode="json"),
            },
            parents=_parents(self.job),
        )
        location = open_location(self.job.output)
        commit(location, contents.manifest())
        # The run owns this store, so that nobody else is about to name one of its parts.
        retire(location, keep_newest=self.job.settings.keep_checkpoints, min_age_s=0.0)


def _parents(job: TrainJob) -> dict[str, str]:
    start = job.settings.starting_weights
    parents = {"dataset": job.dataset.digest}
    return parents if start is None else {**parents, "starting_model": start.digest}


def load_weights(
    ref: CheckpointRef, chunks: list[Any], context: ParallelContext, folder: Path
) -> None:
    """Collective over the world: read the weights of a committed checkpoint, at any layout.

    Args:
        ref: the checkpoint.
        chunks: from `build_model`, not wrapped.
        context: this rank.
        folder: node-local folder for the files; removed afterwards.

    Raises:
        ConfigError: there is no such version.
        StoreError: the store failed, or holds another content than `ref` names.
        DataError: a file's digest differs from the manifest's.
    """
    _on_each_node(lambda: _fetch(ref.uri, ref.version, folder, ref))
    load_model(chunks, folder, context)
    dist.barrier()
    _on_each_node(lambda: shutil.rmtree(folder))


def _fetch(uri: str, version: int, folder: Path, ref: CheckpointRef | None = None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    committed = fetch_folder(uri, version, folder)
    if ref is not None:
        committed.check_ref(ref)


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _on_each_node(action: Callable[[], None]) -> None:
    """Collective over the world: do something once on each node; all wait until it is done."""
    if _is_first_of_node():
        action()
    dist.barrier()


def _is_first_of_node() -> bool:
    """torchrun's LOCAL_RANK tells nodes apart; without it all ranks are on one."""
    return int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0


def _agreed(value: tuple[int, bool]) -> tuple[int, bool]:
    """Collective over the world: rank 0's value, on all ranks."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
