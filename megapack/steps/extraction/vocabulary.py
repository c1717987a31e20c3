"""The tokenizer of a packed dataset, and a teacher that reads tokens by another one."""

import logging
from pathlib import Path

from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.conversation.vocabulary import first_differences, vocabulary_of
from megapack.errors import ConfigError, MegapackError
from megapack.steps.recorded_tokenizer import recorded_tokenizer
from megapack.store.manifest import Manifest

_TOKENIZER = "tokenizer.json"
_logger = logging.getLogger(__name__)


def dataset_vocabulary(manifest: Manifest) -> dict[str, int] | None:
    """Token-to-id map of the tokenizer that a dataset was made with.

    Args:
        manifest: of packed rows.

    Returns:
        None when no tokenizer is recorded, or when it cannot be read any more or has changed; a
        log line says which.
    """
    try:
        return vocabulary_of(recorded_tokenizer(manifest))
    except MegapackError as error:
        _logger.warning("no vocabulary of the dataset: %s", error)
        return None


def check_folder_vocabulary(manifest: Manifest, folder: Path) -> None:
    """Refuse a model folder whose own tokenizer maps tokens to other ids than the dataset's.

    Passes where the folder has no tokenizer, or where the dataset's cannot be read any more.

    Args:
        manifest: of packed rows.
        folder: a Hugging Face model folder.

    Raises:
        ConfigError: the maps differ, or the folder's tokenizer is damaged.
        StoreError: the folder's tokenizer cannot be read.
    """
    if not (folder / _TOKENIZER).is_file():
        return
    own = read_tokenizer_files(str(folder))
    if own.digest == manifest.packed_info().tokenizer_digest:
        return
    expected = dataset_vocabulary(manifest)
    if expected is None:
        _logger.warning(
            "the vocabulary of the teacher %s was not compared with that of the dataset", folder
        )
        return
    told = first_differences(expected, vocabulary_of(own))
    if told:
        raise ConfigError(
            f"{folder}: expected the token ids of the tokenizer that the dataset was made with, "
            f"found others: {told}. Pack the data with the teacher's tokenizer."
        )
