"""Ids of a stored dataset as text, where the tokenizer that it was made with can still be read."""

from collections.abc import Callable

from tokenizers import Tokenizer

from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import MegapackError
from megapack.records.multimodal_sample import Int32
from megapack.store.manifest import Manifest

Words = Callable[[Int32], str]
"""From ids of a text to what a person reads."""


def words_of(manifest: Manifest) -> Words:
    """How texts of a version are shown: decoded, or as ids when its tokenizer is gone."""
    info = manifest.multimodal_info()
    try:
        uri = str(manifest.settings["job"]["stream"]["tokenizer"])
        files = read_tokenizer_files(uri)
    except (MegapackError, KeyError, TypeError):
        return _as_ids
    if files.digest != info.tokenizer_digest:
        return _as_ids
    tokenizer = Tokenizer.from_buffer(files.tokenizer)

    def decoded(ids: Int32) -> str:
        return str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    return decoded


def _as_ids(ids: Int32) -> str:
    return " ".join(map(str, ids.tolist()))
