"""A request to train becomes settings: its model known, its starting weights named by content."""

from megapack.errors import ConfigError
from megapack.jobs.model import ModelJob
from megapack.jobs.train import TrainRequest, TrainSettings
from megapack.records.refs import FolderRef
from megapack.steps.hugging_face.folder import ModelFolder, open_folder

_OF_THE_RUN = {
    "init_std",
    "precision",
    "vocab_multiple",
    "mtp_loss_scale",
    "recompute",
    "offload",
}
"""Fields of a ModelJob that a run chooses; all others must be as the folder says."""


def resolve(request: TrainRequest) -> TrainSettings:
    """Settings that say everything; they need no folder to be read again.

    With `model` and `starting_digest` given, nothing is read: the folder may be gone when there
    is a checkpoint to go on from.

    Args:
        request: as people write it.

    Raises:
        ConfigError: the folder is no model of ours, or is another one than the request says.
        DataError: the folder is damaged.
        StoreError: the folder cannot be read.
    """
    fields = request.model_dump()
    if request.starting_model is not None and not (request.model and request.starting_digest):
        folder = open_folder(request.starting_model)
        if request.model is None:
            fields["model"] = folder.model.model_dump()
        else:
            check_model(request.model, folder)
        fields["starting_digest"] = checked_digest(
            folder, request.starting_digest or folder.digest()
        )
    return TrainSettings.model_validate(fields)


def check_starting_model(model: ModelJob, ref: FolderRef) -> ModelFolder:
    """Refuse a folder that is not what a job starts from. Reads all of it once.

    Args:
        model: the job's.
        ref: the folder, and the digest that it must have.

    Raises:
        ConfigError: it is another model, or has another content.
        DataError: the folder is damaged.
        StoreError: the folder cannot be read.
    """
    folder = open_folder(ref.uri)
    check_model(model, folder)
    checked_digest(folder, ref.digest)
    return folder


def check_model(model: ModelJob, folder: ModelFolder) -> None:
    """Refuse a model that the folder's weights do not fit.

    Raises:
        ConfigError: names the first field that differs.
    """
    found = folder.model.model_dump()
    for name, expected in model.model_dump(exclude=_OF_THE_RUN).items():
        if name == "kv_channels":
            expected, found[name] = model.head_dim, folder.model.head_dim
        if found[name] != expected:
            raise ConfigError(
                f"ModelJob.{name} = {expected}, the starting model {folder.path} has "
                f"{found[name]}. Leave model out to take the starting model's, or name another "
                "folder."
            )


def checked_digest(folder: ModelFolder, expected: str) -> str:
    """The folder's digest, when it is the expected one.

    Raises:
        ConfigError: the content is another.
        StoreError: the folder cannot be read.
    """
    found = folder.digest()
    if found != expected:
        raise ConfigError(
            f"{folder.path}: expected the starting model with digest {expected}, found {found}: "
            "its files were changed. Name the folder with the old content, or start a new run "
            "without starting_digest."
        )
    return found
