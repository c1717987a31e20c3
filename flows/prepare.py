"""Conversations to packed rows: split, tokenize, pack, audit."""

from prefect import flow, unmapped

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import DatasetRef, TableRef
from tasks.audit import audit
from tasks.pack import pack
from tasks.preflight import preflight
from tasks.split import list_sources, split_source
from tasks.tokenize import tokenize_part


def tokenized_sources(job: PrepareJob) -> tuple[list[TableRef], list[TableRef]]:
    """The steps before packing, in the calling flow's run: conversations, documents.

    1. List the files of the sources.
    2. Split each into conversations, in parallel.
    3. Tokenize each part, in parallel.
    """
    shards = list(list_sources.submit(job).result())
    conversations = split_source.map(unmapped(job), shards).result()
    parts = [
        (ref, index, shard.title)
        for shard, ref in zip(shards, conversations, strict=True)
        for index in range(ref.num_parts)
    ]
    documents = tokenize_part.map(
        unmapped(job),
        [ref for ref, _, _ in parts],
        [index for _, index, _ in parts],
        [title for _, _, title in parts],
    ).result()
    return conversations, documents


def prepare_dataset(job: PrepareJob) -> DatasetRef:
    """The data steps of any flow, in the calling flow's run.

    1. Split and tokenize what is new in the sources.
    2. Pack all documents and commit a version.
    3. Audit it.
    """
    conversations, documents = tokenized_sources(job)
    dataset = pack.submit(job, conversations, documents).result()
    audit.submit(dataset).result()
    return dataset


@flow(name="prepare")
def prepare(prepare: PrepareJob) -> DatasetRef:
    """Publish a packed dataset."""
    preflight.submit(prepare).result()
    return prepare_dataset(prepare)
