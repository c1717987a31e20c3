"""Every head at several layouts: one world a layout runs them all, tests look at the parts.

Law 3 in float64, and independent references: each document alone for sequence-mean, brute force
over whole logits for top-k, what layers return for captured hidden states.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row, one_document, worst_error

SOURCES = ("books", "chats", "code")
ROWS = [
    replace(make_row([5, 17, 3, 23], seed=0), sources=("chats", "books", "chats", "books")),
    replace(make_row([1, 2, 15], seed=1), sources=("books", "chats", "chats")),
    replace(make_row([40, 9], seed=2, supervised=0.2), sources=("chats", "books")),
]
LAYOUTS = {
    "one": (ParallelSizes(), False),
    "tp2-sp-cp2": (ParallelSizes(tp=2, cp=2, sequence_parallel=True), False),
    "dp2": (ParallelSizes(dp=2), False),
    "one-tied": (ParallelSizes(), True),
    "tp2-pp2-tied": (ParallelSizes(tp=2, pp=2), True),
}
SEVERAL = [name for name in LAYOUTS if not name.startswith("one")]
LOSSES = ("token", "token-fp32", "token-chunks", "sequence", "sequence-chunks")


Seen = SimpleNamespace
"""What one rank saw: `steps` and `records` by head, `frames` by microbatch."""


def everything(*, sizes: ParallelSizes, tied: bool, rows: list[Any]) -> Seen:
    """Run on ranks: training steps of all losses, then records, then captured layers."""
    import torch

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
    from megapack.jobs.outputs import LogitsForm, LossMean
    from megapack.model.build import build_model, wrap_ddp
    from megapack.model.capture import capture_hidden, collect_layers
    from megapack.outputs.logprobs import LogprobHead
    from megapack.outputs.loss import Averaging, TokenLossHead
    from megapack.outputs.source import LogitReading
    from megapack.outputs.topk import TopkHead
    from megapack.outputs.value import RETURNS, ValueHead, attach_value_head
    from megapack.parallel.context import ParallelContext
    from megapack.parallel.sampling import Sampling
    from tests.support.rows import VOCAB
    from tests.support.tiny_training import JOB, whole_parameters

    def with_returns(batch: Any) -> Any:
        """Adds what values should be: a number that follows from the token."""
        return replace(batch, fields={RETURNS: batch.tokens.double().sin()})

    context = ParallelContext.initialize(sizes, seed=7)
    job = JOB.model_copy(update={"tie_embeddings": tied})
    chunks = build_model(
        job, context=context, vocab_size=VOCAB, seed=11, params_dtype=torch.float64
    )
    projection = attach_value_head(chunks, context, seed=3)
    wrapped = wrap_ddp(chunks, context=context, distributed_optimizer=False)
    step = step_batch(
        rows[context.dp_rank :: sizes.dp],
        context=context,
        row_length=rows[0].layout.row_length,
        granularity=rows[0].layout.granularity,
    )
    by_chunks = LogitReading(form=LogitsForm.BY_CHUNKS, tokens_per_chunk=7)
    sequence = Averaging(mean=LossMean.SEQUENCE_MEAN, sources=SOURCES)
    heads: dict[str, Any] = {
        "token": TokenLossHead(averaging=Averaging(sources=SOURCES)),
        "token-fp32": TokenLossHead(reading=LogitReading(form=LogitsForm.FP32)),
        "token-chunks": TokenLossHead(reading=by_chunks),
        "sequence": TokenLossHead(averaging=sequence),
        "sequence-chunks": TokenLossHead(averaging=sequence, reading=by_chunks),
        "value": ValueHead(projection=projection),
    }
    seen = Seen(steps={}, records={}, frames=[])
    returns = replace(step, stages=(with_returns,))
    for name, head in heads.items():
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        plan = SchedulePlan(step=returns if name == "value" else step, head=head)
        result = run_schedule(wrapped, plan, context)
        gradients = whole_parameters(chunks[0], context, tied=tied)
        if name != "value":
            gradients.pop("value_head.weight")
        numbers = {
            key: getattr(result, key)
            for key in ("loss_sum", "divisor", "num_target_tokens", "mean_loss")
        }
        # Plain values: the test process does not import the engine.
        seen.steps[name] = (SimpleNamespace(**numbers, metrics=dict(result.metrics)), gradients)
    recorders: dict[str, Any] = {
        "top": TopkHead(k=5, temperature=0.8),
        "top-chunks": TopkHead(k=5, temperature=0.8, reading=by_chunks),
        "all": TopkHead(k=VOCAB),
        "filtered": LogprobHead(sampling=Sampling(top_k=40, top_p=0.9), reading=by_chunks),
        "value": heads["value"],
    }
    for name, head in recorders.items():
        records: list[Any] = []
        plan = SchedulePlan(step=step, head=head, phase=Phase.FORWARD_ONLY, sink=records.extend)
        run_schedule(chunks, plan, context)
        seen.records[name] = {record.document_id: in_numpy(record) for record in records}
        assert len(seen.records[name]) == len(records)
    # Recompute runs each layer once more in backward, which must not be captured again.
    chunks[0].config.recompute_granularity = "full"
    chunks[0].config.recompute_method = "uniform"
    chunks[0].config.recompute_num_layers = 1
    with capture_hidden(wrapped, layers=(1, 2)) as frames:
        run_schedule(wrapped, SchedulePlan(step=step, head=heads["token"]), context)
    assert len(frames) == step.num_microbatches
    run_schedule(wrapped, SchedulePlan(step=step, head=heads["token"]), context)
    assert len(frames) == step.num_microbatches, "nothing is captured after the block"
    for row, frame in zip(step.rows, frames, strict=True):
        layers = collect_layers(frame, row.layout, context)
        seen.frames.append(
            None if layers is None else {number: rows.numpy() for number, rows in layers.items()}
        )
    context.destroy()
    return seen


def in_numpy(record: Any) -> Any:
    """A record's tensors as arrays, which travel by value."""
    names = [name for name in ("values", "token_ids", "target_logprobs") if hasattr(record, name)]
    return SimpleNamespace(**{name: getattr(record, name).numpy() for name in names})


Look = Callable[[str], list[Seen]]


@pytest.fixture(scope="module")
def look(ranks: RankServer) -> Look:
    """What all ranks of a layout saw, run once each."""
    known: dict[str, list[Seen]] = {}

    def at(layout: str) -> list[Seen]:
        if layout not in known:
            sizes, tied = LAYOUTS[layout]
            known[layout] = ranks.run(
                everything, world_size=sizes.world_size, sizes=sizes, tied=tied, rows=ROWS
            )
        return known[layout]

    return at


@pytest.fixture(scope="module")
def alone(ranks: RankServer) -> list[Seen]:
    """Every document with a target, alone in one process."""
    single = [one_document(row, i) for row in ROWS for i in range(row.layout.num_segments)]
    return [
        ranks.run(
            everything, sizes=ParallelSizes(), tied=False, rows=[replace(row, sources=("chats",))]
        )[0]
        for row in single
        if row.num_target_tokens
    ]


def one_process(look: Look, layout: str) -> Seen:
    return look("one-tied" if layout.endswith("tied") else "one")[0]


def summed(seen: Seen, name: str) -> dict[str, np.ndarray]:
    """Gradients of the loss before the division by n.

    finalize_model_grads multiplies by 1 / n in float32, which is 3e-8 off: alike at all layouts
    for one n, but not for the different n of a document alone and of the step.
    """
    result, gradients = seen.steps[name]
    factor = float(np.float32(1) / np.float32(result.divisor))
    return {key: value / factor for key, value in gradients.items()}


@pytest.mark.parametrize("layout", SEVERAL)
@pytest.mark.parametrize("name", [*LOSSES, "value"])
def test_loss_at_any_layout_equals_one_process(look: Look, layout: str, name: str) -> None:
    expected, expected_gradients = one_process(look, layout).steps[name]
    for seen in look(layout):
        got, _ = seen.steps[name]
        assert (got.divisor, got.num_target_tokens) == (
            expected.divisor,
            expected.num_target_tokens,
        )
        assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
        assert got.metrics == pytest.approx(expected.metrics, rel=1e-12)
    gradients = look(layout)[0].steps[name][1]
    if name == "value":
        # The LM head takes no part.
        still = {key for key, value in expected_gradients.items() if not value.any()}
        assert still <= {"output_layer.weight"}
        assert not any(gradients.pop(key).any() for key in still)
        expected_gradients = {key: expected_gradients[key] for key in gradients}
    assert worst_error(gradients, expected_gradients) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "plain"),
    [("token-fp32", "token"), ("token-chunks", "token"), ("sequence-chunks", "sequence")],
)
def test_form_of_logits_changes_nothing(look: Look, layout: str, name: str, plain: str) -> None:
    (got, gradients), (expected, plain_gradients) = (
        look(layout)[0].steps[name],
        look(layout)[0].steps[plain],
    )
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-12)
    assert worst_error(gradients, plain_gradients) < 1e-12


def test_sequence_mean_is_the_mean_of_the_documents_own_means(
    look: Look, alone: list[Seen]
) -> None:
    result, gradients = look("one")[0].steps["sequence"]
    means = [seen.steps["token"][0].mean_loss for seen in alone]
    assert result.divisor == len(alone)
    assert result.mean_loss == pytest.approx(float(np.mean(means)), rel=1e-12)
    expected = {
        name: sum(summed(seen, "token")[name] / seen.steps["token"][0].divisor for seen in alone)
        for name in gradients
    }
    assert worst_error(summed(look("one")[0], "sequence"), expected) < 1e-12
    token = look("one")[0].steps["token"][0]
    assert abs(token.mean_loss - result.mean_loss) > 1e-3, "the two means differ on these rows"


def test_loss_by_source_is_the_mean_over_its_documents_tokens(
    look: Look, alone: list[Seen]
) -> None:
    metrics = look("dp2")[0].steps["token"][0].metrics
    names = [
        (source, i) for row in ROWS for source, i in zip(row.sources, row.document_ids, strict=True)
    ]
    targets = [one_document(row, i) for row in ROWS for i in range(row.layout.num_segments)]
    kept = [
        source
        for (source, _), document in zip(names, targets, strict=True)
        if document.num_target_tokens
    ]
    for source in ("books", "chats"):
        own = [seen.steps["token"][0] for seen, of in zip(alone, kept, strict=True) if of == source]
        mean = sum(one.loss_sum for one in own) / sum(one.num_target_tokens for one in own)
        assert metrics[f"loss/{source}"] == pytest.approx(mean, rel=1e-12)
    assert "loss/code" not in metrics, "a mean over nothing is absent"


@pytest.mark.parametrize("layout", SEVERAL)
@pytest.mark.parametrize("name", ["top", "top-chunks", "all", "filtered", "value"])
def test_records_at_any_layout_equal_one_process(look: Look, layout: str, name: str) -> None:
    expected = one_process(look, layout).records[name]
    got: dict[str, Any] = {}
    for seen in look(layout):
        assert not got.keys() & seen.records[name].keys(), "one rank writes a document"
        got |= seen.records[name]
    assert got.keys() == expected.keys()
    for key, record in expected.items():
        for attribute in ("values", "target_logprobs"):
            if hasattr(record, attribute):
                np.testing.assert_allclose(
                    getattr(got[key], attribute), getattr(record, attribute), rtol=1e-6, atol=1e-7
                )
        if hasattr(record, "token_ids"):
            assert np.array_equal(got[key].token_ids, record.token_ids)


def test_topk_is_the_head_of_all_logprobs_in_document_order(look: Look) -> None:
    seen = look("one")[0]
    for row in ROWS:
        for i, key in enumerate(row.document_ids):
            document, best, every = (
                one_document(row, i),
                *(seen.records[name][key] for name in ("top", "all")),
            )
            length = document.layout.row_length
            assert best.values.shape == best.token_ids.shape == (length, 5)
            assert np.array_equal(best.token_ids, every.token_ids[:, :5])
            np.testing.assert_allclose(np.exp(every.values).sum(axis=1), 1.0, rtol=1e-5)
            assert np.array_equal(~np.isnan(best.target_logprobs), document.loss_mask())
            for position in np.flatnonzero(document.loss_mask()):
                label = document.labels()[position]
                at = int(np.flatnonzero(every.token_ids[position] == label)[0])
                assert every.values[position, at] == every.target_logprobs[position]


@pytest.mark.parametrize("layout", ["tp2-sp-cp2", "tp2-pp2-tied"])
def test_captured_layers_are_whole_rows_on_the_writer(look: Look, layout: str) -> None:
    expected, got = one_process(look, layout).frames, [seen.frames for seen in look(layout)]
    writers = [frames for frames in got if frames[0] is not None]
    assert len(writers) == 1
    for found, frame in zip(writers[0], expected, strict=True):
        assert found is not None
        assert frame is not None
        assert list(found) == list(frame) == [1, 2]
        for number, rows in frame.items():
            assert rows.shape == (96, 32)
            np.testing.assert_allclose(found[number], rows, rtol=0, atol=1e-12)
