"""Payloads of the same teacher that stand in the same store: what they measured tells the next."""

from collections.abc import Iterator, Mapping
from typing import Any

from megapack.errors import ConfigError
from megapack.jobs.extract import ExtractJob
from megapack.jobs.pipeline import PAYLOADS
from megapack.store.location import open_location
from megapack.store.manifest import Manifest
from megapack.store.payload_parts import PART_KINDS
from megapack.store.schema import KindInfo
from megapack.store.versions import VERSION_PREFIX, read_version


def earlier_payloads(job: ExtractJob) -> tuple[Manifest, ...]:
    """Payloads of a job's teacher, the most telling first: the same layout, then the newest.

    Raises:
        StoreError: the store failed.
    """
    store, _, _ = job.output.rpartition(PAYLOADS)
    layout = job.settings.parallel.model_dump(mode="json")
    found = [
        one for one in _payloads(store) if one.parents.get("checkpoint") == job.checkpoint.digest
    ]
    found.sort(key=lambda one: (layout_of(one) == layout, one.created_at), reverse=True)
    return tuple(found)


def layout_of(manifest: Manifest) -> Any:  # noqa: ANN401 - JSON
    """Layout that a payload was extracted at, as JSON."""
    return manifest.settings.get("job", {}).get("settings", {}).get("parallel")


def stored_per_position(earlier: tuple[Manifest, ...]) -> Mapping[KindInfo, float]:
    """Bytes that a position of each kind took, from the most telling payload that holds it."""
    found: dict[KindInfo, float] = {}
    for manifest in earlier:
        positions = manifest.counts.get("num_positions", 0)
        for kind in manifest.payload.kinds if manifest.payload and positions else ():
            size = sum(part.size for part in manifest.parts_of(PART_KINDS[kind.kind]))
            found.setdefault(kind, size / positions)
    return found


def _payloads(store: str) -> Iterator[Manifest]:
    """Newest version of every payload in a store."""
    if not store:
        return
    location = open_location(f"{store}{PAYLOADS}".rstrip("/"))
    keys = [one.key for one in location.list_keys("")]
    for address in sorted({key.split("/")[0] for key in keys if f"/{VERSION_PREFIX}" in key}):
        try:
            yield read_version(f"{location.uri}/{address}").manifest
        except ConfigError:
            continue
