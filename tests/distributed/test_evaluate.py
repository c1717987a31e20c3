"""The loss of an evaluation is one sum over one count, and none without targets."""

import math

import pytest

from megapack.records.packed_row import PackedRow
from tests.support.tiny_dataset import make_dataset, make_rows

pytestmark = pytest.mark.distributed


def evaluate_on_rank(*, dp: int, refs: list, alone: int, rows_per_microbatch: int = 1):
    """(loss, targets, rows) of each dataset; (loss sum, targets) of rows of the first alone."""
    import torch

    from megapack.batch.iterate import step_batch
    from megapack.engine.evaluate import EvaluationPlan, evaluate
    from megapack.engine.rows import RowSource
    from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
    from megapack.layout.granularity import ParallelSizes
    from megapack.outputs.loss import TokenLossHead
    from megapack.store.manifest import Split
    from tests.support.tiny_training import start

    context, chunks, _ = start(ParallelSizes(dp=dp), dtype=torch.float64)
    sources = [RowSource.open(ref) for ref in refs]
    how = EvaluationPlan(head=TokenLossHead(), max_rows=99, rows_per_microbatch=rows_per_microbatch)
    results = [evaluate(chunks, source, context, how) for source in sources]
    # Plain values: to unpickle ours, the test process would have to import torch.
    found = [one and (one.loss, one.num_target_tokens, one.num_rows) for one in results]
    rows = []
    for number in range(alone):
        batch = step_batch(
            sources[0].read(Split.VALIDATION, [number]),
            context=context,
            row_length=sources[0].row_length,
            granularity=sources[0].granularity,
        )
        plan = SchedulePlan(step=batch, head=TokenLossHead(), phase=Phase.FORWARD_ONLY)
        result = run_schedule(chunks, plan, context)
        rows.append((result.loss_sum, result.num_target_tokens))
    for source in sources:
        source.close()
    return found, rows


def without_targets(row):
    return PackedRow(
        tokens=row.tokens, target_runs=[], layout=row.layout, document_ids=row.document_ids
    )


def test_evaluation_is_one_sum_over_one_count(ranks, tmp_path):
    train, validation = make_rows(2, seed=1), make_rows(3, seed=2)
    # A row with few targets beside rows with many: a mean of means would be another number.
    uneven = [*validation, without_targets(validation[0])]
    refs = [
        make_dataset(tmp_path / "uneven", train, uneven),
        make_dataset(tmp_path / "nothing", train, [without_targets(row) for row in validation]),
        make_dataset(tmp_path / "empty", train),
    ]
    (one, nothing, empty), rows = ranks.run(evaluate_on_rank, dp=1, refs=refs, alone=4)[0]
    total, count = math.fsum(loss for loss, _ in rows), sum(number for _, number in rows)
    assert rows[3] == (0.0, 0)
    loss = one[0]
    assert one[1:] == (count, 4)
    assert count == sum(row.num_target_tokens for row in uneven)
    assert loss == pytest.approx(total / count, rel=1e-12)
    means = [loss / number for loss, number in rows if number]
    assert abs(loss - sum(means) / len(means)) > 1e-3
    assert nothing == (None, 0, 3)
    assert empty is None
    joined = {"refs": refs, "alone": 0, "rows_per_microbatch": 2}
    for found, _ in ranks.run(evaluate_on_rank, world_size=2, dp=2, **joined):
        assert found[0][0] == pytest.approx(loss, rel=1e-12)
        assert found[0][1] == count
        assert found[1:] == [nothing, empty]
