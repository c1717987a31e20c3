"""A Hugging Face folder as the starting model: the numbers of transformers at every layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from tests.support.ranks import RankServer
from tests.support.rows import make_row

NAMES = ("llama", "qwen2", "qwen3")
ROWS = [make_row([23, 9, 17], seed=3), make_row([31, 5, 7, 11], seed=4)]
LAYOUTS = {
    "one": ParallelSizes(),
    "tp2_sp": ParallelSizes(tp=2, sequence_parallel=True),
    "pp2": ParallelSizes(pp=2),
}
Output = tuple[list[np.ndarray], float]
"""Logits of each document, sum of the losses."""
Outputs = dict[str, Output]
"""Per model."""


def reference(*, folder: Path) -> tuple[Outputs, Outputs]:
    """transformers in float64 and in float32."""
    import torch

    from tests.support.hf_models import document_logits, loss_sum, save_models

    save_models(folder)
    outputs: list[Outputs] = [{}, {}]
    for dtype, of_dtype in zip((torch.float64, torch.float32), outputs, strict=True):
        for name in NAMES:
            logits = document_logits(folder / name, ROWS, dtype)
            of_dtype[name] = (logits, loss_sum(logits, ROWS))
    return outputs[0], outputs[1]


def packed(*, folder: Path, sizes: ParallelSizes) -> tuple[Outputs, Outputs]:
    """Ours, packed, in float64 and float32; empty on ranks that are not on the last stage."""
    import torch

    from megapack.parallel.context import ParallelContext

    context = ParallelContext.initialize(sizes, seed=7)
    outputs: list[Outputs] = [{}, {}]
    for dtype, of_dtype in zip((torch.float64, torch.float32), outputs, strict=True):
        for name in NAMES:
            found = packed_model(folder / name, dtype, context)
            if context.is_last_stage:
                of_dtype[name] = found
    context.destroy()
    return outputs[0], outputs[1]


def packed_model(folder: Path, dtype: Any, context: Any) -> tuple[list[np.ndarray], float]:
    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
    from megapack.model.build import build_model
    from megapack.model.hf_weights import read_weights
    from megapack.steps.hugging_face.folder import open_folder
    from tests.support.hf_heads import LogitsHead

    found = open_folder(str(folder))
    chunks = build_model(
        found.model,
        context=context,
        vocab_size=found.model.vocab_size,
        seed=None,
        params_dtype=dtype,
    )
    for parameter in chunks[0].parameters():
        parameter.data.fill_(float("nan"))
    read_weights(chunks[0], job=found.model, folder=found, context=context)
    layout = ROWS[0].layout
    step = step_batch(
        ROWS, context=context, row_length=layout.row_length, granularity=layout.granularity
    )
    head = LogitsHead()
    plan = SchedulePlan(step=step, head=head, phase=Phase.FORWARD_ONLY)
    result = run_schedule(chunks, plan, context)
    return of_documents(head.logits, ROWS) if head.logits else [], result.loss_sum


def of_documents(rows_logits: list[np.ndarray], rows: list[PackedRow]) -> list[np.ndarray]:
    return [
        logits[start : start + length]
        for logits, row in zip(rows_logits, rows, strict=True)
        for start, length in zip(
            row.layout.slot_starts.tolist(), row.layout.lengths.tolist(), strict=True
        )
    ]


def error(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest over documents of max|difference| / max|expected|."""
    return max(
        float(np.abs(one - two).max() / np.abs(two).max())
        for one, two in zip(found, expected, strict=True)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def expected(ranks: RankServer, folder: Path) -> tuple[Outputs, Outputs]:
    return ranks.run(reference, folder=folder, timeout_s=200)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_and_loss_are_those_of_transformers(
    ranks: RankServer, folder: Path, expected: tuple[Outputs, Outputs], layout: str
) -> None:
    sizes = LAYOUTS[layout]
    double, single = ranks.run(packed, world_size=sizes.world_size, folder=folder, sizes=sizes)[-1]
    for name in NAMES:
        check(double[name], exact=expected[0][name], limit=1e-12)
        # The sum of the losses may come out right by chance: it is held to the logits' error.
        limit = 4 * error(expected[1][name][0], expected[0][name][0])
        check(single[name], exact=expected[0][name], limit=limit)


def check(found: Output, *, exact: Output, limit: float) -> None:
    assert error(found[0], exact[0]) <= limit
    assert abs(found[1] - exact[1]) <= limit * abs(exact[1])
