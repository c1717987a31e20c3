"""The tokenizer that a version of packed rows was made with, where it still stands unaltered."""

from megapack.conversation.tokenizer_files import TokenizerFiles, read_tokenizer_files
from megapack.errors import ConfigError
from megapack.store.manifest import Manifest


def recorded_tokenizer(manifest: Manifest) -> TokenizerFiles:
    """Files of the tokenizer that a version names, checked against the digest that it records.

    Args:
        manifest: of packed rows.

    Raises:
        ConfigError: none is recorded, it is gone, or it has changed since.
        StoreError: it cannot be read.
    """
    recorded = manifest.settings.get("tokenizer") if manifest.packed else None
    if manifest.packed is None or not isinstance(recorded, str):
        raise ConfigError("no tokenizer is recorded.")
    files, expected = read_tokenizer_files(recorded), manifest.packed.tokenizer_digest
    if files.digest != expected:
        raise ConfigError(
            f"tokenizer {recorded} has changed since the data was made (digest "
            f"{files.digest[:12]} instead of {expected[:12]})."
        )
    return files
