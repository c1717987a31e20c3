"""Runs that start from a Hugging Face folder: trained, killed, resumed without it, extracted."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from megapack.errors import ConfigError
from megapack.jobs.addresses import train_address
from megapack.jobs.export_weights import ExportWeightsJob
from megapack.jobs.extract import ExtractJob
from megapack.jobs.train import Saving, TrainJob, TrainRequest
from megapack.layout.granularity import ParallelSizes
from megapack.records.payload import PayloadKind
from megapack.records.refs import FolderRef
from megapack.steps.hugging_face.export import export_weights
from megapack.steps.hugging_face.folder import open_folder
from megapack.steps.hugging_face.resolve import resolve
from megapack.steps.launch.protocol import RunFiles
from megapack.store.location import open_location
from megapack.store.payload_reader import PayloadDataset
from megapack.store.versions import find_address, read_version
from tests.support.hf_folder import write_folder
from tests.support.ranks import RankFailure
from tests.support.tiny_dataset import extract_job, layout, make_dataset, make_rows

pytestmark = pytest.mark.distributed


def train_on_rank(job: str, scratch: str, kill_at: int | None = None) -> list | None:
    import torch.distributed as dist

    from megapack.engine import train as engine
    from megapack.engine.metric_log import MetricLog
    from megapack.parallel.context import ParallelContext

    parsed = TrainJob.model_validate_json(job)
    files = RunFiles(scratch=Path(scratch))
    files.folder.mkdir(parents=True, exist_ok=True)
    ordinary = engine.train_step

    def train_step(run, progress, planned):
        if progress.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(run, progress, planned)

    engine.train_step = train_step
    context = ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0)
    engine.run_training(parsed, context, files.scratch)
    return MetricLog.load(files.metrics) if dist.get_rank() == 0 else None


def extract_on_rank(job: str, scratch: str) -> None:
    from megapack.engine.extract import run_extraction
    from megapack.parallel.context import ParallelContext

    (Path(scratch) / "ranks").mkdir(parents=True, exist_ok=True)
    parsed = ExtractJob.model_validate_json(job)
    context = ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0)
    run_extraction(parsed, context, Path(scratch))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Qwen2-like: biases; more vocabulary than the data has, and no multiple of anything."""
    return write_folder(tmp_path_factory.mktemp("hf") / "model", model_type="qwen2")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("dataset"), make_rows(8, seed=1), make_rows(3, seed=2)
    )


def export_on_rank(job: str, scratch: str) -> None:
    from megapack.engine.export import run_export
    from megapack.parallel.context import ParallelContext

    context = ParallelContext.initialize(ParallelSizes(), seed=0)
    run_export(ExportWeightsJob.model_validate_json(job), context, Path(scratch))


def job_from(folder: Path, dataset, output: Path) -> TrainJob:
    request = TrainRequest(
        starting_model=str(folder),
        parallel=layout(tp=2),
        steps=4,
        global_batch_rows=2,
        evaluate_every=4,
        checkpoint_every=2,
        saving=Saving.WAIT,
    )
    return TrainJob(dataset=dataset, settings=resolve(request), output=str(output))


def run(ranks, job, scratch, *, kill_at=None):
    return ranks.run(
        train_on_rank,
        world_size=job.settings.parallel.sizes().world_size,
        job=job.model_dump_json(),
        scratch=str(scratch),
        kill_at=kill_at,
    )[0]


def losses(metrics):
    return [metric["loss"] for metric in metrics if metric["kind"] in ("train", "evaluation")]


@pytest.fixture(scope="module")
def whole(ranks, dataset, folder, tmp_path_factory):
    """Job and metrics of the run that nobody interrupts."""
    here = tmp_path_factory.mktemp("whole")
    job = job_from(folder, dataset, here / "out")
    return job, run(ranks, job, here / "scratch")


def test_run_from_a_folder_goes_on_without_it_to_the_same_end(
    ranks, dataset, folder, whole, tmp_path
):
    copy = shutil.copytree(folder, tmp_path / "copy")
    job = job_from(copy, dataset, tmp_path / "out")
    with pytest.raises(RankFailure, match="died without an answer"):
        run(ranks, job, tmp_path / "scratch-1", kill_at=3)
    shutil.rmtree(copy)
    assert losses(run(ranks, job, tmp_path / "scratch-2")) == losses(whole[1])
    ends = [find_address(one.output, train_address(one)).manifest for one in (job, whole[0])]
    assert ends[0].digest == ends[1].digest
    assert ends[0].parents == {
        "dataset": dataset.digest,
        "starting_model": job.settings.starting_digest,
    }


def test_exported_checkpoint_is_a_folder_that_goes_on_where_training_ended(
    ranks, dataset, folder, whole, tmp_path
):
    (folder / "tokenizer.json").write_text("{}")

    def launch(command, **_):
        job = Path(command.arguments[1]).read_text()
        ranks.run(export_on_rank, job=job, scratch=str(command.scratch))

    out = tmp_path / "out"
    made = export_weights(
        whole[0].output, out, like=folder, on_line=lambda *_: None, launcher=launch
    )
    assert made == FolderRef(uri=str(out), digest=open_folder(str(out)).digest())
    assert open_folder(str(out)).model == whole[0].settings.model
    assert (out / "tokenizer.json").read_text() == "{}"
    ends = [one for one in whole[1] if one["kind"] == "evaluation"]
    again = run(ranks, job_from(out, dataset, tmp_path / "again"), tmp_path / "scratch")[0]
    assert again["loss"] == ends[-1]["loss"] != ends[0]["loss"]
    with pytest.raises(ConfigError, match="expected nothing at"):
        export_weights(whole[0].output, out, on_line=lambda *_: None, launcher=launch)


def test_teacher_from_a_folder_gives_the_losses_that_training_starts_with(
    ranks, dataset, folder, whole, tmp_path
):
    job, start = whole[0], whole[1][0]
    assert (start["kind"], start["step"]) == ("evaluation", 0)
    ref = FolderRef(uri=str(folder), digest=job.settings.starting_digest)
    extraction = extract_job(dataset, ref, tmp_path / "payload").model_copy(
        update={"model": job.settings.model}
    )
    ranks.run(
        extract_on_rank, job=extraction.model_dump_json(), scratch=str(tmp_path / "scratch-2")
    )
    committed = read_version(extraction.output)
    info = committed.manifest.payload
    assert (info.vocab_size, info.teachers) == (107, (ref.digest,))
    validation = {name for row in make_rows(3, seed=2) for name in row.document_ids}
    logprobs = np.concatenate(
        [
            one.target_logprobs
            for one in PayloadDataset(open_location(extraction.output), committed).payloads(
                PayloadKind.HIDDEN
            )
            if one.document_id in validation
        ]
    )
    assert -np.nanmean(logprobs.astype(np.float64)) == pytest.approx(start["loss"], rel=1e-6)
