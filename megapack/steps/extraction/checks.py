"""What an extraction refuses before it starts a process."""

from typing import Any

from megapack.errors import ConfigError
from megapack.jobs.extract import ExtractJob, ExtractSettings
from megapack.jobs.model import ModelJob
from megapack.records.refs import CheckpointRef, FolderRef
from megapack.steps.extraction.chosen_rows import choose_rows
from megapack.steps.extraction.earlier_payloads import earlier_payloads, stored_per_position
from megapack.steps.extraction.payload_size import check_budget, payload_size
from megapack.steps.extraction.vocabulary import check_folder_vocabulary
from megapack.steps.hugging_face.resolve import check_starting_model
from megapack.steps.train import PRECISIONS
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import Manifest
from megapack.store.schema import PackedInfo
from megapack.store.versions import read_version


def check_extract_job(job: ExtractJob) -> None:
    """Refuse, before any process is started, a job that could only fail later.

    Raises:
        ConfigError: dataset or checkpoint are missing or empty, the multiples do not serve the
            layout, the teacher has another shape than the job says or another vocabulary, or the
            payload would take more than its limit.
        StoreError: dataset or checkpoint were replaced since, or the output cannot be written.
        DataError: a file of the teacher or a part of the dataset is damaged.
    """
    source = read_version(job.dataset.uri, job.dataset.version)
    source.check_ref(job.dataset)
    need = job.settings.parallel.granularity(PRECISIONS[job.model.precision])
    source.manifest.check_reads(need, advice=job.settings.parallel.packing_flags())
    info = source.manifest.packed_info()
    check_size(source, job.model, job.settings, earlier=earlier_payloads(job))
    if isinstance(job.checkpoint, FolderRef):
        folder = check_starting_model(job.model, job.checkpoint)
        check_folder_vocabulary(source.manifest, folder.path)
    else:
        teacher = read_version(job.checkpoint.uri, job.checkpoint.version)
        teacher.check_ref(job.checkpoint)
        check_teacher(job, teacher.manifest, info)
    open_location(job.output).check_writable()


def check_size(
    source: Committed,
    model: ModelJob,
    settings: ExtractSettings,
    *,
    earlier: tuple[Manifest, ...] = (),
) -> None:
    """Refuse a payload without documents, or one that is over its limit.

    Args:
        source: the packed dataset.
        model: the teacher.
        settings: the extraction.
        earlier: payloads of this teacher, which tell how many bytes a position takes.

    Raises:
        ConfigError: says what to change.
        StoreError: a part of the dataset is missing, or the store failed.
        DataError: a part of it is damaged.
    """
    chosen = choose_rows(source, settings)
    seen = stored_per_position(earlier)
    size = payload_size(settings, model, source.manifest.packed_info(), chosen, seen=seen)
    check_budget(size, settings.max_bytes)


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
    trained_shape = model_of(teacher).model_dump(mode="json")
    for name, expected in job.model.model_dump(mode="json").items():
        if trained_shape[name] != expected:
            raise ConfigError(
                f"{where}: ExtractJob.model.{name} = {expected}, the teacher was trained with "
                f"{trained_shape[name]}. Use the model of the training job."
            )


def model_of(teacher: Manifest) -> ModelJob:
    """The model of a checkpoint; one that was written before a field existed has its default."""
    shape: dict[str, Any] = teacher.settings["job"]["settings"]["model"]
    return ModelJob.model_validate(shape)
