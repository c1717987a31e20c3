"""Checkpoints of a training run in the store: one committed version each.

Every rank uploads the files that it wrote; when all have, rank 0 uploads the index and commits
the manifest. Before that commit the checkpoint does not exist for anybody, and after it all of it
does. The way back downloads a whole version to each node and checks every digest before anything
is unpickled.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from megapack.engine.guard import GuardState
from megapack.engine.metric_log import MetricLog
from megapack.engine.progress import Moment, Progress
from megapack.engine.sharded_state import TrainState, load_model, load_state
from megapack.engine.together import Work, wait_for_all
from megapack.errors import DataError
from megapack.jobs.addresses import train_address
from megapack.jobs.train import TrainJob
from megapack.parallel.context import ParallelContext
from megapack.records.refs import CheckpointRef
from megapack.steps.best import BEST, Score, best_named, better_of
from megapack.steps.tables import usable_version
from megapack.store.committed import Committed
from megapack.store.files import fetch_folder, upload_files
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Part
from megapack.store.retention import retire
from megapack.store.schema import PackedInfo
from megapack.store.versions import commit, latest_version, read_version

CHECKPOINT_SCHEMA = "megapack.checkpoint/1"
_PROGRESS = "progress.json"
_GUARD = "guard.json"
_METRICS = "metrics.jsonl"

_logger = logging.getLogger(__name__)


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

    def write_notes(self, folder: Path, moment: Moment, log: MetricLog) -> None:
        """Write what a checkpoint holds beside the model's own state, on rank 0."""
        notes = {
            _PROGRESS: json.dumps(asdict(moment.progress)),
            _GUARD: json.dumps(moment.guard.as_json()),
            _METRICS: log.text(),
        }
        for name, text in notes.items():
            (folder / name).write_text(text, encoding="utf-8")

    def upload(self, folder: Path, names: Sequence[str]) -> tuple[Part, ...]:
        """Upload files of a checkpoint's folder; they belong to no version yet."""
        return upload_files(self.job.output, folder, names)

    def commit(self, folder: Path, parts: Sequence[Part], moment: Moment) -> Committed:
        """On rank 0: upload what no rank has, commit, and let old checkpoints go.

        Args:
            folder: with index and notes.
            parts: what all ranks have uploaded.
            moment: what the checkpoint is of.

        Returns:
            The new version.

        Raises:
            StoreError: the store failed. What was committed before still stands.
        """
        done = {part.name for part in parts}
        rest = [path.name for path in folder.iterdir() if path.name not in done]
        location = open_location(self.job.output)
        best = self._best(location, moment)
        contents = Contents(
            schema_id=CHECKPOINT_SCHEMA,
            kind="checkpoint",
            parts=sorted((*parts, *self.upload(folder, rest)), key=lambda part: part.name),
            address=train_address(self.job),
            counts=asdict(moment.progress),
            settings={
                "job": self.job.model_dump(mode="json"),
                "packed": self.info.model_dump(mode="json"),
                "validation_loss": moment.validation_loss,
                BEST: None if best is None else best.as_json(),
            },
            parents=_parents(self.job),
        )
        committed = commit(location, contents.manifest())
        # The run owns this store, so that nobody else is about to name one of its parts.
        retire(
            location,
            keep_newest=self.job.settings.keep_checkpoints,
            min_age_s=0.0,
            keep=None if best is None else best.is_of,
        )
        return committed

    def resume(self, state: TrainState, log: MetricLog) -> Moment | None:
        """Collective over the world: continue from the newest checkpoint of this job.

        Args:
            state: freshly built; receives what the checkpoint holds.
            log: fresh; begins with the metrics of the checkpoint.

        Returns:
            Moment of the checkpoint, None when there is none and nothing was changed.

        Raises:
            StoreError: the store failed.
            DataError: a file's digest differs from the manifest's, or the checkpoint does not say
                which rows were consumed.
        """
        device = state.context.device
        version, same_layout = _agreed(self._newest())
        if version == 0:
            return None
        folder = self.folder / f"version-{version:08d}"
        on_each_node(lambda: _fetch(self.job.output, version, folder), device)
        moment = _read_notes(folder)
        load_state(state, folder, same_layout=same_layout)
        log.replay(MetricLog.load(folder / _METRICS))
        # Nobody may still read what the first rank of the node removes.
        dist.barrier()
        on_each_node(lambda: shutil.rmtree(folder), device)
        if dist.get_rank() == 0:
            _logger.info(
                "resumed step=%d consumed_rows=%d version=%d",
                moment.progress.step,
                moment.progress.consumed_rows,
                version,
            )
        return moment

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

    def _best(self, location: Location, moment: Moment) -> Score | None:
        """The best checkpoint, this one included."""
        newest = latest_version(location)
        before = read_version(location, newest).manifest.settings if newest else {}
        now = moment.validation_loss
        return better_of(
            best_named(before),
            None if now is None else Score(step=moment.progress.step, loss=now),
        )


def _parents(job: TrainJob) -> dict[str, str]:
    start = job.settings.starting_weights
    parents = {"dataset": job.dataset.digest}
    if start is not None:
        parents["starting_model"] = start.digest
    if job.distill is not None:
        for number, teacher in enumerate(job.distill.teachers):
            parents[f"payload_{number}"] = teacher.payload.digest
    return parents


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
    on_each_node(lambda: _fetch(ref.uri, ref.version, folder, ref), context.device)
    load_model(chunks, folder, context)
    dist.barrier()
    on_each_node(lambda: shutil.rmtree(folder), context.device)


def on_each_node(action: Callable[[], None], device: torch.device) -> None:
    """Collective over the world: do something once on each node; all wait until it is done.

    Raises:
        MegapackError: it failed on some node; on every rank alike.
    """
    work = Work(action, name="on-each-node") if is_first_of_node() else None
    wait_for_all(work, device)


def is_first_of_node() -> bool:
    """torchrun's LOCAL_RANK tells nodes apart; without it all ranks are on one."""
    return int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0


def _read_notes(folder: Path) -> Moment:
    try:
        progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        guard = json.loads((folder / _GUARD).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"the checkpoint holds no {Path(error.filename).name}: expected the rows consumed and "
            "the guard's state beside the weights. It was not written by this version of megapack; "
            "choose another output."
        ) from error
    return Moment(progress=Progress(**progress), guard=GuardState.from_json(guard))


def _fetch(uri: str, version: int, folder: Path, ref: CheckpointRef | None = None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    committed = fetch_folder(uri, version, folder)
    if ref is not None:
        committed.check_ref(ref)


def _agreed(value: tuple[int, bool]) -> tuple[int, bool]:
    """Collective over the world: rank 0's value, on all ranks."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
