"""megatron-core's own token loss as an option: equal within float32, refused where it is not.

One world of tp 2 x cp 2 builds each model in turn: its labels and masks are cp-local.
"""

from typing import Any

import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row, worst_error

ROWS = [make_row([5, 17, 3, 23], seed=0), make_row([1, 2, 15], seed=1)]
UNPADDED = 128


def both(*, sizes: ParallelSizes) -> Any:
    """Loss and gradients by (head, dtype), and the message for a padded vocabulary."""
    import torch

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.errors import ConfigError
    from megapack.jobs.outputs import LossMean, OutputSettings, TokenLossBy
    from megapack.model.build import build_model, wrap_ddp
    from megapack.outputs.loss import Averaging, training_head
    from megapack.parallel.context import ParallelContext
    from tests.support.rows import VOCAB
    from tests.support.tiny_training import JOB, whole_parameters

    context = ParallelContext.initialize(sizes, seed=7)
    step = step_batch(
        ROWS,
        context=context,
        row_length=ROWS[0].layout.row_length,
        granularity=ROWS[0].layout.granularity,
    )
    averaging = Averaging(mean=LossMean.SEQUENCE_MEAN)
    by_model = training_head(averaging, OutputSettings(token_loss=TokenLossBy.MODEL))
    own = training_head(averaging, OutputSettings())
    found: dict[Any, Any] = {}
    for name, head, dtype, vocab_size in (
        ("truth", own, torch.float64, UNPADDED),
        ("own", own, torch.float32, UNPADDED),
        ("model", by_model, torch.float32, UNPADDED),
        ("padded", by_model, torch.float32, VOCAB),
    ):
        chunks = build_model(
            JOB, context=context, vocab_size=vocab_size, seed=11, params_dtype=dtype
        )
        wrapped = wrap_ddp(chunks, context=context, distributed_optimizer=False)
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        plan = SchedulePlan(step=step, head=head)
        if name == "padded":
            with pytest.raises(ConfigError) as refusal:
                run_schedule(wrapped, plan, context)
            found[name] = str(refusal.value)
            continue
        result = run_schedule(wrapped, plan, context)
        found[name] = (result.mean_loss, whole_parameters(chunks[0], context))
    context.destroy()
    return found


def test_token_loss_of_the_model_is_as_exact_as_float32_and_refuses_padding(
    ranks: RankServer,
) -> None:
    sizes = ParallelSizes(tp=2, cp=2, sequence_parallel=True)
    found = ranks.run(both, world_size=4, sizes=sizes)[0]
    loss, truth = found["truth"]
    assert found["model"][0] == pytest.approx(loss, rel=1e-6)
    own = worst_error(found["own"][1], truth)
    assert worst_error(found["model"][1], truth) <= 4 * own
    assert "expected a vocabulary without padding, found 128 columns for 101" in found["padded"]
