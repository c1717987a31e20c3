"""Versions: `versions/%08d.json` created with put-if-absent. That one put is the commit.

Version numbers have no gaps: a retired version leaves a tombstone under its number. `latest.json`
is only a hint where to begin; the newest version is found by asking for the next number until
there is none. When the answer to the put is lost, the writer reads the key back: its own token
there means that it won.
"""

import json
import logging
import time
from collections.abc import Callable

from megapack.errors import ConfigError, StoreError
from megapack.store.committed import Committed
from megapack.store.location import Location, MissingKeyError, open_location
from megapack.store.manifest import Manifest
from megapack.store.manifest_text import parse_manifest
from megapack.store.shard_log import recorded_parts
from megapack.store.standing_parts import check_parts as check_parts
from megapack.store.standing_parts import secure_parts

VERSION_PREFIX = "versions/"
LATEST_KEY = "latest.json"
ADDRESS_PREFIX = "addresses/"
_ATTEMPTS = 4
_BACKOFF_S = 0.1
_SCANNED_VERSIONS = 64

_logger = logging.getLogger(__name__)

Replan = Callable[[Committed], Manifest | None]
"""Called with the winner after a lost race: the manifest to commit on top of it, or None when the
winner serves as well and nothing is left to commit."""


class RetiredVersionError(ConfigError):
    """The version was there once and has been retired on purpose."""


def version_key(version: int) -> str:
    """Key of a version's manifest.

    >>> version_key(7)
    'versions/00000007.json'
    """
    return f"{VERSION_PREFIX}{version:08d}.json"


def latest_version(store: str | Location) -> int:
    """Number of the newest version, 0 when there is none.

    Raises:
        StoreError: the store failed.
    """
    location = _opened(store)
    newest = _hinted(location)
    if newest and location.size(version_key(newest)) is None:
        newest = 0
    if not newest:
        listed = location.list_keys(VERSION_PREFIX)
        newest = max((_number_of(one.key) for one in listed), default=0)
    while location.size(version_key(newest + 1)) is not None:
        newest += 1
    return newest


def read_version(store: str | Location, version: int | None = None) -> Committed:
    """A version with its manifest, the newest one by default.

    Raises:
        ConfigError: there is no such version, or it was retired.
        StoreError: the store failed, or the manifest is damaged.
    """
    location = _opened(store)
    wanted = latest_version(location) if version is None else version
    try:
        data = location.get(version_key(wanted))
    except MissingKeyError as error:
        newest = latest_version(location)
        found = f"versions 1 to {newest}" if newest else "no version at all"
        raise ConfigError(
            f"{location.uri}: expected version {wanted if version is not None else 'of any number'}"
            f", found {found}. Check the uri, or run the step that writes it."
        ) from error
    where = f"{location.uri}/{version_key(wanted)}"
    if version is None and is_tombstone(data) and latest_version(location) > wanted:
        # A newer one was committed and this one retired since it was found.
        return read_version(location)
    _refuse_tombstone(data, where=where)
    return Committed(uri=location.uri, version=wanted, manifest=parse_manifest(data, where=where))


def find_address(store: str | Location, address: str) -> Committed | None:
    """The version that was made from these inputs and settings, if one stands.

    A hint under `addresses/` is asked first; without one the newest 64 versions are. Not to find
    a version costs a recomputation and nothing else.

    Raises:
        StoreError: the store failed.
    """
    location = _opened(store)
    hinted = _read_hint(location, ADDRESS_PREFIX + address)
    if hinted:
        found = _with_address(location, hinted, address)
        if found is not None:
            return found
    newest = latest_version(location)
    for version in range(newest, max(0, newest - _SCANNED_VERSIONS), -1):
        found = _with_address(location, version, address)
        if found is not None:
            return found
    return None


def commit(store: str | Location, manifest: Manifest, *, replan: Replan | None = None) -> Committed:
    """Commit a version: readers see all of it from now on, or nothing.

    Args:
        store: the store, whose parts are already written.
        manifest: what the version is made of.
        replan: called with the winner when another writer took the number; without it the same
            manifest becomes the next version.

    Returns:
        The new version; or the winner of a lost race, when `replan` says that it serves.

    Raises:
        StoreError: a part is missing or has another size, or the store failed.
    """
    location = _opened(store)
    version = latest_version(location) + 1
    recorded = _recorded(location, manifest)
    secure_parts(location, manifest.parts, kept=_named_by(location, version - 1) | recorded)
    while not _take(location, version, manifest):
        # The newest one: the very winner may have been followed, and retired, since.
        winner = read_version(location)
        if replan is not None:
            replanned = replan(winner)
            if replanned is None:
                return winner
            manifest = replanned
        # What was checked against the version before may have gone with it.
        secure_parts(location, manifest.parts, kept=_keys(winner.manifest) | recorded)
        version = winner.version + 1
    _leave_hints(location, version, manifest.address)
    return Committed(uri=location.uri, version=version, manifest=manifest)


def _recorded(location: Location, manifest: Manifest) -> frozenset[str]:
    """Keys of parts that stay because a shard log names them, for what is written over shards."""
    logged = manifest.payload is not None or manifest.multimodal is not None
    return recorded_parts(location) if logged else frozenset()


def _named_by(location: Location, version: int) -> frozenset[str]:
    """Keys of the parts of a version, none when it does not stand."""
    try:
        return _keys(read_version(location, version).manifest) if version else frozenset()
    except RetiredVersionError:
        return frozenset()


def _keys(manifest: Manifest) -> frozenset[str]:
    return frozenset(part.key for part in manifest.parts)


def manifest_bytes(manifest: Manifest) -> bytes:
    """What stands under a version's key."""
    return manifest.model_dump_json(indent=1).encode()


def _take(location: Location, version: int, manifest: Manifest) -> bool:
    """Create the version; False when another writer's stands there."""
    key = version_key(version)
    data = manifest_bytes(manifest)
    failure: StoreError | None = None
    for attempt in range(_ATTEMPTS):
        try:
            if location.put_if_absent(key, data):
                return True
        except StoreError as error:
            failure = error
        try:
            return _token_of(location.get(key)) == manifest.commit_token
        except StoreError as error:
            failure = failure or error
        time.sleep(_BACKOFF_S * 2**attempt)
    raise StoreError(
        f"{location.uri}/{key}: could not create the version in {_ATTEMPTS} attempts: {failure}"
    ) from failure


def _token_of(data: bytes) -> str:
    return str(json.loads(data).get("commit_token", ""))


def _refuse_tombstone(data: bytes, *, where: str) -> None:
    if is_tombstone(data):
        raise RetiredVersionError(
            f"{where}: expected a version, found that it was retired at "
            f"{json.loads(data)['retired_at']}. Read a newer version."
        )


def is_tombstone(data: bytes) -> bool:
    """Whether the bytes under a version's key say that it was retired."""
    try:
        content = json.loads(data)
    except ValueError:
        return False
    return isinstance(content, dict) and "retired_at" in content


def _with_address(location: Location, version: int, address: str) -> Committed | None:
    try:
        found = read_version(location, version)
    except ConfigError:
        return None
    return found if found.manifest.address == address else None


def _hinted(location: Location) -> int:
    return _read_hint(location, LATEST_KEY)


def _read_hint(location: Location, key: str) -> int:
    try:
        return int(json.loads(location.get(key))["version"])
    except (MissingKeyError, ValueError, TypeError, KeyError, OverflowError):
        return 0


def _leave_hints(location: Location, version: int, address: str) -> None:
    hint = json.dumps({"version": version}).encode()
    keys = [LATEST_KEY] + ([ADDRESS_PREFIX + address] if address else [])
    for key in keys:
        try:
            location.put(key, hint)
        except StoreError as error:
            # The version stands; without the hint the next reader only asks a little longer.
            _logger.warning("hint not written uri=%s key=%s error=%s", location.uri, key, error)


def _number_of(key: str) -> int:
    stem = key.removeprefix(VERSION_PREFIX).removesuffix(".json")
    return int(stem) if stem.isdecimal() else 0


def _opened(store: str | Location) -> Location:
    return store if isinstance(store, Location) else open_location(store)
