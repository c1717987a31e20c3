"""A process that runs the data steps when it is told to, so that it can be killed while it does.

It prints `ready`, reads one line of JSON (`how`: `prepared` or `refreshed`, `job`), runs, and
prints the dataset's reference. Parts are small, so that little data makes many.
"""

import json
import sys
from functools import partial

import megapack.steps.dataset_version as writing
import megapack.store.s3_prefix  # noqa: F401 - loaded late otherwise, in the time that is measured
import megapack.store.schema as schema
from megapack.jobs.prepare import PrepareJob
from megapack.store.sinks import RowSink
from tests.support import chain

GROUP_TOKENS = 1024
SMALL_PARTS = partial(RowSink, part_bytes=4 * GROUP_TOKENS)


def main() -> None:
    schema.GROUP_TOKENS = GROUP_TOKENS
    writing.RowSink = SMALL_PARTS
    _say("ready")
    wanted = json.loads(sys.stdin.readline())
    job = PrepareJob.model_validate(wanted["job"])
    _say(getattr(chain, wanted["how"])(job).model_dump_json())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
