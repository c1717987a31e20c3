"""The distillation head in one process: what it reads, what it refuses, known values."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ConfigError, ContractError
from megapack.jobs.distill import DistillSettings, Divergence, Tail
from megapack.jobs.outputs import LogitsForm, LossMean
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.distill import DistillHead
from megapack.outputs.loss import Averaging, TokenLossHead, step_divisor, tokens_per_chunk
from megapack.outputs.source import LogitReading
from megapack.parallel.context import ParallelContext
from megapack.parallel.teacher_columns import TeacherColumns
from megapack.records.payload import PayloadDtype, PayloadKind
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

ONE = ParallelContext.single()
N, V, COLUMNS = 32, 11, 16
ROW = make_row([8, 3, 1], seed=1, supervised=1.0, row_length=N)
COUNTED = ROW.loss_mask()
TEACHER = TeacherColumns(column_of=torch.tensor([*range(V), *[-1] * (COLUMNS - V)]))
TOPK = DistillSettings(kind=PayloadKind.TOPK)
WHOLE = DistillSettings(kind=PayloadKind.LOGITS)


def random(*shape: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def small_row() -> MicroBatch:
    batch = microbatch(ROW)
    return replace(batch, labels=torch.where(batch.labels >= 0, batch.labels % V, batch.labels))


def with_logits(logits: torch.Tensor, **changes: torch.Tensor) -> MicroBatch:
    """Fields of a teacher with these logits [n, V], of every kind, all tokens as top-k."""
    logprobs, ids = logits.log_softmax(-1).sort(dim=-1, descending=True)
    fields = {
        "teacher": torch.zeros(1, N, dtype=torch.int64),
        "teacher_logits": logits.float()[None],
        "teacher_topk_logprobs": logprobs.float()[None],
        "teacher_topk_ids": ids[None],
        "teacher_tail_logprobs": torch.full((1, N), -torch.inf),
    }
    return replace(small_row(), fields={**fields, **changes})


def output(logits: torch.Tensor) -> ModelOutput:
    return ModelOutput(logits=logits, hidden=None, vocab_size=V)


def loss_and_gradient(head: DistillHead, batch: MicroBatch) -> tuple[float, torch.Tensor]:
    logits = random(N, COLUMNS, seed=5).requires_grad_()
    result = head(output(logits), batch, ONE)
    result.loss_sum.backward()
    return float(result.loss_sum.detach()), logits.grad


@pytest.mark.parametrize("divergence", Divergence)
@pytest.mark.parametrize("tail", Tail)
def test_whole_vocabulary_as_top_k_is_the_whole_vocabulary(
    divergence: Divergence, tail: Tail
) -> None:
    batch = with_logits(random(N, V, seed=4).float().double())
    changes = {"divergence": divergence}
    top = DistillHead(settings=TOPK.model_copy(update={**changes, "tail": tail}))
    whole = DistillHead(settings=WHOLE.model_copy(update=changes), teachers=(TEACHER,))
    (got, gradient), (expected, other) = (loss_and_gradient(one, batch) for one in (top, whole))
    # The teacher's log-probs are float32.
    assert got == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(gradient, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("divergence", Divergence)
def test_tail_as_a_bucket_sees_what_conditioning_on_the_top_does_not(
    divergence: Divergence,
) -> None:
    """The student is the teacher, but for twice the odds of a token outside the top."""
    teacher = torch.zeros(N, V, dtype=torch.float64)
    logprobs = teacher.log_softmax(-1)[:, :4]
    ids = torch.arange(4).expand(N, 4)
    tail = torch.full((1, N), float(torch.tensor(7 / V).log()))
    fields = {
        "teacher_topk_logprobs": logprobs.float()[None],
        "teacher_topk_ids": ids[None],
        "teacher_tail_logprobs": tail,
    }
    batch = with_logits(teacher, **fields)
    student = torch.zeros(N, COLUMNS, dtype=torch.float64)
    student[:, 9] = torch.tensor(2.0).log()
    found = {}
    for treatment in Tail:
        settings = TOPK.model_copy(update={"divergence": divergence, "tail": treatment})
        result = DistillHead(settings=settings)(output(student), batch, ONE)
        found[treatment] = float(result.loss_sum) / int(result.num_target_tokens)
    assert found[Tail.RENORMALIZE] == pytest.approx(0.0, abs=1e-7)
    p = torch.tensor([*[1 / V] * 4, 7 / V], dtype=torch.float64)
    q = torch.tensor([*[1 / (V + 1)] * 4, 8 / (V + 1)], dtype=torch.float64)
    m = (p + q) / 2
    expected = {
        Divergence.FORWARD_KL: (p * (p / q).log()).sum(),
        Divergence.REVERSE_KL: (q * (q / p).log()).sum(),
        Divergence.JENSEN_SHANNON: ((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2,
    }
    assert found[Tail.BUCKET] == pytest.approx(float(expected[divergence]), rel=1e-5)


@pytest.mark.parametrize("settings", [TOPK, WHOLE], ids=["topk", "whole"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_garbage_where_no_label_counts_changes_nothing(
    settings: DistillSettings, share: float
) -> None:
    clean = with_logits(random(N, V, seed=4))
    garbage = {"teacher": 99, "teacher_topk_ids": -7}
    fields = {}
    for name, values in clean.fields.items():
        fields[name] = values.clone()
        fields[name][0, ~torch.from_numpy(COUNTED)] = garbage.get(name, torch.nan)
    settings = settings.model_copy(update={"nll_weight": share})
    head = DistillHead(
        settings=settings,
        temperature=1.5,
        teachers=() if settings.kind is PayloadKind.TOPK else (TEACHER,),
    )
    expected, expected_gradient = loss_and_gradient(head, clean)
    got, gradient = loss_and_gradient(head, replace(clean, fields=fields))
    assert got == expected
    assert torch.equal(gradient, expected_gradient)
    assert not gradient[~torch.from_numpy(COUNTED)].any()
    assert not gradient[:, V:].any()


@pytest.mark.parametrize("settings", [TOPK, WHOLE], ids=["topk", "whole"])
def test_row_without_targets_gives_a_zero_that_can_be_differentiated(
    settings: DistillSettings,
) -> None:
    batch = replace(
        with_logits(random(N, V, seed=4)), loss_mask=torch.zeros(1, N), row=make_row([8], seed=1)
    )
    head = DistillHead(
        settings=settings, teachers=() if settings.kind is PayloadKind.TOPK else (TEACHER,)
    )
    loss, gradient = loss_and_gradient(head, batch)
    assert loss == 0.0
    assert not gradient.any()


def test_share_of_zero_ignores_an_infinite_other_part() -> None:
    batch = with_logits(random(N, V, seed=4))
    label = int(batch.labels[0, 0])
    logits = random(N, COLUMNS, seed=5)
    logits[0, label] = -torch.inf
    entries = batch.fields["teacher_topk_ids"].clone()
    entries[entries == label] = -1
    batch = replace(batch, fields={**batch.fields, "teacher_topk_ids": entries})
    result = DistillHead(settings=TOPK)(output(logits), batch, ONE)
    assert result.loss_sum.isfinite()
    assert result.metrics["nll"].value.isinf()


def test_metrics_are_means_like_the_loss() -> None:
    batch = replace(with_logits(random(N, V, seed=4)), row=replace(ROW, sources=("a", "b", "a")))
    head = DistillHead(
        settings=TOPK.model_copy(update={"nll_weight": 0.25}),
        averaging=Averaging(mean=LossMean.SEQUENCE_MEAN, sources=("a", "b")),
    )
    logits = random(N, COLUMNS, seed=5)
    result = head(output(logits), batch, ONE)
    assert set(result.metrics) == {"loss", "loss/a", "loss/b", "divergence", "nll"}
    assert {int(result.metrics[name].count) for name in ("loss", "divergence", "nll")} == {2}
    plain = TokenLossHead(averaging=Averaging(mean=LossMean.SEQUENCE_MEAN))
    nll = plain(output(logits), batch, ONE).metrics["loss"].value
    assert torch.equal(result.metrics["nll"].value, nll)
    mixed = 0.75 * result.metrics["divergence"].value + 0.25 * nll
    torch.testing.assert_close(result.metrics["loss"].value, mixed)


def test_step_knows_the_heads_divisor_and_chunk() -> None:
    from megapack.batch.normalizer import StepNormalizer

    counts = StepNormalizer(
        num_rows=1,
        num_documents=3,
        num_real_tokens=12,
        num_target_tokens=9,
        num_tokens=16,
        num_target_documents=2,
    )
    reading = LogitReading(form=LogitsForm.BY_CHUNKS, tokens_per_chunk=7)
    head = DistillHead(settings=TOPK, reading=reading)
    assert head.needs == Need.LM_HEAD
    assert (step_divisor(head, counts), tokens_per_chunk(head)) == (9, 7)
    by_document = replace(head, averaging=Averaging(mean=LossMean.SEQUENCE_MEAN))
    assert step_divisor(by_document, counts) == 2


HIDDEN = DistillSettings(kind=PayloadKind.HIDDEN)
WITH_WEIGHT = TeacherColumns(column_of=TEACHER.column_of, weight=torch.zeros(COLUMNS, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"settings": TOPK, "teachers": (TEACHER,)}, "expected none for kind topk"),
        ({"settings": WHOLE}, "one at least for others, found 0 for logits"),
        ({"settings": HIDDEN, "teachers": (TEACHER, WITH_WEIGHT)}, "found 1 of 2 for hidden"),
        ({"settings": WHOLE, "teachers": (WITH_WEIGHT,)}, "found 1 of 1 for logits"),
        ({"settings": TOPK, "temperature": 0.0}, "temperature = 0.0, expected a finite number"),
    ],
)
def test_head_that_does_not_fit_its_settings_is_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, ContractError), match=message):
        DistillHead(**arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"teacher": torch.full((1, N), -1)}, "found none at 9, in a row of the documents"),
        ({"teacher": torch.full((1, N), 1)}, "expected numbers below 1, found 1"),
        ({"teacher_logits": torch.zeros(1, N, 10)}, "of width 11 at least .* found .* width 10"),
        ({"teacher_logits": torch.zeros(1, N, V).half()}, "expected torch.float32 of width"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, torch.Tensor], message: str) -> None:
    batch = with_logits(random(N, V, seed=4), **fields)
    head = DistillHead(settings=WHOLE, teachers=(TEACHER,), dtype=PayloadDtype.FP32)
    with pytest.raises(ContractError, match=message):
        head(output(random(N, COLUMNS, seed=5)), batch, ONE)


def test_microbatch_without_payloads_is_refused() -> None:
    with pytest.raises(ContractError, match=r"expected 'teacher', found \[\]"):
        DistillHead(settings=TOPK)(output(random(N, COLUMNS, seed=5)), small_row(), ONE)


def test_columns_of_another_rank_or_padding_are_refused() -> None:
    batch = with_logits(random(N, V, seed=4))
    for column_of in (torch.arange(COLUMNS), TEACHER.column_of[:12]):
        head = DistillHead(settings=WHOLE, teachers=(TeacherColumns(column_of=column_of),))
        with pytest.raises(ContractError, match="expected column_of for 16 columns with -1 from"):
            head(output(random(N, COLUMNS, seed=5)), batch, ONE)
