"""Nightly refresh: publish a new version when the sources changed, and audit it.

Files that did not change are not read again, and their documents are not tokenized again; when
nothing changed, there is no new version.
"""

from prefect import flow

from flows.prepare import prepare_dataset
from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import DatasetRef
from tasks.preflight import preflight


@flow(name="nightly-refresh")
def nightly_refresh(prepare: PrepareJob) -> DatasetRef:
    """Bring a dataset up to date with its sources."""
    preflight.submit(prepare).result()
    return prepare_dataset(prepare)
