"""A packed dataset to a trained checkpoint: checked first, then run on ranks, or found done.

Done means that the newest committed checkpoint of the job's address has all its steps. An
interrupted run leaves an earlier checkpoint at the same address, and the next one goes on from it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from megapack.errors import ConfigError, ContractError, RankError, StoppedError
from megapack.jobs.addresses import train_address, train_address_fields
from megapack.jobs.model import TrainPrecision
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.layout.granularity import Precision
from megapack.records.refs import CheckpointRef
from megapack.steps.distill.check import check_distillation
from megapack.steps.hugging_face.resolve import check_starting_model
from megapack.steps.launch.backend import check_backend
from megapack.steps.launch.local import run_ranks
from megapack.steps.launch.protocol import Launcher, OnLine, OnMetric
from megapack.steps.launch.worker_run import run_worker
from megapack.steps.row_columns import longest_document
from megapack.steps.tables import usable_version
from megapack.steps.wording import changed_fields
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Manifest, PartKind, Split
from megapack.store.versions import latest_version, read_version

PRECISIONS = {TrainPrecision.FP32: Precision.FP32, TrainPrecision.BF16: Precision.BF16}


_logger = logging.getLogger(__name__)


def train(
    job: TrainJob,
    *,
    on_line: OnLine,
    on_metric: OnMetric,
    launcher: Launcher = run_ranks,
    scratch: Path | None = None,
) -> CheckpointRef:
    """Train to the last step, on ranks that this starts; or return what is there already.

    Args:
        job: dataset, settings, output.
        on_line: takes log lines of the ranks, (rank, line).
        on_metric: takes metric objects: `train`, `skipped` and `evaluation`. After a resume they
            begin with those of the interrupted run.
        launcher: starts the ranks.
        scratch: node-local folder for checkpoints on their way to the store and for logs; a
            temporary one when None.

    Returns:
        The checkpoint after the last step; reused when no process had to be started.

    Raises:
        ConfigError: the job cannot run on this dataset or with this output; before any start.
        DataError: a loss was not finite.
        StoreError: the store failed.
        StoppedError: the ranks were told to stop and have saved. The next call goes on from there.
        RankError: a rank died. The next call goes on from the newest checkpoint.
    """
    output = open_location(job.output)
    address = train_address(job)
    done = usable_version(output, address)
    if done is not None and done.manifest.count("step") == job.settings.steps:
        return done.checkpoint_ref(reused=True)
    check_train_job(job)
    if launcher is run_ranks:
        check_backend(job.settings.backend)
    with _saying_how_to_go_on(job):
        run_worker(
            "train",
            job,
            num_ranks=job.settings.parallel.sizes().world_size,
            launcher=launcher,
            scratch=scratch,
            on_line=on_line,
            on_metric=on_metric,
            stop_within_s=job.settings.stop_within_s,
        )
    committed = usable_version(output, address)
    if committed is None or committed.manifest.count("step") != job.settings.steps:
        found = "none" if committed is None else f"one of step {committed.manifest.count('step')}"
        raise ContractError(
            f"{job.output}: expected a checkpoint of step {job.settings.steps} after training, "
            f"found {found}."
        )
    return committed.checkpoint_ref()


@contextmanager
def _saying_how_to_go_on(job: TrainJob) -> Iterator[None]:
    """A rank that died is not the end of a run: the error says so. One that stopped says it."""
    try:
        yield
    except StoppedError:
        raise
    except RankError as error:
        raise RankError(
            f"{error} Run the same job again: it goes on from the newest checkpoint in "
            f"{job.output}, or from its start where none was committed.",
            rank=error.rank,
            exit_code=error.exit_code,
            tail=error.tail,
        ) from error


def check_train_job(job: TrainJob) -> None:
    """Refuse, before any process is started, a job that could only fail later.

    Raises:
        ConfigError: the dataset is missing or empty, its multiples do not serve the layout, a
            document is over the dense token budget, the schedule contradicts itself, the model's
            vocabulary is too small, teachers do not serve, the starting model is another one, or
            the output is of another kind of store.
        DataError: the starting model or a part of the dataset is damaged.
        StoreError: the dataset was replaced since, or the output cannot be written.
    """
    source = read_version(job.dataset.uri, job.dataset.version)
    source.check_ref(job.dataset)
    settings = job.settings
    precision = PRECISIONS[settings.model.precision]
    source.manifest.check_reads(
        settings.parallel.granularity(precision), advice=settings.parallel.packing_flags()
    )
    check_rows(source.manifest, Split.TRAIN, where=job.dataset.uri)
    warn_of_small_split(settings, source.manifest, where=job.dataset.uri)
    check_budget(settings, source)
    check_schedule(settings)
    settings.model.vocabulary(source.manifest.packed_info().vocab_size)
    check_distillation(job, source)
    output = open_location(job.output)
    check_owned(output, job)
    output.check_writable()
    check_start(job, output)


def check_start(job: TrainJob, output: Location) -> None:
    """Refuse starting weights that changed; they are not looked at where a checkpoint stands.

    Raises:
        ConfigError: the folder is not what the job says.
        DataError: the folder is damaged.
        StoreError: it cannot be read, or the output failed.
    """
    start = job.settings.starting_weights
    if start is not None and usable_version(output, train_address(job)) is None:
        check_starting_model(job.settings.model, start)


def check_owned(output: Location, job: TrainJob) -> None:
    """Refuse a store that belongs to another job: old versions are retired as a run goes on.

    Raises:
        ConfigError: its newest version has another address.
        StoreError: the store failed.
    """
    newest = latest_version(output)
    if newest and (found := read_version(output, newest).manifest).address != train_address(job):
        raise ConfigError(
            f"{output.uri}: expected an empty folder or one with results of this job, found "
            f"version {newest} of kind {found.kind!r} from other inputs or settings"
            f"{_other_fields(found, job)}. Choose another output; old versions of this one would "
            "be retired."
        )


def _other_fields(found: Manifest, job: TrainJob) -> str:
    """What a checkpoint's job says otherwise than this one; "" where it cannot be told."""
    try:
        other = TrainJob.model_validate(found.settings.get("job"))
    except ValidationError:
        return ""
    changed = changed_fields(train_address_fields(other), train_address_fields(job))
    if not changed:
        return ", of a release in which the same settings meant something else"
    return f" (there -> in this job: {'; '.join(changed)})"


def check_rows(manifest: Manifest, split: Split, *, where: str) -> None:
    """Refuse a dataset without rows in a split.

    Raises:
        ConfigError: there are none.
    """
    if not any(part.num_records for part in manifest.parts_of(PartKind.ROWS, split)):
        raise ConfigError(
            f"{where}: expected rows in the {split.value} split, found none. Add documents, or "
            "lower validation_fraction."
        )


def warn_of_small_split(settings: TrainSettings, manifest: Manifest, *, where: str) -> None:
    """Say that a step reads rows more than once, which may be meant."""
    parts = manifest.parts_of(PartKind.ROWS, Split.TRAIN)
    num_rows = sum(part.num_records for part in parts)
    if settings.global_batch_rows > num_rows:
        _logger.warning(
            "TrainSettings.global_batch_rows = %d is more than the %d training rows of %s: a step "
            "reads some of them more than once",
            settings.global_batch_rows,
            num_rows,
            where,
        )


def check_budget(settings: TrainSettings, source: Committed) -> None:
    """Refuse a dense token budget that does not hold every training document.

    Raises:
        ConfigError: the longest one is over it.
        StoreError: a part of the dataset is missing, or the store failed.
        DataError: a part of it is damaged.
    """
    budget = settings.dense_token_budget
    if budget is None:
        return
    longest = longest_document(source, Split.TRAIN)
    multiple = settings.parallel.granularity().row
    width = -(-longest // multiple) * multiple
    if width > budget:
        raise ConfigError(
            f"TrainSettings.dense_token_budget = {budget}, expected at least {width}: the longest "
            f"training document has {longest} positions, and the layout needs widths in multiples "
            f"of {multiple}. Raise the budget, or train on packed rows."
        )


def check_schedule(settings: TrainSettings) -> None:
    """Refuse a learning rate schedule that contradicts itself.

    Raises:
        ConfigError: the warm-up takes the whole run, or the rate would rise at the end.
    """
    optimizer = settings.optimizer
    if optimizer.warmup_steps >= settings.steps:
        raise ConfigError(
            f"OptimizerJob.warmup_steps = {optimizer.warmup_steps}, expected fewer than "
            f"TrainSettings.steps = {settings.steps}. Shorten the warm-up or raise steps."
        )
    if optimizer.min_lr > optimizer.lr:
        raise ConfigError(
            f"OptimizerJob.min_lr = {optimizer.min_lr}, expected at most lr = {optimizer.lr}. "
            "Lower it."
        )
