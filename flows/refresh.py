"""Nightly refresh: publish a new version when the sources changed, audit it, let old ones go.

Only new and changed files are read and tokenized. Rows that hold nothing that was removed are
shared with the version before; when nothing changed, there is no new version.
"""

from prefect import flow

from flows.prepare import tokenized_sources
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.refresh import RefreshSettings
from megapack.records.refs import DatasetRef
from tasks.audit import audit
from tasks.preflight import preflight
from tasks.refresh import refresh_dataset, retain_versions


@flow(name="nightly-refresh")
def nightly_refresh(prepare: PrepareJob, refresh: RefreshSettings | None = None) -> DatasetRef:
    """Bring a dataset up to date with its sources.

    1. Split and tokenize what is new in the sources.
    2. Publish a version that shares the rows that stay, when anything changed.
    3. Audit it.
    4. Let old versions go, and what nothing needs any more.
    """
    settings = refresh or RefreshSettings()
    preflight.submit(prepare).result()
    conversations, documents = tokenized_sources(prepare)
    dataset = refresh_dataset.submit(prepare, settings, conversations, documents).result()
    audit.submit(dataset).result()
    retain_versions.submit(prepare, settings).result()
    return dataset
