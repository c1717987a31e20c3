"""A packed dataset and a checkpoint to teacher payloads: checked first, then run, or found done."""

from pathlib import Path
from typing import Any

from megapack.errors import ConfigError, ContractError
from megapack.jobs.addresses import extract_address
from megapack.jobs.extract import ExtractJob
from megapack.jobs.model import ModelJob
from megapack.records.refs import CheckpointRef, FolderRef, PayloadRef
from megapack.steps.hugging_face.resolve import check_starting_model
from megapack.steps.launch.backend import check_backend
from megapack.steps.launch.local import run_ranks
from megapack.steps.launch.protocol import Launcher, OnLine, OnMetric
from megapack.steps.launch.worker_run import run_worker
from megapack.steps.tables import usable_version
from megapack.steps.train import PRECISIONS
from megapack.store.location import open_location
from megapack.store.manifest import Manifest, PartKind
from megapack.store.schema import PackedInfo
from megapack.store.versions import read_version


def extract(
    job: ExtractJob,
    *,
    on_line: OnLine,
    on_metric: OnMetric,
    launcher: Launcher = run_ranks,
    scratch: Path | None = None,
) -> PayloadRef:
    """Extract payloads on ranks that this starts; or return what is there already.

    Args:
        job: dataset, teacher, settings, output.
        on_line: takes log lines of the ranks, (rank, line).
        on_metric: takes metric objects of kind `extraction`: `rows` of `total_rows` done.
        launcher: starts the ranks.
        scratch: node-local folder for the teacher's files and for logs; a temporary one when None.

    Returns:
        The payload; reused when no process had to be started.

    Raises:
        ConfigError: the job cannot run on this dataset with this teacher; before any start.
        DataError: a file of the teacher or of the dataset is damaged.
        StoreError: the store failed.
        RankError: a rank died. The next call starts afresh.
    """
    output = open_location(job.output)
    address = extract_address(job)
    done = usable_version(output, address)
    if done is not None:
        return done.payload_ref(reused=True)
    check_extract_job(job)
    if launcher is run_ranks:
        check_backend(job.settings.backend)
    run_worker(
        "extract",
        job,
        num_ranks=job.settings.parallel.sizes().world_size,
        launcher=launcher,
        scratch=scratch,
        on_line=on_line,
        on_metric=on_metric,
    )
    committed = usable_version(output, address)
    if committed is None:
        raise ContractError(f"{job.output}: expected a payload after extraction, found none.")
    return committed.payload_ref()


def check_extract_job(job: ExtractJob) -> None:
    """Refuse, before any process is started, a job that could only fail later.

    Raises:
        ConfigError: dataset or checkpoint are missing or empty, the multiples do not serve the
            layout, or the teacher has another shape than the job says or another vocabulary.
        StoreError: dataset or checkpoint were replaced since, or the output cannot be written.
    """
    source = read_version(job.dataset.uri, job.dataset.version)
    source.check_ref(job.dataset)
    need = job.settings.parallel.granularity(PRECISIONS[job.model.precision])
    source.manifest.check_reads(need, advice=job.settings.parallel.packing_flags())
    if not any(part.num_records for part in source.manifest.parts_of(PartKind.ROWS)):
        raise ConfigError(f"{job.dataset.uri}: expected rows, found none. Add documents.")
    info = source.manifest.packed_info()
    job.model.vocabulary(info.vocab_size)
    if isinstance(job.checkpoint, FolderRef):
        check_starting_model(job.model, job.checkpoint)
    else:
        teacher = read_version(job.checkpoint.uri, job.checkpoint.version)
        teacher.check_ref(job.checkpoint)
        check_teacher(job, teacher.manifest, info)
    open_location(job.output).check_writable()


def check_teacher(job: ExtractJob, teacher: Manifest, info: PackedInfo) -> None:
    """Refuse a teacher that cannot read these tokens or is not the model that the job names.

    Args:
        job: the job.
        teacher: manifest of its checkpoint.
        info: what the dataset's rows share.

    Raises:
        ConfigError: the version is no checkpoint, or the teacher has another shape or vocabulary.
    """
    where = job.checkpoint.uri
    if isinstance(job.checkpoint, CheckpointRef):
        where += f" version {job.checkpoint.version}"
    if teacher.kind != "checkpoint":
        raise ConfigError(f"{where}: expected a checkpoint, found kind {teacher.kind!r}.")
    trained = PackedInfo.model_validate(teacher.settings["packed"])
    for name in ("vocab_size", "tokenizer_digest"):
        expected, found = getattr(trained, name), getattr(info, name)
        if expected != found:
            raise ConfigError(
                f"{where}: the teacher was trained with {name} = {expected}, the dataset "
                f"{job.dataset.uri} has {found}. Pack the data with the teacher's tokenizer."
            )
    shape: dict[str, Any] = teacher.settings["job"]["settings"]["model"]
    # Checkpoints written before a field existed have its default.
    trained_shape = ModelJob.model_validate(shape).model_dump(mode="json")
    for name, expected in job.model.model_dump(mode="json").items():
        if trained_shape[name] != expected:
            raise ConfigError(
                f"{where}: ExtractJob.model.{name} = {expected}, the teacher was trained with "
                f"{trained_shape[name]}. Use the model of the training job."
            )
