"""The tokenizer that a version was made with, to read its ids as text: found, checked, or none."""

from dataclasses import dataclass

from megapack.conversation.token_text import TokenTexts
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import MegapackError
from megapack.steps.recorded_tokenizer import recorded_tokenizer
from megapack.store.manifest import Manifest

_NAME_ONE = "Token ids are shown. Name the tokenizer with --tokenizer to see text."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How ids are read.

    Attributes:
        texts: the tokenizer's texts; None when ids are shown as numbers.
        note: which tokenizer, or why there is none.
        doubtful: whether the note is a warning.
    """

    texts: TokenTexts | None
    note: str
    doubtful: bool = False


def find_tokenizer(manifest: Manifest, *, override: str | None = None) -> Wording:
    """The tokenizer of a version, checked against the digest that the version records.

    Args:
        manifest: of packed rows or of documents.
        override: a tokenizer folder that a person names; used even when its digest differs.

    Raises:
        ConfigError: the named tokenizer cannot be loaded.
        StoreError: the named tokenizer cannot be read.
    """
    expected = _digest(manifest)
    if override is not None:
        files = read_tokenizer_files(override)
        same = files.digest == expected
        note = f"tokenizer {override}"
        if not same:
            note += (
                f" differs from the one this data was made with ({files.digest[:12]} instead of "
                f"{expected[:12] or 'none recorded'}): the text below may be wrong"
            )
        return Wording(texts=TokenTexts(files), note=note, doubtful=not same)
    try:
        files = recorded_tokenizer(manifest)
        return Wording(texts=TokenTexts(files), note=f"tokenizer {files.uri}")
    except MegapackError as error:
        return Wording(texts=None, note=f"{error} {_NAME_ONE}", doubtful=True)


def _digest(manifest: Manifest) -> str:
    if manifest.packed is not None:
        return manifest.packed.tokenizer_digest
    return manifest.parents.get("tokenizer", "")
