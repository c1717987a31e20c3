"""Activation offload is suspended in phases without a backward pass: with megatron-core's manager.

Copying needs Transformer Engine; what is planned and when does not.
"""

from typing import Any

import pytest

from megapack.jobs.model import OffloadModule
from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankFailure, RankServer
from tests.support.rows import make_row


def step(*, offload: bool, phase: str) -> tuple[float, int, bool]:
    """Loss sum of a step, forwards that the manager counted, and whether offload is on after."""
    from megatron.core.pipeline_parallel.fine_grained_activation_offload import (
        PipelineOffloadManager,
    )

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
    from megapack.outputs.loss import TokenLossHead
    from tests.support.tiny_training import JOB, start

    modules = (OffloadModule.CORE_ATTENTION, OffloadModule.QKV) if offload else ()
    context, chunks, wrapped = start(
        ParallelSizes(), job=JOB.model_copy(update={"offload": modules})
    )
    row = make_row([5, 17, 3, 23], seed=6)
    layout = row.layout
    batch = step_batch(
        [row, row], context=context, row_length=layout.row_length, granularity=layout.granularity
    )
    plan = SchedulePlan(step=batch, head=TokenLossHead(), phase=Phase(phase))
    result = run_schedule(wrapped if phase == "train" else chunks, plan, context)
    counted = len(PipelineOffloadManager.get_instance()._cached_chunks_forward) if offload else 0
    return result.loss_sum, counted, chunks[0].config.fine_grained_activation_offloading


def between_training_steps() -> dict[str, Any]:
    """What the manager of a run past its warm-up gives inside and after the block."""
    from types import SimpleNamespace

    from megatron.core.pipeline_parallel.fine_grained_activation_offload import (
        FineGrainedActivationOffloadingInterface as Offload,
    )
    from megatron.core.pipeline_parallel.fine_grained_activation_offload import (
        PipelineOffloadManager,
    )

    from megapack.model.offload import suspended_offload

    Offload.init_chunk_handler(0, None, None, 1, 0, 1.0)
    manager = PipelineOffloadManager.get_instance()
    manager.reset()
    chunk = SimpleNamespace(config=SimpleNamespace(fine_grained_activation_offloading=True))
    planned = manager._cached_chunks_forward[0]
    seen: dict[str, Any] = {"warm_up_over": not manager._is_warmup}
    try:
        with suspended_offload([chunk]):
            seen["forward_chunk"] = manager.pop_forward_chunk("core_attn")
            seen["inside"] = (manager.do_offload, planned.do_offload)
            seen["taken"] = manager._cached_chunks_index_forward
            raise ValueError("an evaluation that fails")
    except ValueError:
        seen["after"] = (manager.do_offload, planned.do_offload)
    seen["config"] = chunk.config.fine_grained_activation_offloading
    manager.pop_forward_chunk("core_attn")
    seen["taken_after"] = manager._cached_chunks_index_forward
    return seen


def test_training_with_offload_needs_transformer_engine(ranks: RankServer) -> None:
    with pytest.raises(RankFailure, match="TE CPU offload is not available"):
        ranks.run(step, offload=True, phase="train")


def test_a_forward_only_phase_offloads_nothing_and_is_not_counted(ranks: RankServer) -> None:
    plain, _, _ = ranks.run(step, offload=False, phase="forward_only")[0]
    assert ranks.run(step, offload=True, phase="forward_only") == [(plain, 0, True)]


def test_a_phase_between_training_steps_takes_nothing_from_the_plan(ranks: RankServer) -> None:
    assert ranks.run(between_training_steps)[0] == {
        "warm_up_over": True,
        "forward_chunk": None,
        "inside": (False, False),
        "taken": 0,
        "after": (True, True),
        "config": True,
        "taken_after": 1,
    }
