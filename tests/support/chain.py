"""The data steps as a plain chain, without Prefect."""

from megapack.steps.pack import pack
from megapack.steps.refresh import refresh
from megapack.steps.split import list_sources, split_source
from megapack.steps.tokenize import tokenize_part


def tables(job):
    """Run the steps before packing: their tables, as arguments of `pack` and `refresh`."""
    conversations = [split_source(job, shard) for shard in list_sources(job)]
    documents = [
        tokenize_part(job, ref, index) for ref in conversations for index in range(ref.num_parts)
    ]
    return {"conversations": conversations, "documents": documents}


def prepared(job, **options):
    """A full preparation."""
    return pack(job, **tables(job), **options)


def refreshed(job, **options):
    """A refresh."""
    return refresh(job, **tables(job), **options)
