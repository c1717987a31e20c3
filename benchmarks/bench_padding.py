"""Packed rows against batches padded to their longest document: the same documents and model.

One training step (forward, backward, reduction) over all documents, in CPU seconds of one thread.
Both ways train the same targets, which is checked: loss sums agree within float32's rounding.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.one_process import one_process
from benchmarks.record import at_least, emit
from megapack.jobs.model import ModelJob
from megapack.layout.granularity import Granularity

if TYPE_CHECKING:
    from megapack.batch.documents import PositionedDocument
    from megapack.batch.iterate import StepBatch
    from megapack.parallel.context import ParallelContext

DOCUMENTS = 48
ROW_LENGTH = 1024
BATCH = 8
VOCABULARY = 4096
AGREE = 1e-5
MODEL = ModelJob(
    num_layers=4,
    hidden_size=256,
    ffn_hidden_size=704,
    num_attention_heads=4,
    num_query_groups=4,
)


def main() -> None:
    """Print the ratio of times over the ratio of slots."""
    with one_process() as context:
        documents = _documents()
        packed, padded = _packed(documents, context), _padded(documents, context)
        seconds, losses = _train([packed, padded], context)
    slots = [sum(row.layout.row_length for row in step.rows) for step in (packed, padded)]
    off = abs(losses[0] - losses[1]) / abs(losses[0])
    if off > AGREE:
        raise RuntimeError(f"expected the same loss both ways, found {losses}.")
    emit(
        "packed against padded",
        documents=DOCUMENTS,
        real_tokens=packed.normalizer.num_real_tokens,
        packed_slots=slots[0],
        padded_slots=slots[1],
        packed_cpu_s=round(seconds[0], 2),
        padded_cpu_s=round(seconds[1], 2),
        loss_difference=off,
    )
    ratio = slots[1] / slots[0]
    at_least(
        "P10",
        f"packed training, of the ratio of slots ({ratio:.2f})",
        seconds[1] / seconds[0] / ratio,
        0.9,
        peer=f"{BATCH} documents padded to the longest",
    )


def _documents() -> "list[PositionedDocument]":
    """Log-normal lengths, in turns of prompt and answer; the last position has no label."""
    from megapack.batch.documents import PositionedDocument

    draw = np.random.Generator(np.random.Philox(0))
    lengths = np.clip(draw.lognormal(np.log(150), 1.0, DOCUMENTS), 8, ROW_LENGTH).astype(int)
    made = []
    for number, length in enumerate(lengths.tolist()):
        tokens = draw.integers(0, VOCABULARY, length).astype(np.int32)
        labels = np.append(tokens[1:], -100).astype(np.int32)
        labels[: length // 3] = -100
        made.append(
            PositionedDocument(
                document_id=f"{number:032x}", source="", tokens=tokens, labels=labels
            )
        )
    return made


def _packed(documents: "Sequence[PositionedDocument]", context: "ParallelContext") -> "StepBatch":
    from megapack.batch.iterate import step_of_groups
    from megapack.batch.recipe import BatchKind, BatchRecipe
    from megapack.packing.planner import plan_rows

    plan = plan_rows([document.num_positions for document in documents], ROW_LENGTH)
    groups = [[documents[i] for i in plan.row(row)] for row in range(plan.num_rows)]
    recipe = BatchRecipe(
        kind=BatchKind.PACKED, granularity=Granularity(segment=1, row=1), row_length=ROW_LENGTH
    )
    return step_of_groups(groups, recipe, context)


def _padded(documents: "Sequence[PositionedDocument]", context: "ParallelContext") -> "StepBatch":
    from megapack.batch.iterate import step_of_groups
    from megapack.batch.recipe import BatchKind, BatchRecipe

    groups = [documents[at : at + BATCH] for at in range(0, len(documents), BATCH)]
    recipe = BatchRecipe(kind=BatchKind.DENSE, granularity=Granularity(segment=1, row=1))
    return step_of_groups(groups, recipe, context)


def _train(
    steps: "Sequence[StepBatch]", context: "ParallelContext"
) -> tuple[list[float], list[float]]:
    """Least CPU seconds of two runs of each step, and loss sums."""
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.model.build import build_model, wrap_ddp
    from megapack.outputs.loss import TokenLossHead

    chunks = wrap_ddp(
        build_model(MODEL, context=context, vocab_size=VOCABULARY),
        context=context,
        distributed_optimizer=False,
    )
    seconds, losses = [], []
    for step in steps:
        best = float("inf")
        for _ in range(2):
            for chunk in chunks:
                chunk.zero_grad_buffer()
            begin = time.process_time()
            result = run_schedule(chunks, SchedulePlan(step=step, head=TokenLossHead()), context)
            best = min(best, time.process_time() - begin)
        seconds.append(best)
        losses.append(result.loss_sum)
    return seconds, losses


if __name__ == "__main__":
    main()
