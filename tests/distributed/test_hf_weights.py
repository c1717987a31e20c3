"""A Hugging Face folder as the starting model: the numbers of transformers at every layout."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from tests.support.hf_folder import HfOutcome
from tests.support.ranks import RankServer
from tests.support.rows import VOCAB, make_row

NAMES = ("llama", "qwen2", "qwen3")
ROWS = [make_row([23, 9, 17], seed=3), make_row([31, 5, 7, 11], seed=4)]
LAYOUTS = {
    "one": ParallelSizes(),
    "tp2_sp": ParallelSizes(tp=2, sequence_parallel=True),
    "tp4": ParallelSizes(tp=4),
    "pp2": ParallelSizes(pp=2),
}
Outcomes = dict[str, HfOutcome]


def reference(*, folder: Path) -> tuple[Outcomes, Outcomes]:
    """transformers in float64 and in float32, of folders that went through our model."""
    import torch

    from tests.support.hf_models import export_again, outcome, same_model, save_models

    save_models(folder / "saved")
    for name in NAMES:
        export_again(folder / "saved" / name, folder / name, file_bytes=20_000)
        assert same_model(folder / "saved" / name, folder / name)
    double, single = (
        {
            name: outcome(folder / name, ROWS, dtype, gradients=folder / f"{name}-{dtype}")
            for name in NAMES
        }
        for dtype in (torch.float64, torch.float32)
    )
    return double, single


def packed(*, folder: Path, sizes: ParallelSizes) -> list[dict[str, tuple[HfOutcome, float]]]:
    """Ours, packed, in float64 and float32, with the largest error of a gradient on this rank.

    Outcomes are empty on ranks that are not on the last stage.
    """
    import torch

    from megapack.parallel.context import ParallelContext

    context = ParallelContext.initialize(sizes, seed=7)
    found = [
        {name: packed_model(folder / name, dtype, context) for name in NAMES}
        for dtype in (torch.float64, torch.float32)
    ]
    context.destroy()
    return found


def packed_model(folder: Path, dtype: Any, context: Any) -> tuple[HfOutcome, float]:
    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.model.build import build_model, wrap_ddp
    from megapack.model.hf_weights import read_weights
    from megapack.steps.hugging_face.folder import open_folder
    from tests.support.hf_heads import LogitsHead

    found = open_folder(str(folder))
    bare = build_model(
        found.model,
        context=context,
        vocab_size=found.model.vocabulary(VOCAB),
        seed=None,
        params_dtype=dtype,
    )
    for parameter in bare[0].parameters():
        parameter.data.fill_(float("nan"))
    read_weights(bare[0], job=found.model, folder=found, context=context)
    chunks = wrap_ddp(bare, context=context, distributed_optimizer=False)
    chunks[0].zero_grad_buffer()
    layout = ROWS[0].layout
    step = step_batch(
        ROWS, context=context, row_length=layout.row_length, granularity=layout.granularity
    )
    head = LogitsHead()
    result = run_schedule(chunks, SchedulePlan(step=step, head=head), context)
    logits = of_documents(head.logits, ROWS) if head.logits else []
    # This rank's part of the expected gradients takes the place of its weights.
    expected = open_folder(f"{folder}-torch.float64")
    read_weights(bare[0], job=found.model, folder=expected, context=context)
    worst = max(
        ((one.main_grad - one).abs().max() / one.abs().max()).item() for one in bare[0].parameters()
    )
    return HfOutcome(logits=logits, loss_sum=result.loss_sum), worst


def of_documents(rows_logits: list[np.ndarray], rows: list[PackedRow]) -> list[np.ndarray]:
    return [
        logits[start : start + length]
        for logits, row in zip(rows_logits, rows, strict=True)
        for start, length in zip(
            row.layout.slot_starts.tolist(), row.layout.lengths.tolist(), strict=True
        )
    ]


def error(found: Iterable[np.ndarray], expected: Iterable[np.ndarray]) -> float:
    """Largest over arrays of max|difference| / max|expected|."""
    return max(
        float(np.abs(one - two).max() / np.abs(two).max())
        for one, two in zip(found, expected, strict=True)
    )


def gradient_error(folder: Path, name: str) -> float:
    """transformers' own error in float32."""
    double, single = (
        load_file(folder / f"{name}-torch.{dtype}" / "model.safetensors")
        for dtype in ("float64", "float32")
    )
    return error([single[tensor] for tensor in double], double.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def expected(ranks: RankServer, folder: Path) -> tuple[Outcomes, Outcomes]:
    return ranks.run(reference, folder=folder, timeout_s=200)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_loss_and_gradients_are_those_of_transformers(
    ranks: RankServer, folder: Path, expected: tuple[Outcomes, Outcomes], layout: str
) -> None:
    sizes = LAYOUTS[layout]
    everyones = ranks.run(packed, world_size=sizes.world_size, folder=folder, sizes=sizes)
    for name in NAMES:
        exact, theirs = (outcomes[name] for outcomes in expected)
        single_limit = 4 * error(theirs.logits, exact.logits)
        limits = [(1e-12, 1e-12), (single_limit, 4 * gradient_error(folder, name))]
        for precision, (limit, gradient_limit) in enumerate(limits):
            found = everyones[-1][precision][name][0]
            assert error(found.logits, exact.logits) <= limit
            # A sum may come out right by chance, so its own error is no limit.
            assert abs(found.loss_sum - exact.loss_sum) <= limit * exact.loss_sum
            assert max(rank[precision][name][1] for rank in everyones) <= gradient_limit
