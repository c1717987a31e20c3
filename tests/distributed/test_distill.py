"""Distillation worlds: a step does not depend on its layout, nor a run on being killed."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.distill import Distillation, DistillSettings, TeacherRequest
from megapack.jobs.extract import PayloadChoice
from megapack.jobs.train import TrainJob
from megapack.layout.granularity import ParallelSizes
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.steps.distill.resolve import resolve_teacher
from megapack.steps.train import check_train_job
from megapack.store.lm_head import lm_head_info, write_lm_head
from megapack.store.location import open_location
from megapack.store.versions import find_address
from tests.support.extraction_run import extract_on_rank
from tests.support.payloads import commit_payloads, payloads_of, topk_payloads
from tests.support.ranks import RankFailure
from tests.support.rows import VOCAB, worst_error
from tests.support.tiny_dataset import extract_job, layout, make_dataset, make_rows, train_job
from tests.support.training_run import curve, train_on_rank

pytestmark = pytest.mark.distributed
ROWS, VALIDATION = make_rows(8, seed=1), make_rows(3, seed=2)
WIDTH = 12


def step_on_rank(*, sizes: ParallelSizes, job: str, scratch: str, rows_per_microbatch: int = 1):
    """Loss, metrics and whole gradients of one step over all training rows, in float64."""
    import torch

    from megapack.engine.learning import learn
    from megapack.engine.rows import RowSource
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.store.manifest import Split
    from tests.support.tiny_training import outcome_of, packed_step, start, whole_parameters

    parsed = TrainJob.model_validate_json(job)
    context, chunks, wrapped = start(sizes, dtype=torch.float64)
    source = RowSource.open(parsed.dataset)
    rows = list(source.read(Split.TRAIN, range(len(ROWS))))
    learning = learn(parsed, source, context, Path(scratch))
    step = packed_step(rows, context, rows_per_microbatch=rows_per_microbatch)
    assert (learning.payloads is not None) == context.is_last_stage
    if learning.payloads is not None:
        step = learning.payloads.of_rows(step, rows[context.dp_rank :: sizes.dp])
    result = run_schedule(wrapped, SchedulePlan(step=step, head=learning.head), context)
    outcome = outcome_of(result, step, whole_parameters(chunks[0], context))
    if learning.payloads is not None:
        learning.payloads.close()
    source.close()
    context.destroy()
    return outcome


def alone_on_rank(*, rows, payloads, head):
    """The same of each document alone in a row, with its payload laid beside it by hand."""
    import torch

    from megapack.batch.fields import AttachFields, RowFields
    from megapack.batch.iterate import StepBatch
    from megapack.batch.normalizer import normalize_step
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.outputs.distill import DistillHead
    from tests.support.rows import one_document
    from tests.support.tiny_training import outcome_of, start, whole_parameters

    context, chunks, wrapped = start(ParallelSizes(), dtype=torch.float64)
    alone = [one_document(row, i) for row in rows for i in range(row.layout.num_segments)]

    def fields(row):
        payload = payloads[row.document_ids[0]]
        return RowFields(
            local={
                "teacher": np.zeros(payload["values"].shape[0], np.int64),
                "teacher_topk_logprobs": payload["values"],
                "teacher_topk_ids": payload["indices"].astype(np.int64),
                "teacher_tail_logprobs": payload["tail_logprobs"],
            }
        )

    step = StepBatch(
        rows=tuple(alone),
        context=context,
        row_length=max(row.layout.row_length for row in alone),
        normalizer=normalize_step(
            alone, context, num_tokens=sum(row.layout.row_length for row in alone)
        ),
        stages=(AttachFields(source=fields),),
    )
    result = run_schedule(
        wrapped, SchedulePlan(step=step, head=DistillHead(settings=head)), context
    )
    outcome = outcome_of(result, step, whole_parameters(chunks[0], context))
    context.destroy()
    return outcome


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("dataset"), ROWS, VALIDATION)


def teacher_of(folder, payloads, **info):
    commit_payloads(folder, payloads, **info)
    return resolve_teacher(TeacherRequest(payload=str(folder)))


def with_teachers(job, *teachers, **loss):
    distill = Distillation(settings=DistillSettings(**loss), teachers=teachers)
    return job.model_copy(update={"distill": distill})


MIXED = DistillSettings(nll_weight=0.3)


@pytest.fixture(scope="module")
def topk_job(dataset, tmp_path_factory):
    """Two teachers, of every other document each."""
    folder = tmp_path_factory.mktemp("topk")
    made = topk_payloads([*ROWS, *VALIDATION])
    teachers = [teacher_of(folder / str(n), made[n::2]) for n in range(2)]
    job = with_teachers(train_job(dataset, folder / "out"), *teachers, nll_weight=0.3)
    return job, {one.document_id: one for one in made}


@pytest.fixture(scope="module")
def alone(ranks, topk_job):
    payloads = {
        name: {"values": one.values, "indices": one.indices, "tail_logprobs": one.tail_logprobs}
        for name, one in topk_job[1].items()
    }
    return ranks.run(alone_on_rank, rows=ROWS, payloads=payloads, head=MIXED)[0]


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        (ParallelSizes(), 4),
        (ParallelSizes(tp=2, cp=2), 1),
        (ParallelSizes(pp=2, dp=2), 2),
    ],
    ids=["one process, rows joined", "tp 2 x cp 2", "pp 2 x dp 2, rows joined"],
)
def test_a_step_is_that_of_its_documents_alone(ranks, topk_job, alone, tmp_path, sizes, joined):
    found = ranks.run(
        step_on_rank,
        world_size=sizes.world_size,
        sizes=sizes,
        job=topk_job[0].model_dump_json(),
        scratch=str(tmp_path),
        rows_per_microbatch=joined,
    )[0]
    assert found.num_target_tokens == alone.num_target_tokens
    assert found.loss_sum == pytest.approx(alone.loss_sum, rel=1e-12)
    for name in ("loss", "divergence", "nll"):
        assert found.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-12)
    assert worst_error(found.gradients, alone.gradients) < 1e-12


@pytest.fixture(scope="module")
def hidden_job(dataset, tmp_path_factory):
    """A teacher's random hidden states and LM head, in bfloat16 bits."""
    folder = tmp_path_factory.mktemp("hidden")
    draw = np.random.default_rng(0)

    def bits(*shape):
        return (draw.normal(size=shape).astype("<f4").view("<u4") >> 16).astype("<u2")

    payloads = payloads_of(
        [*ROWS, *VALIDATION],
        PayloadKind.HIDDEN,
        PayloadDtype.BF16,
        lambda tokens: {"values": bits(tokens.size, WIDTH)},
    )
    parts = write_lm_head(open_location(folder / "t"), [bits(VOCAB, WIDTH)], PayloadDtype.BF16)
    heads = {0: lm_head_info(parts, PayloadDtype.BF16)}
    teacher = teacher_of(folder / "t", payloads, files=parts, lm_heads=heads)

    def job(output, **settings):
        plain = train_job(dataset, output, **settings)
        return with_teachers(plain, teacher, kind=PayloadKind.HIDDEN, nll_weight=0.3)

    return job


def run(ranks, job, scratch: Path, **arguments):
    scratch.mkdir()
    return ranks.run(
        train_on_rank,
        world_size=job.settings.parallel.sizes().world_size,
        job=job.model_dump_json(),
        scratch=str(scratch),
        **arguments,
    )[0]


def of_history(metrics):
    """What a resumed run must say again to the bit."""
    passing = {"step_s", "tokens_per_s", "tokens_per_s_per_rank", "flops_per_s", "mfu"}
    passing |= {"memory_bytes", "payload_wait_s"}
    return [
        {name: value for name, value in metric.items() if name not in passing}
        for metric in metrics
        if metric["kind"] != "checkpoint"
    ]


def test_a_killed_run_goes_on_to_the_same_curve_to_the_bit(ranks, hidden_job, tmp_path):
    whole = run(ranks, hidden_job(tmp_path / "a", parallel=layout(tp=2)), tmp_path / "whole")
    steps = [metric for metric in whole if metric["kind"] == "train"]
    assert all(metric["payload_wait_s"] >= 0 for metric in steps)
    evaluations = [metric for metric in whole if metric["kind"] == "evaluation"]
    for metric in (*steps, *evaluations):
        mixed = 0.7 * metric["divergence"] + 0.3 * metric["nll"]
        assert metric["loss"] == pytest.approx(mixed, rel=1e-5)
    assert evaluations[-1]["divergence"] < evaluations[0]["divergence"]
    job = hidden_job(tmp_path / "b", parallel=layout(tp=2))
    with pytest.raises(RankFailure, match="died without an answer"):
        run(ranks, job, tmp_path / "first", moment=3.5, number=signal.SIGKILL, at_rank=1)
    assert of_history(run(ranks, job, tmp_path / "second")) == of_history(whole)


def test_dense_batches_learn_the_same(ranks, hidden_job, tmp_path):
    expected = curve(run(ranks, hidden_job(tmp_path / "a", steps=3), tmp_path / "1"))
    dense = hidden_job(tmp_path / "b", steps=3, dense_token_budget=120)
    assert curve(run(ranks, dense, tmp_path / "2")) == pytest.approx(expected, rel=2e-5)


def test_a_payload_replaced_on_its_way_is_refused_where_it_is_joined(ranks, dataset, tmp_path):
    made = topk_payloads([*ROWS, *VALIDATION])
    wrong = [replace(one, labels_digest=one.labels_digest ^ 1) for one in made[:1]]
    job = with_teachers(
        train_job(dataset, tmp_path / "out", steps=3),
        teacher_of(tmp_path / "t", [*wrong, *made[1:]]),
    )
    with pytest.raises(RankFailure, match=f"document {made[0].document_id}: expected a payload of"):
        run(ranks, job, tmp_path / "scratch")


def evaluate_on_rank(*, job: str, checkpoint: str, scratch: str):
    """Held-out loss, divergence and NLL of a checkpoint's weights as the student."""
    from megapack.engine.checkpoint import load_weights
    from megapack.engine.evaluate import EvaluationPlan, evaluate
    from megapack.engine.learning import learn
    from megapack.engine.rows import RowSource
    from megapack.model.build import build_model
    from megapack.parallel.context import ParallelContext
    from megapack.records.refs import CheckpointRef

    parsed = TrainJob.model_validate_json(job)
    context = ParallelContext.initialize(parsed.settings.parallel.sizes(), seed=0)
    source = RowSource.open(parsed.dataset)
    chunks = build_model(
        parsed.settings.model, context=context, vocab_size=source.vocab_size, seed=None
    )
    ref = CheckpointRef.model_validate_json(checkpoint)
    load_weights(ref, chunks, context, Path(scratch) / "weights")
    learning = learn(parsed, source, context, Path(scratch))
    plan = EvaluationPlan(
        head=learning.head, max_rows=99, payloads=learning.payloads, means=learning.means
    )
    found = evaluate(chunks, source, context, plan)
    if learning.payloads is not None:
        learning.payloads.close()
    source.close()
    return found.loss, dict(found.metrics)


def test_a_teacher_as_its_own_student_at_another_layout_has_nothing_to_learn(
    ranks, dataset, tmp_path
):
    """From the teacher's forward over store, LM-head shards and join to the student's loss."""
    plain = train_job(dataset, tmp_path / "teacher", steps=3)
    last = [one for one in run(ranks, plain, tmp_path / "t") if one["kind"] == "evaluation"][-1]
    teacher = find_address(plain.output, train_address(plain)).checkpoint_ref()
    choice = PayloadChoice(top_k=8, top_k_dtype=PayloadDtype.FP32, hidden=PayloadDtype.FP32)
    extraction = extract_job(
        dataset, teacher, tmp_path / "payload", payload=choice, parallel=layout(tp=2)
    )
    ranks.run(
        extract_on_rank,
        world_size=2,
        job=extraction.model_dump_json(),
        scratch=str(tmp_path / "e"),
    )
    own = resolve_teacher(TeacherRequest(payload=str(tmp_path / "payload")))
    student = train_job(dataset, tmp_path / "out", parallel=layout(cp=2))
    for kind in (PayloadKind.TOPK, PayloadKind.HIDDEN):
        job = with_teachers(student, own, kind=kind)
        check_train_job(job)
        loss, found = ranks.run(
            evaluate_on_rank,
            world_size=2,
            job=job.model_dump_json(),
            checkpoint=teacher.model_dump_json(),
            scratch=str(tmp_path / kind.value),
        )[0]
        assert loss == found["divergence"] == pytest.approx(0.0, abs=1e-5)
        assert found["nll"] == pytest.approx(last["loss"], rel=1e-5)
