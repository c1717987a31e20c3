"""The teacher's token-to-id map beside its payload: `vocabulary.json.zst`.

JSON with the ids ascending, compressed; a map of 131,072 tokens takes about 0.7 MiB.
"""

import json
from collections.abc import Iterable, Mapping

import zstandard

from megapack.errors import ConfigError, DataError
from megapack.store.location import Location
from megapack.store.manifest import Part
from megapack.store.named_files import put_named, read_named

VOCABULARY_NAME = "vocabulary.json.zst"
_LEVEL = 10


def write_vocabulary(location: Location, vocabulary: Mapping[str, int]) -> Part:
    """Write a token-to-id map; equal maps are equal files, whatever their order.

    Raises:
        StoreError: the store failed.
    """
    ordered = dict(sorted(vocabulary.items(), key=lambda one: (one[1], one[0])))
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
    data = zstandard.ZstdCompressor(level=_LEVEL).compress(text.encode("utf-8", "surrogatepass"))
    return put_named(location, VOCABULARY_NAME, data, counts={"num_tokens": len(ordered)})


def read_vocabulary(location: Location, parts: Iterable[Part]) -> dict[str, int]:
    """The token-to-id map of a version.

    Args:
        location: the store.
        parts: of the version.

    Raises:
        ConfigError: the version has none.
        DataError: the file was altered, or holds something else.
        StoreError: the store failed.
    """
    for part in parts:
        if part.name == VOCABULARY_NAME:
            return _decoded(read_named(location, part), where=f"{location.uri}/{part.key}")
    raise ConfigError(
        f"{location.uri}: expected a vocabulary beside the payload, found none: the tokenizer of "
        "the documents could not be read when it was extracted. Extract where it can be read."
    )


def _decoded(data: bytes, *, where: str) -> dict[str, int]:
    try:
        found = json.loads(zstandard.ZstdDecompressor().decompress(data))
    except (zstandard.ZstdError, ValueError) as error:
        raise DataError(f"{where}: expected a token-to-id map, found no JSON: {error}") from error
    if not isinstance(found, dict) or not all(type(one) is int for one in found.values()):
        raise DataError(f"{where}: expected a token-to-id map, found something else.")
    return found
