"""The slowest rank of each step is named, when the job asks for it."""

from pathlib import Path
from typing import Any

import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.train import StragglerTiming, TrainJob
from tests.support.ranks import RankServer
from tests.support.tiny_dataset import layout, make_dataset, make_rows, train_job

pytestmark = pytest.mark.distributed


def train_with_slow_ranks(*, job: str, scratch: str) -> list[dict[str, Any]]:
    """Rank 1 computes for longer in every forward, rank 0 waits for its rows."""
    import time

    import torch.distributed as dist

    from megapack.engine import train as engine
    from megapack.engine.metric_log import MetricLog
    from megapack.engine.straggler import RankTimer
    from megapack.parallel.context import ParallelContext
    from megapack.steps.launch.protocol import RunFiles

    def compute(*_: Any) -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass

    attach, reading = RankTimer.attach, RankTimer.reading
    if dist.get_rank() == 1:
        # Inside the timer's hooks: as if the forward itself were slow.
        def slow_attach(timer: Any, chunks: Any) -> None:
            attach(timer, chunks)
            for chunk in chunks:
                chunk.module.register_forward_pre_hook(compute)

        RankTimer.attach = slow_attach
    else:

        def slow_items(items: Any) -> Any:
            for item in items:
                time.sleep(0.5)
                yield item

        RankTimer.reading = lambda timer, items: reading(timer, slow_items(items))
    parsed = TrainJob.model_validate_json(job)
    files = RunFiles(scratch=Path(scratch))
    files.folder.mkdir(parents=True, exist_ok=True)
    context = ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=1)
    engine.run_training(parsed, context, files.scratch)
    return MetricLog.load(files.metrics) if dist.get_rank() == 0 else []


@pytest.mark.parametrize("timing", StragglerTiming)
def test_metrics_name_the_slow_rank_only_when_asked(
    ranks: RankServer, tmp_path: Path, timing: StragglerTiming
) -> None:
    dataset = make_dataset(tmp_path / "data", make_rows(8, seed=1), make_rows(2, seed=2))
    job = train_job(
        dataset, tmp_path / "out", parallel=layout(dp=2), steps=3, straggler_timing=timing
    )
    plain = train_job(dataset, tmp_path / "out", parallel=layout(dp=2), steps=3)
    assert train_address(job) == train_address(plain)
    metrics = ranks.run(
        train_with_slow_ranks,
        world_size=2,
        job=job.model_dump_json(),
        scratch=str(tmp_path / "scratch"),
    )[0]
    steps = [one for one in metrics if one["kind"] == "train"]
    assert len(steps) == 3
    named = [one for one in steps if any(name.startswith("straggler_") for name in one)]
    if timing is StragglerTiming.OFF:
        assert named == []
        return
    assert [one["straggler_forward_rank"] for one in named] == [1, 1, 1]
    assert [one["straggler_read_rank"] for one in named] == [0, 0, 0]
    assert all(one["straggler_forward_s"] >= 0.2 for one in named)
    assert all(one["straggler_read_s"] >= 0.5 for one in named)
    assert all(one["straggler_forward_ratio"] > 1.0 for one in named)
