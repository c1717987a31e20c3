"""Extraction worlds: the payload of a document does not depend on layout or on its neighbours."""

from pathlib import Path

import numpy as np
import pytest

from megapack.engine.metric_log import MetricLog
from megapack.jobs.addresses import extract_address, train_address
from megapack.jobs.extract import ExtractJob
from megapack.jobs.train import OptimizerJob, TrainJob
from megapack.layout.token_fields import unplace
from megapack.records.document import labels_digest
from megapack.records.payload import PayloadKind
from megapack.steps.launch.protocol import RunFiles
from megapack.store.location import open_location
from megapack.store.payload_reader import PayloadDataset
from megapack.store.versions import find_address, read_version
from tests.support.tiny_dataset import (
    MODEL,
    extract_job,
    layout,
    make_dataset,
    make_rows,
    train_job,
)

HIDDEN = PayloadKind.HIDDEN
pytestmark = pytest.mark.distributed


def train_on_rank(job: str, scratch: str) -> None:
    from megapack.engine.train import run_training
    from megapack.parallel.context import ParallelContext

    (Path(scratch) / "ranks").mkdir(parents=True, exist_ok=True)
    parsed = TrainJob.model_validate_json(job)
    run_training(
        parsed, ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0), Path(scratch)
    )


def extract_on_rank(job: str, scratch: str) -> int:
    from megapack.engine.extract import run_extraction
    from megapack.parallel.context import ParallelContext

    (Path(scratch) / "ranks").mkdir(parents=True, exist_ok=True)
    parsed = ExtractJob.model_validate_json(job)
    context = ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0)
    return run_extraction(parsed, context, Path(scratch))


@pytest.fixture(scope="module")
def rows():
    """Ten training rows, one of them twice, and a validation row that repeats a training row."""
    train = make_rows(9, seed=1)
    return [*train, train[2]], [train[0], *make_rows(2, seed=2)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, rows):
    return make_dataset(tmp_path_factory.mktemp("dataset"), *rows)


@pytest.fixture(scope="module")
def teacher(ranks, dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    job = train_job(dataset, folder / "out", steps=1, optimizer=OptimizerJob(lr=1e-2))
    ranks.run(train_on_rank, job=job.model_dump_json(), scratch=str(folder / "scratch"))
    return find_address(job.output, train_address(job)).checkpoint_ref()


@pytest.fixture(scope="module")
def extracted(ranks, dataset, teacher, tmp_path_factory):
    """Payloads by layout, extracted once each."""
    made: dict[str, tuple[ExtractJob, list]] = {}

    def payloads(**changes):
        key = str(sorted(changes.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("extract")
            job = extract_job(dataset, teacher, folder / "out", **changes)
            counts = ranks.run(
                extract_on_rank,
                world_size=job.settings.parallel.sizes().world_size,
                job=job.model_dump_json(),
                scratch=str(folder / "scratch"),
            )
            committed = read_version(job.output)
            assert committed.manifest.address == extract_address(job)
            read = list(PayloadDataset(open_location(job.output), committed).payloads(HIDDEN))
            progress = MetricLog.load(RunFiles(scratch=folder / "scratch").metrics)[-1]
            assert progress["rows"] == progress["total_rows"]
            assert set(counts) == {len(read)} == {committed.payload_ref().num_documents}
            made[key] = job, read
        return made[key][1]

    return payloads


def documents_of(rows):
    """Tokens and labels of each document by id, in the order of first appearance."""
    found = {}
    for row in (*rows[0], *rows[1]):
        tokens, labels = unplace(row.tokens, row.layout), unplace(row.labels(), row.layout)
        for name, document, counted in zip(row.document_ids, tokens, labels, strict=True):
            found.setdefault(name, (document, counted))
    return found


def test_extract_writes_each_document_once_in_stored_order(extracted, rows):
    payloads = extracted()
    documents = documents_of(rows)
    assert [one.document_id for one in payloads] == list(documents)
    for one in payloads:
        tokens, labels = documents[one.document_id]
        assert one.values.shape == (len(tokens), MODEL.hidden_size)
        assert one.labels_digest == labels_digest(tokens, labels)
        assert np.array_equal(np.isnan(one.target_logprobs), labels == -100)
        assert np.nanmax(one.target_logprobs) < 0


@pytest.mark.parametrize("sizes", [{"cp": 2}, {"tp": 2}, {"dp": 2}])
def test_extract_at_another_layout_gives_the_same_documents_within_rounding(extracted, sizes):
    expected, found = extracted(), extracted(parallel=layout(**sizes))
    assert [one.document_id for one in found] == [one.document_id for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.labels_digest == other.labels_digest
        np.testing.assert_allclose(one.values, other.values, rtol=0, atol=2e-5)
        np.testing.assert_allclose(one.target_logprobs, other.target_logprobs, rtol=0, atol=2e-5)


def test_extract_of_some_rows_takes_the_first_of_each_split(extracted, rows):
    some = extracted(max_rows=2)
    wanted = list(documents_of((rows[0][:2], rows[1][:2])))
    assert [one.document_id for one in some] == wanted
