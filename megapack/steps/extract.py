"""A packed dataset and a checkpoint to teacher payloads: checked first, then run, or found done."""

from pathlib import Path

from megapack.errors import ContractError
from megapack.jobs.addresses import extract_address
from megapack.jobs.extract import ExtractJob
from megapack.records.refs import PayloadRef
from megapack.steps.extraction.checks import check_extract_job
from megapack.steps.launch.backend import check_backend
from megapack.steps.launch.local import run_ranks
from megapack.steps.launch.protocol import Launcher, OnLine, OnMetric
from megapack.steps.launch.worker_run import run_worker
from megapack.steps.tables import usable_version
from megapack.store.location import open_location


def extract(
    job: ExtractJob,
    *,
    on_line: OnLine,
    on_metric: OnMetric,
    launcher: Launcher = run_ranks,
    scratch: Path | None = None,
) -> PayloadRef:
    """Extract payloads on ranks that this starts; or return what is there already.

    Args:
        job: dataset, teacher, settings, output.
        on_line: takes log lines of the ranks, (rank, line).
        on_metric: takes metric objects of kind `extraction`: `rows` of `total_rows` done.
        launcher: starts the ranks.
        scratch: node-local folder for the teacher's files and for logs; a temporary one when None.

    Returns:
        The payload; reused when no process had to be started.

    Raises:
        ConfigError: the job cannot run on this dataset with this teacher; before any start.
        DataError: a file of the teacher or of the dataset is damaged.
        StoreError: the store failed.
        RankError: a rank died. The next call goes on after the shards that are recorded.
    """
    output = open_location(job.output)
    address = extract_address(job)
    done = usable_version(output, address)
    if done is not None:
        return done.payload_ref(reused=True)
    check_extract_job(job)
    if launcher is run_ranks:
        check_backend(job.settings.backend)
    run_worker(
        "extract",
        job,
        num_ranks=job.settings.parallel.sizes().world_size,
        launcher=launcher,
        scratch=scratch,
        on_line=on_line,
        on_metric=on_metric,
    )
    committed = usable_version(output, address)
    if committed is None:
        raise ContractError(f"{job.output}: expected a payload after extraction, found none.")
    return committed.payload_ref()
