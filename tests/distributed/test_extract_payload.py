"""Extraction worlds: the payload of a document does not depend on layout or on its neighbours."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from megapack.jobs.addresses import extract_address, train_address
from megapack.jobs.extract import ExtractJob, PayloadChoice
from megapack.jobs.train import OptimizerJob, TrainJob
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import runs_of_mask
from megapack.layout.token_fields import unplace
from megapack.records.document import labels_digest
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.store.payload_reader import open_payloads
from megapack.store.versions import find_address, read_version
from tests.support.extraction_run import extract_on_rank
from tests.support.rows import GRANULARITY, VOCAB, one_document
from tests.support.tiny_dataset import (
    MODEL,
    extract_job,
    layout,
    make_dataset,
    make_rows,
    train_job,
)

pytestmark = pytest.mark.distributed
HIDDEN, TOPK = PayloadKind.HIDDEN, PayloadKind.TOPK
CHOICE = PayloadChoice(top_k=5, top_k_dtype=PayloadDtype.FP32, hidden=PayloadDtype.FP32)
SHARD_ROWS = 3


def train_on_rank(job: str, scratch: str) -> None:
    from megapack.engine.train import run_training
    from megapack.parallel.context import ParallelContext

    (Path(scratch) / "ranks").mkdir(parents=True, exist_ok=True)
    parsed = TrainJob.model_validate_json(job)
    run_training(
        parsed, ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0), Path(scratch)
    )


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
    """Payload datasets by dataset and settings, extracted once each."""
    made: dict[str, tuple[ExtractJob, object]] = {}

    def payloads(of=dataset, **changes):
        key = str((of.uri, sorted(changes.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp("extract")
            settings = {"payload": CHOICE, "shard_rows": SHARD_ROWS, **changes}
            job = extract_job(of, teacher, folder / "out", **settings)
            seen = ranks.run(
                extract_on_rank,
                world_size=job.settings.parallel.sizes().world_size,
                job=job.model_dump_json(),
                scratch=str(folder / "scratch"),
            )
            committed = read_version(job.output)
            assert committed.manifest.address == extract_address(job)
            assert {one.documents for one in seen} == {committed.payload_ref().num_documents}
            last = seen[0].metrics[-1]
            assert last["rows"] == last["total_rows"]
            assert last["shards"] == last["total_shards"]
            made[key] = job, open_payloads(job.output)
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


def test_extract_writes_each_document_and_kind_once_in_stored_order(extracted, rows):
    dataset = extracted()
    documents = documents_of(rows)
    for kind, width in ((TOPK, 5), (HIDDEN, MODEL.hidden_size)):
        payloads = list(dataset.payloads(kind))
        assert [one.document_id for one in payloads] == list(documents)
        assert len(dataset.parts(kind)) == 4
        for one in payloads:
            tokens, labels = documents[one.document_id]
            assert one.values.shape == (len(tokens), width)
            assert one.labels_digest == labels_digest(tokens, labels)
            assert np.array_equal(np.isnan(one.target_logprobs), labels == -100)
            assert np.nanmax(one.target_logprobs) < 0


def test_extract_publishes_the_lm_head_that_makes_log_probs_of_hidden_states(extracted, rows):
    dataset = extracted()
    weight = dataset.lm_head().rows(0, VOCAB).astype(np.float64)
    labels = {name: labels for name, (_, labels) in documents_of(rows).items()}
    for one, best in zip(dataset.payloads(HIDDEN), dataset.payloads(TOPK), strict=True):
        logits = one.values.astype(np.float64) @ weight.T
        logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        np.testing.assert_allclose(
            best.values, np.take_along_axis(logprobs, best.indices.astype(int), 1), atol=2e-5
        )
        counted = labels[one.document_id] != -100
        np.testing.assert_allclose(
            one.target_logprobs[counted],
            logprobs[counted, labels[one.document_id][counted]],
            atol=2e-5,
        )


def test_extract_on_more_data_parallel_ranks_gives_the_same_version_to_the_bit(extracted):
    expected, found = extracted(), extracted(parallel=layout(dp=2))
    assert found.committed.manifest.digest == expected.committed.manifest.digest


@pytest.mark.parametrize("sizes", [{"cp": 2}, {"tp": 2}, {"pp": 2}])
def test_extract_at_another_layout_gives_the_same_documents_within_rounding(extracted, sizes):
    compare(extracted(parallel=layout(**sizes)), extracted())


def compare(found, expected):
    """Equal documents in equal order, numbers within rounding, ids to the bit."""
    heads = [one.committed.manifest.payload.lm_heads for one in (found, expected)]
    assert heads[0] == heads[1]
    for kind in (TOPK, HIDDEN):
        others = list(expected.payloads(kind))
        own = found.fetch([one.document_id for one in others], kind)
        assert len(own) == len(others) == found.index().height
        for other in others:
            one = own[other.document_id]
            assert one.labels_digest == other.labels_digest
            np.testing.assert_allclose(one.values, other.values, rtol=0, atol=2e-5)
            np.testing.assert_allclose(one.target_logprobs, other.target_logprobs, atol=2e-5)
            if kind is TOPK:
                assert np.array_equal(one.indices, other.indices)
                np.testing.assert_allclose(one.tail_logprobs, other.tail_logprobs, atol=2e-5)


def test_extract_from_other_rows_of_the_same_documents_gives_the_same_payloads(
    ranks, extracted, rows, tmp_path
):
    """Rows of half the length, each document beside others than before."""
    other = make_dataset(tmp_path / "data", packed_anew(rows, row_length=48))
    compare(extracted(of=other, shard_rows=8), extracted())


def packed_anew(rows, *, row_length):
    """The documents of rows in reverse order, as many in a row as fit."""
    alone = {
        row.document_ids[0]: row
        for whole in (*rows[0], *rows[1])
        for row in (one_document(whole, i) for i in range(whole.layout.num_segments))
    }
    made, held = [], []
    for row in reversed(alone.values()):
        if sum(-(-one.num_real_tokens // 8) * 8 for one in [*held, row]) > row_length:
            made.append(laid(held, row_length))
            held = []
        held.append(row)
    return [*made, laid(held, row_length)]


def laid(documents, row_length):
    geometry = PackLayout(
        row_length=row_length,
        lengths=np.array([one.num_real_tokens for one in documents], np.int32),
        granularity=GRANULARITY,
    )
    tokens, counted = np.zeros(row_length, np.int32), np.zeros(row_length, np.bool_)
    for start, one in zip(geometry.slot_starts.tolist(), documents, strict=True):
        tokens[start : start + one.num_real_tokens] = one.tokens
        counted[start : start + one.num_real_tokens] = one.loss_mask()
    return PackedRow(
        tokens=tokens,
        target_runs=runs_of_mask(counted),
        layout=geometry,
        document_ids=tuple(one.document_ids[0] for one in documents),
    )


def test_extract_of_some_rows_takes_the_first_of_each_split(extracted, rows):
    some = extracted(max_rows=2, payload=PayloadChoice(top_k=None))
    wanted = list(documents_of((rows[0][:2], rows[1][:2])))
    assert some.index()["document_id"].to_list() == wanted
    every = extracted().index().filter(pl.col("document_id").is_in(wanted))
    assert every["labels_digest"].to_list() == (some.index()["labels_digest"].to_list())
