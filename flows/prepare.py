"""Conversations to packed rows: split, tokenize, pack, audit."""

from prefect import flow, unmapped

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import DatasetRef
from tasks.audit import audit
from tasks.pack import pack
from tasks.preflight import preflight
from tasks.split import list_sources, split_source
from tasks.tokenize import tokenize_part


def prepare_dataset(job: PrepareJob) -> DatasetRef:
    """The data steps of any flow, in the calling flow's run.

    1. List the files of the sources.
    2. Split each into conversations, in parallel.
    3. Tokenize each part, in parallel.
    4. Pack all documents and commit a version.
    5. Audit it.
    """
    shards = list_sources.submit(job).result()
    conversations = split_source.map(unmapped(job), list(shards)).result()
    parts = [(ref, index) for ref in conversations for index in range(ref.num_parts)]
    documents = tokenize_part.map(
        unmapped(job), [ref for ref, _ in parts], [index for _, index in parts]
    ).result()
    dataset = pack.submit(job, conversations, documents).result()
    audit.submit(dataset).result()
    return dataset


@flow(name="prepare")
def prepare(prepare: PrepareJob) -> DatasetRef:
    """Publish a packed dataset."""
    preflight.submit(prepare).result()
    return prepare_dataset(prepare)
