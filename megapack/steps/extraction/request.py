"""From what a person types to an extraction job: dataset and teacher found and named by content."""

from pathlib import Path

from pydantic import ValidationError

from megapack.errors import ConfigError
from megapack.jobs.explain import explain
from megapack.jobs.extract import ExtractJob, ExtractRequest
from megapack.jobs.model import ModelJob
from megapack.jobs.pipeline import CHECKPOINTS, in_store
from megapack.records.refs import CheckpointRef, FolderRef
from megapack.steps.extraction.checks import model_of
from megapack.steps.hugging_face.folder import CONFIG, open_folder
from megapack.steps.resolve import resolve_dataset
from megapack.store.only_one import only_one
from megapack.store.versions import read_version


def resolve_extraction(request: ExtractRequest) -> ExtractJob:
    """The job that a request asks for; a teacher's folder is read once for its digest.

    Args:
        request: as people write it.

    Raises:
        ConfigError: there is no such dataset or teacher, or the layout does not fit the model.
        DataError: the teacher's folder is damaged.
        StoreError: the store failed.
    """
    dataset = resolve_dataset(request.dataset, version=request.dataset_version)
    model, teacher = _teacher(request)
    try:
        job = ExtractJob(
            dataset=dataset,
            checkpoint=teacher,
            model=model,
            settings=request.extract,
            output=request.store,
        )
    except ValidationError as error:
        raise ConfigError(f"the extraction is wrong:\n{explain(error, ExtractJob)}") from error
    return in_store(job, request.store)


def _teacher(request: ExtractRequest) -> tuple[ModelJob, CheckpointRef | FolderRef]:
    if _is_model_folder(request.teacher):
        if request.teacher_version is not None:
            raise ConfigError(
                f"teacher_version = {request.teacher_version}: expected none for the Hugging Face "
                f"folder {request.teacher}, which has no versions. Leave it out."
            )
        folder = open_folder(request.teacher)
        return folder.model, FolderRef(uri=request.teacher, digest=folder.digest())
    found = read_version(checkpoint_address(request.teacher), request.teacher_version)
    if found.manifest.kind != "checkpoint":
        raise ConfigError(
            f"{request.teacher}: expected checkpoints of a training run, or a model folder with "
            f"{CONFIG}, found kind {found.manifest.kind!r}. Name a teacher."
        )
    return model_of(found.manifest), found.checkpoint_ref()


def _is_model_folder(uri: str) -> bool:
    path = uri.removeprefix("file://")
    return "://" not in path and (Path(path).expanduser() / CONFIG).is_file()


def checkpoint_address(uri: str) -> str:
    """The address itself when versions stand there, else that of the store's only training run.

    Raises:
        ConfigError: the store holds several runs.
        StoreError: the store failed.
    """
    return only_one(uri, CHECKPOINTS, "training run")
