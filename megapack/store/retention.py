"""Letting versions and parts go. Readers see a whole version or an error, never a mixture.

`retire` replaces the manifests of old versions by tombstones first and deletes their parts after;
numbers stay taken, so that version numbers have no gaps. `collect` deletes parts that no living
version names. Neither touches a part younger than `min_age_s` by the store's own clock: a writer
may be about to name it. A smaller age is safe only where one writer owns the store, as a training
run owns its checkpoints. A version that is pinned stays, and so do the parts that a shard log
names. A commit makes young what it relies on otherwise, so all this holds as long as one commit and
one collection each take less than half a day.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime

from megapack.errors import ConfigError
from megapack.store.local_folder import TEMPORARY
from megapack.store.location import Location, open_location
from megapack.store.manifest import Manifest
from megapack.store.manifest_text import parse_manifest
from megapack.store.pins import PIN_EXPIRES_S, PIN_PREFIX, pinned_versions, retiring_key
from megapack.store.shard_log import SHARD_EXPIRES_S, SHARD_PREFIX, recorded_parts
from megapack.store.versions import is_tombstone, latest_version, version_key
from megapack.store.writer import COLLECT_AFTER_S, PART_PREFIX


def retire(
    store: str | Location,
    *,
    keep_newest: int,
    min_age_s: float = COLLECT_AFTER_S,
    keep: Callable[[Manifest], bool] | None = None,
) -> tuple[int, ...]:
    """Retire all versions but the newest and the pinned ones, then delete parts only they name.

    Args:
        store: the store.
        keep_newest: versions that stay, at least 1.
        min_age_s: age from which a part may be deleted; younger ones are left to `collect`.
        keep: says which older versions stay as well, none when None.

    Returns:
        Numbers of the versions retired now.

    Raises:
        ConfigError: `keep_newest` is below 1.
        StoreError: the store failed.
    """
    if keep_newest < 1:
        raise ConfigError(f"retire: expected keep_newest of at least 1, found {keep_newest}.")
    location = _opened(store)
    # Before the versions: a commit takes its parts out of the shard log after it names them.
    recorded = recorded_parts(location)
    living = living_versions(location)
    pinned = pinned_versions(location)
    old = [
        version
        for version in sorted(living)[:-keep_newest]
        if version not in pinned and not (keep is not None and keep(living[version]))
    ]
    for version in old:
        location.put(retiring_key(version), b"")
    # Asked again: a run that pinned before it saw the mark is seen here, one that pinned later
    # sees the mark and lets go.
    pinned = pinned_versions(location)
    for version in pinned.intersection(old):
        location.delete(retiring_key(version))
    old = [version for version in old if version not in pinned]
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    for version in old:
        manifest = living[version]
        tombstone = {
            "retired_at": stamp,
            "digest": manifest.digest,
            "address": manifest.address,
            "commit_token": manifest.commit_token,
        }
        location.put(version_key(version), json.dumps(tombstone).encode())
        location.delete(retiring_key(version))
    kept = {part.key for version in living if version not in old for part in living[version].parts}
    gone = {part.key for version in old for part in living[version].parts} - kept - recorded
    for key in sorted(gone):
        found = location.stat(key)
        if found is not None and found.age_s >= min_age_s:
            location.delete(key)
    return tuple(old)


def collect(store: str | Location, *, min_age_s: float = COLLECT_AFTER_S) -> int:
    """Delete parts and temporary files that no living version names.

    Args:
        store: the store.
        min_age_s: age from which an object may be deleted.

    Returns:
        Objects deleted, expired pins and shard records included.

    Raises:
        StoreError: the store failed; also when a manifest cannot be read, before any deletion.
    """
    location = _opened(store)
    # Listed before the versions are read: a part that a later commit names is not in the list, or
    # was old, and then its writer has uploaded it anew, which makes it young.
    candidates = [
        one
        for prefix in (PART_PREFIX, f"{TEMPORARY}/", "probes/")
        for one in location.list_keys(prefix)
        if one.age_s >= min_age_s
    ]
    # Those of expired records go with the next collection, when nobody has renewed the record.
    named = recorded_parts(location)
    named |= {part.key for one in living_versions(location).values() for part in one.parts}
    for prefix, expires_s in ((PIN_PREFIX, PIN_EXPIRES_S), (SHARD_PREFIX, SHARD_EXPIRES_S)):
        candidates += [one for one in location.list_keys(prefix) if one.age_s >= expires_s]
    deleted = 0
    for one in candidates:
        if one.key in named:
            continue
        now = location.stat(one.key)
        if now is not None and now.age_s >= min_age_s:
            location.delete(one.key)
            deleted += 1
    return deleted


def living_versions(location: Location) -> dict[int, Manifest]:
    """Manifests of all versions that have not been retired, by number."""
    living = {}
    for version in range(1, latest_version(location) + 1):
        data = location.get(version_key(version))
        if not is_tombstone(data):
            where = f"{location.uri}/{version_key(version)}"
            living[version] = parse_manifest(data, where=where)
    return living


def _opened(store: str | Location) -> Location:
    return store if isinstance(store, Location) else open_location(store)
