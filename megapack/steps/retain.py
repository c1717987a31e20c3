"""What a store no longer needs: old versions of a dataset, and tables that no version came from.

Versions go by number, parts by the rule of a day that `store.retention` states. A table of the
split or tokenize step stays while a living version of any dataset in the store was made from it,
and for a week after it was written: a preparation may be about to use it. Should it be needed
later, the step makes it again.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from megapack.jobs.pipeline import dataset_uri
from megapack.jobs.prepare import PrepareJob
from megapack.steps.source_content import HINT_PREFIX
from megapack.store.location import Location, open_location
from megapack.store.manifest import Manifest
from megapack.store.objects import StoredKey
from megapack.store.retention import collect, living_versions, retire
from megapack.store.versions import VERSION_PREFIX
from megapack.store.writer import COLLECT_AFTER_S

TABLES_KEPT_S = 7 * 24 * 3600.0
_STEPS = "steps/"
_DATASETS = "datasets/"
_TABLE_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """What was let go.

    Attributes:
        versions: numbers of the versions retired.
        parts: objects of the dataset deleted.
        tables: tables of the split and tokenize steps deleted.
    """

    versions: tuple[int, ...]
    parts: int
    tables: int

    def line(self) -> str:
        """One line, `key=value`."""
        return (
            f"retention versions_retired={len(self.versions)} parts_deleted={self.parts} "
            f"tables_deleted={self.tables}"
        )


def retain(
    job: PrepareJob,
    *,
    keep_versions: int,
    min_age_s: float = COLLECT_AFTER_S,
    tables_age_s: float = TABLES_KEPT_S,
) -> Retained:
    """Retire old versions of a job's dataset, and delete what nothing needs.

    Args:
        job: the preparation job.
        keep_versions: newest versions that stay, at least 1; pinned ones stay beside them.
        min_age_s: age from which a part may be deleted.
        tables_age_s: age from which a table that no version came from may be deleted.

    Raises:
        ConfigError: `keep_versions` is below 1.
        StoreError: the store failed.
    """
    dataset = open_location(dataset_uri(job))
    versions = retire(dataset, keep_newest=keep_versions, min_age_s=min_age_s)
    parts = collect(dataset, min_age_s=min_age_s)
    store = open_location(job.store)
    tables = _sweep(store, list(_manifests(store)), age_s=tables_age_s)
    return Retained(versions=versions, parts=parts, tables=tables)


def _manifests(store: Location) -> Iterable[Manifest]:
    """Manifests of the living versions of all datasets in a store."""
    keys = [one.key.removeprefix(_DATASETS) for one in store.list_keys(_DATASETS)]
    names = {key.partition("/")[0] for key in keys if f"/{VERSION_PREFIX}" in key}
    for name in sorted(names):
        yield from living_versions(open_location(f"{store.uri}/{_DATASETS}{name}")).values()


def _sweep(store: Location, manifests: list[Manifest], *, age_s: float) -> int:
    """Delete old tables that none of these versions was made from, and old hints of lost files."""
    needed = {uri.rpartition(f"/{_STEPS}")[2] for one in manifests for uri in one.parents}
    contents = {content for one in manifests for content in one.files.values()}
    tables: dict[str, list[StoredKey]] = {}
    for one in store.list_keys(_STEPS):
        if one.key.startswith(HINT_PREFIX):
            if one.age_s >= age_s and _content(store, one.key) not in contents:
                store.delete(one.key)
        else:
            table = "/".join(one.key.split("/")[1:_TABLE_DEPTH])
            tables.setdefault(table, []).append(one)
    old = [
        table
        for table, objects in tables.items()
        if table not in needed and min(one.age_s for one in objects) >= age_s
    ]
    for table in old:
        # Its versions go first: from then on the table is not there, and nobody relies on it.
        for one in sorted(tables[table], key=lambda one: f"/{VERSION_PREFIX}" not in one.key):
            store.delete(one.key)
    return len(old)


def _content(store: Location, key: str) -> str:
    """Digest that a hint names, "" when it names none."""
    try:
        return str(json.loads(store.get(key))["sha256"])
    except (ValueError, TypeError, KeyError):
        return ""
