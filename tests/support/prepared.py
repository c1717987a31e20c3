"""A small dataset made by the real steps, one after another."""

from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import DatasetRef
from megapack.steps.pack import pack
from megapack.steps.split import list_sources, split_source
from megapack.steps.tokenize import tokenize_part


def prepare(job: PrepareJob) -> DatasetRef:
    """Split, tokenize and pack."""
    conversations = [split_source(job, shard) for shard in list_sources(job)]
    documents = [
        tokenize_part(job, table, part)
        for table in conversations
        for part in range(table.num_parts)
    ]
    return pack(job, conversations=conversations, documents=documents)
