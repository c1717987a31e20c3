"""The tokenizer of a packed dataset, and a teacher that reads tokens by another one."""

import logging
from pathlib import Path

from megapack.conversation.tokenizer_files import TokenizerFiles, read_tokenizer_files
from megapack.conversation.vocabulary import first_differences, vocabulary_of
from megapack.errors import ConfigError, MegapackError
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
    files = _recorded(manifest)
    return None if files is None else vocabulary_of(files)


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


def _recorded(manifest: Manifest) -> TokenizerFiles | None:
    recorded = manifest.settings.get("tokenizer")
    if not isinstance(recorded, str):
        _logger.warning("no tokenizer is recorded with the dataset: no vocabulary to go by")
        return None
    try:
        files = read_tokenizer_files(recorded)
    except MegapackError as error:
        _logger.warning("the dataset's tokenizer cannot be read, no vocabulary: %s", error)
        return None
    if files.digest != manifest.packed_info().tokenizer_digest:
        _logger.warning(
            "the dataset's tokenizer %s has changed since the data was made, no vocabulary",
            recorded,
        )
        return None
    return files
