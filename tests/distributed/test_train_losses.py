"""A run's choice of loss: only what changes the numbers is in its address."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megapack.engine.rows import RowSource
from megapack.jobs.addresses import train_address
from megapack.jobs.outputs import LogitsForm, LossMean, OutputSettings
from megapack.jobs.parallel import ParallelJob
from megapack.jobs.train import TrainJob
from megapack.records.packed_row import PackedRow
from megapack.steps.launch.protocol import RunFiles
from tests.support.ranks import RankServer
from tests.support.tiny_dataset import make_dataset, make_rows, train_job

BY_CHUNKS = OutputSettings(logits=LogitsForm.BY_CHUNKS, tokens_per_chunk=5)


def train(*, job: str, scratch: str) -> Any:
    """Runs on ranks; rank 0 answers with all metrics."""
    import torch.distributed as dist

    from megapack.engine.metric_log import MetricLog
    from megapack.engine.train import run_training
    from megapack.parallel.context import ParallelContext

    parsed = TrainJob.model_validate_json(job)
    files = RunFiles(scratch=Path(scratch))
    files.folder.mkdir(parents=True, exist_ok=True)
    context = ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0)
    run_training(parsed, context, files.scratch)
    return MetricLog.load(files.metrics) if dist.get_rank() == 0 else None


def from_two_sources(row: PackedRow) -> PackedRow:
    names = ["books" if i % 2 else "chats" for i in range(row.layout.num_segments)]
    return replace(row, sources=tuple(names))


def test_sequence_mean_by_chunks_at_tp2_trains_as_whole_logits_do_in_one_process(
    ranks: RankServer, tmp_path: Path
) -> None:
    rows = [from_two_sources(row) for row in make_rows(6, seed=1)]
    dataset = make_dataset(tmp_path / "data", rows[:4], rows[4:])
    source = RowSource.open(dataset)
    assert source.source_names() == ("books", "chats")
    source.close()
    plain = train_job(dataset, tmp_path / "one", steps=3, loss=LossMean.SEQUENCE_MEAN)
    chunked = train_job(
        dataset,
        tmp_path / "two",
        steps=3,
        loss=LossMean.SEQUENCE_MEAN,
        outputs=BY_CHUNKS,
        parallel=ParallelJob(tensor_model_parallel_size=2, sequence_parallel=True),
    )
    found = []
    for job, world_size in ((plain, 1), (chunked, 2)):
        scratch = str(tmp_path / f"scratch-{world_size}")
        metrics = ranks.run(
            train, world_size=world_size, job=job.model_dump_json(), scratch=scratch
        )[0]
        names = ("loss", "loss/books", "loss/chats")
        found.append(
            [
                [metric[name] for name in names if name in metric]
                for metric in metrics
                if metric["kind"] in ("train", "evaluation")
            ]
        )
    assert [len(numbers) for numbers in found[0]] == [1, 3, 3, 3, 1]
    for one, several in zip(*found, strict=True):
        assert several == pytest.approx(one, rel=1e-5)
    assert train_address(plain) == train_address(chunked)
    by_tokens = train_job(dataset, tmp_path / "one", steps=3)
    assert train_address(plain) != train_address(by_tokens)
