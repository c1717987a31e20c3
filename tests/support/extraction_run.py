"""A whole extraction on a rank, killed at a chosen event; no torch at import."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megapack.jobs.extract import ExtractJob
from megapack.steps.launch.protocol import RunFiles


@dataclass(frozen=True, kw_only=True)
class ExtractionOutcome:
    """What a rank saw: documents, events that it passed, and on rank 0 all metric objects."""

    documents: int
    events: int
    metrics: list[dict] = field(default_factory=list)


def extract_on_rank(
    job: str, scratch: str, kill_at: int | None = None, at_rank: int = 0
) -> ExtractionOutcome:
    """Extract; one rank kills itself at an event.

    Args:
        job: as JSON.
        scratch: folder of the run.
        kill_at: number of the event, from 0; None for a run that nobody disturbs.
        at_rank: rank that dies.
    """
    import torch.distributed as dist

    from megapack.engine.extract import run_extraction
    from megapack.engine.metric_log import MetricLog
    from megapack.parallel.context import ParallelContext

    parsed = ExtractJob.model_validate_json(job)
    files = RunFiles(scratch=Path(scratch))
    files.folder.mkdir(parents=True, exist_ok=True)
    passed = count_events(kill_at if dist.get_rank() == at_rank else None)
    context = ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0)
    documents = run_extraction(parsed, context, files.scratch)
    return ExtractionOutcome(
        documents=documents,
        events=len(passed),
        metrics=MetricLog.load(files.metrics) if dist.get_rank() == 0 else [],
    )


def count_events(kill_at: int | None) -> list[str]:
    """Have this process note what it does, and kill itself when it has done so much.

    Events: forwards, parts written, shards about to be recorded and recorded, the LM head
    written, a commit about to be made and made.
    """
    from megapack.engine import extract, publish_payload, shard_writer
    from megapack.store.shard_log import ShardLog

    passed: list[str] = []

    def note(event: str) -> None:
        if len(passed) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        passed.append(event)

    def noted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def around(*arguments: Any, **options: Any) -> Any:
            note(f"before {name}")
            result = function(*arguments, **options)
            note(f"after {name}")
            return result

        return around

    extract.run_schedule = noted(extract.run_schedule, "forward")
    shard_writer.write_payload_parts = noted(shard_writer.write_payload_parts, "parts")
    publish_payload.write_lm_head = noted(publish_payload.write_lm_head, "head")
    publish_payload.commit = noted(publish_payload.commit, "commit")
    ShardLog.record = noted(ShardLog.record, "record")
    return passed
