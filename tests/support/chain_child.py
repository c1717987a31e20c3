"""The data steps in a process that can be killed while it works.

It is forked from a server that has everything imported, so that it is at work at once. Parts are
small, so that little data makes many.
"""

import multiprocessing
import os
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import megapack.steps.dataset_version as writing
import megapack.store.s3_prefix  # noqa: F401 - loaded late otherwise, in the time that is measured
import megapack.store.schema as schema
from megapack.jobs.prepare import PrepareJob
from megapack.store.sinks import RowSink
from tests.support import chain

GROUP_TOKENS = 1024
SMALL_PARTS = partial(RowSink, part_bytes=4 * GROUP_TOKENS)
_MINE = "tests.support.chain_child"


def started(how: str, job: PrepareJob) -> tuple[BaseProcess, Connection]:
    """Start a run.

    Args:
        how: `prepared` or `refreshed`.
        job: the preparation job.

    Returns:
        The process, and where it sends the dataset's reference.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_MINE])
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(how, job, dict(os.environ), sending))
    process.start()
    sending.close()
    return process, receiving


def _run(how: str, job: PrepareJob, environ: Mapping[str, str], sending: Connection) -> None:
    os.environ.clear()
    os.environ.update(environ)
    schema.GROUP_TOKENS = GROUP_TOKENS
    writing.RowSink = SMALL_PARTS
    sending.send(getattr(chain, how)(job))
