"""Distillation losses at several layouts, against the loss token by token over whole logits.

One world a layout runs all cases through the tiny model, down to the gradients of its parameters.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megapack.jobs.distill import DistillSettings, Divergence, Tail
from megapack.jobs.outputs import LossMean
from megapack.layout.granularity import ParallelSizes
from megapack.records.payload import PayloadKind
from tests.support.ranks import RankServer
from tests.support.rows import make_row, worst_error

ROWS = [
    make_row([5, 17, 3, 23], seed=0, supervised=0.4),
    make_row([1, 30], seed=1, supervised=0.4),
]
LAYOUTS = {
    "one": ParallelSizes(),
    "tp2-sp-cp2": ParallelSizes(tp=2, cp=2, sequence_parallel=True),
    "tp2-pp2": ParallelSizes(tp=2, pp=2),
}
SEVERAL = [name for name in LAYOUTS if name != "one"]


def case(kind: PayloadKind, divergence: Divergence, **changes: Any) -> dict[str, Any]:
    """Settings of a loss, its temperature, and ways to compute it."""
    ways = {
        name: changes.pop(name) for name in ("temperature", "mean", "chunks") if name in changes
    }
    settings = DistillSettings(kind=kind, divergence=divergence, **changes)
    return {"temperature": 1.0, "mean": LossMean.TOKEN_MEAN, "chunks": None, **ways} | {
        "settings": settings
    }


TOPK, HIDDEN, LOGITS = PayloadKind.TOPK, PayloadKind.HIDDEN, PayloadKind.LOGITS
FORWARD, REVERSE, MIDDLE = Divergence.FORWARD_KL, Divergence.REVERSE_KL, Divergence.JENSEN_SHANNON
CASES = {
    "topk-forward": case(TOPK, FORWARD, temperature=2.0, nll_weight=0.3, chunks=7),
    "topk-reverse": case(TOPK, REVERSE, tail=Tail.RENORMALIZE),
    "topk-middle": case(TOPK, MIDDLE, mean=LossMean.SEQUENCE_MEAN, chunks=7),
    "hidden-forward": case(HIDDEN, FORWARD, temperature=2.0, nll_weight=0.3, chunks=7),
    "hidden-reverse": case(HIDDEN, REVERSE, mean=LossMean.SEQUENCE_MEAN),
    "hidden-middle": case(HIDDEN, MIDDLE, temperature=0.7, chunks=64),
    "logits-forward": case(LOGITS, FORWARD, temperature=2.0, nll_weight=0.3),
    "labels-alone": case(HIDDEN, FORWARD, temperature=2.0, nll_weight=1.0),
}
BY_THE_BOOK = [name for name in CASES if name != "labels-alone"]
NARROW = ("topk-forward", "hidden-forward")


def everything(*, sizes: ParallelSizes, rows: list[Any], cases: dict[str, Any]) -> dict[str, Any]:
    """Run on ranks: (numbers, whole gradients) of every case; by the book too in one process."""
    import torch

    from megapack.batch.fields import AttachFields
    from megapack.batch.iterate import dense_step
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.jobs.outputs import LogitsForm
    from megapack.model.build import build_model, wrap_ddp
    from megapack.outputs.distill import DistillHead
    from megapack.outputs.loss import Averaging, TokenLossHead
    from megapack.outputs.source import AS_THEY_ARE, LogitReading
    from megapack.parallel.context import ParallelContext
    from megapack.records.payload import PayloadDtype
    from tests.support.rows import GRANULARITY, VOCAB
    from tests.support.teachers import AsBf16, BookHead, Says, columns_of
    from tests.support.tiny_training import JOB, packed_step, whole_parameters

    context = ParallelContext.initialize(sizes, seed=7)
    says = AttachFields(source=Says())
    step = replace(packed_step(rows, context), stages=(says,))
    found: dict[str, Any] = {}

    def model(dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
        chunks = build_model(JOB, context=context, vocab_size=VOCAB, seed=11, params_dtype=dtype)
        return chunks, wrap_ddp(chunks, context=context, distributed_optimizer=False)

    def run(name: str, head: Any, of: tuple[list[Any], list[Any]], made: Any = step) -> None:
        chunks, wrapped = of
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        result = run_schedule(wrapped, SchedulePlan(step=made, head=head), context)
        numbers = SimpleNamespace(
            loss_sum=result.loss_sum, divisor=result.divisor, metrics=dict(result.metrics)
        )
        found[name] = (numbers, whole_parameters(chunks[0], context))

    columns = -(-VOCAB // (JOB.vocab_multiple * sizes.tp)) * JOB.vocab_multiple
    teachers = tuple(columns_of(number, context, columns) for number in (0, 1))
    bare = tuple(replace(one, weight=None) for one in teachers)

    def head_of(how: dict[str, Any]) -> DistillHead:
        settings = how["settings"]
        reading = AS_THEY_ARE
        if how["chunks"] is not None:
            reading = LogitReading(form=LogitsForm.BY_CHUNKS, tokens_per_chunk=how["chunks"])
        return DistillHead(
            settings=settings,
            temperature=how["temperature"],
            teachers={"topk": (), "hidden": teachers, "logits": bare}[settings.kind.value],
            averaging=Averaging(mean=how["mean"]),
            reading=reading,
        )

    exact = model(torch.float64)
    for name, how in cases.items():
        run(name, head_of(how), exact)
        if sizes.world_size == 1 and name != "labels-alone":
            book = BookHead(
                settings=how["settings"], temperature=how["temperature"], mean=how["mean"]
            )
            run(f"{name}/book", book, exact)
    hidden = head_of(cases["hidden-forward"])
    as_bf16 = replace(step, stages=(says, AsBf16()))
    run("bf16", replace(hidden, dtype=PayloadDtype.BF16), exact, as_bf16)
    run("nll", TokenLossHead(), exact)
    if sizes.world_size == 1:
        joined = replace(packed_step(rows, context, rows_per_microbatch=2), stages=(says,))
        dense = dense_step(rows, context=context, token_budget=96, granularity=GRANULARITY)
        run("joined", hidden, exact, joined)
        run("dense", hidden, exact, replace(dense, stages=(says,)))
    narrow = model(torch.float32)
    for name in ("topk-forward", "hidden-forward"):
        run(f"{name}/fp32", head_of(cases[name]), narrow)
    context.destroy()
    return found


Look = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def look(ranks: RankServer) -> Look:
    """What all ranks of a layout found, run once each."""
    known: dict[str, list[dict[str, Any]]] = {}

    def at(layout: str) -> list[dict[str, Any]]:
        if layout not in known:
            sizes = LAYOUTS[layout]
            known[layout] = ranks.run(
                everything, world_size=sizes.world_size, sizes=sizes, rows=ROWS, cases=CASES
            )
        return known[layout]

    return at


@pytest.mark.parametrize("name", BY_THE_BOOK)
def test_loss_and_gradient_in_one_process_equal_the_book(look: Look, name: str) -> None:
    (got, gradients), (expected, by_the_book) = (
        look("one")[0][name],
        look("one")[0][f"{name}/book"],
    )
    assert got.divisor == expected.divisor
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(gradients, by_the_book) < 1e-12
    share, temperature = CASES[name]["settings"].nll_weight, CASES[name]["temperature"]
    parts = got.metrics
    mixed = (1 - share) * temperature**2 * parts["divergence"] + share * parts["nll"]
    assert parts["loss"] == pytest.approx(mixed, rel=1e-12)


@pytest.mark.parametrize("layout", SEVERAL)
@pytest.mark.parametrize("name", [*CASES, "bf16"])
def test_loss_and_gradient_at_any_layout_equal_one_process(
    look: Look, layout: str, name: str
) -> None:
    expected, expected_gradients = look("one")[0][name]
    for seen in look(layout):
        got, _ = seen[name]
        assert got.divisor == expected.divisor
        assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
        assert got.metrics == pytest.approx(expected.metrics, rel=1e-12)
    assert worst_error(look(layout)[0][name][1], expected_gradients) < 1e-12


@pytest.mark.parametrize("name", ["bf16", "joined", "dense"])
def test_dtype_and_packing_of_the_same_values_change_nothing(look: Look, name: str) -> None:
    got, gradients = look("one")[0][name]
    expected, expected_gradients = look("one")[0]["hidden-forward"]
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(gradients, expected_gradients) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hidden_states_and_stored_logits_give_one_loss(look: Look, layout: str) -> None:
    got, gradients = look(layout)[0]["hidden-forward"]
    expected, expected_gradients = look(layout)[0]["logits-forward"]
    # The stored logits are float32.
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-6)
    assert got.loss_sum != expected.loss_sum
    assert worst_error(gradients, expected_gradients) < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_alone_are_the_plain_training_loss(look: Look, layout: str) -> None:
    got, gradients = look(layout)[0]["labels-alone"]
    expected, expected_gradients = look(layout)[0]["nll"]
    assert got.loss_sum == expected.loss_sum
    assert got.metrics["nll"] == expected.metrics["loss"]
    assert got.metrics["divergence"] > 0.1
    assert all(np.array_equal(gradients[name], expected_gradients[name]) for name in gradients)


@pytest.mark.parametrize("layout", SEVERAL)
@pytest.mark.parametrize("name", NARROW)
def test_float32_is_as_close_to_float64_as_one_process_is(
    look: Look, layout: str, name: str
) -> None:
    truth, true_gradients = look("one")[0][name]
    one, one_gradients = look("one")[0][f"{name}/fp32"]
    got, gradients = look(layout)[0][f"{name}/fp32"]
    own = abs(one.loss_sum - truth.loss_sum) / truth.loss_sum
    # The error of one number may be 0 by luck: then that of its last bit.
    assert abs(got.loss_sum - truth.loss_sum) / truth.loss_sum <= 4 * max(own, 2.0**-24)
    assert worst_error(gradients, true_gradients) <= 4 * worst_error(one_gradients, true_gradients)
