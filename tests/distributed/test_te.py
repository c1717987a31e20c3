"""The te backend as far as a CPU goes: its layers from stand-ins, against the portable ones.

Stand-ins have Transformer Engine's parameter names; their attention leaves NaN at padding.
"""

from pathlib import Path
from typing import Any

import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import StepOutcome, make_row, worst_error

ROW = make_row([5, 17, 3, 23], seed=6)


def built(*, backend: str, model: str, sizes: ParallelSizes) -> tuple[Any, list[Any]]:
    """Context and chunks; `portable`, or stand-ins with a form of boundaries."""
    import torch

    from megapack.batch.boundaries import Boundaries
    from megapack.model import build, spec
    from tests.support.te_modules import StandInProvider
    from tests.support.tiny_training import JOB, MOE_JOB, start

    job = (JOB if model == "dense" else MOE_JOB).model_copy(update={"qk_layernorm": True})
    if backend != "portable":
        form = Boundaries(backend)
        build.layer_spec = lambda config, _: spec.te_block(config, form, StandInProvider())
    context, chunks, _ = start(sizes, dtype=torch.float64, job=job)
    return context, chunks


def names(*, backend: str, model: str) -> list[str]:
    from megapack.engine.sharded_state import model_sharded_state

    context, chunks = built(backend=backend, model=model, sizes=ParallelSizes())
    return sorted({part.key for part in model_sharded_state(chunks, context)["model"].values()})


def step(*, backend: str, model: str, sizes: ParallelSizes) -> tuple[StepOutcome, int]:
    """A training step, and positions at which the attention left NaN."""
    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.model.build import wrap_ddp
    from megapack.outputs.loss import TokenLossHead
    from tests.support.te_modules import LitteringAttention
    from tests.support.tiny_training import whole_parameters

    context, chunks = built(backend=backend, model=model, sizes=sizes)
    wrapped = wrap_ddp(chunks, context=context, distributed_optimizer=False)
    wrapped[0].zero_grad_buffer()
    layout = ROW.layout
    batch = step_batch(
        [ROW], context=context, row_length=layout.row_length, granularity=layout.granularity
    )
    result = run_schedule(wrapped, SchedulePlan(step=batch, head=TokenLossHead()), context)
    gradients = whole_parameters(chunks[0], context)
    outcome = StepOutcome(
        loss_sum=result.loss_sum,
        num_target_tokens=result.num_target_tokens,
        normalizer_tokens=batch.normalizer.num_target_tokens,
        metrics={},
        gradients={te_name(name): value for name, value in gradients.items()},
    )
    return outcome, LitteringAttention.littered


def te_name(name: str) -> str:
    """A portable parameter's name in the te backend."""
    from megapack.model.spec import NORM_NAMES

    for portable, fused in NORM_NAMES.items():
        name = name.replace(f".{portable}", f".{fused}")
    return name


def carried_over(*, folder: str, model: str) -> tuple[bool, bool]:
    """Whether weights go from portable to te and back through a checkpoint, as they were."""
    import torch
    from megatron.core import dist_checkpointing

    from megapack.engine.sharded_state import load_model, model_sharded_state

    def filled(backend: str, value: float) -> tuple[Any, Any]:
        context, chunks = built(backend=backend, model=model, sizes=ParallelSizes())
        generator = torch.Generator().manual_seed(3)
        for parameter in chunks[0].parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * value)
        return context, chunks

    same = []
    for writer, reader in (("portable", "exact"), ("exact", "portable")):
        context, written = filled(writer, 1.0)
        place = Path(folder, writer)
        place.mkdir()
        dist_checkpointing.save(model_sharded_state(written, context), str(place))
        context.destroy()
        context, read = filled(reader, 0.0)
        load_model(read, place, context)
        left = {te_name(name): value for name, value in written[0].named_parameters()}
        right = {te_name(name): value for name, value in read[0].named_parameters()}
        same.append(
            left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
        )
        context.destroy()
    return same[0], same[1]


@pytest.mark.parametrize("model", ["dense", "experts"])
def test_checkpoint_names_are_those_of_the_portable_backend(ranks: RankServer, model: str) -> None:
    te = ranks.run(names, backend="exact", model=model)
    assert te == ranks.run(names, backend="portable", model=model)
    assert any(name.endswith("self_attention.linear_qkv.layer_norm_weight") for name in te[0])


@pytest.mark.parametrize("model", ["dense", "experts"])
def test_checkpoints_go_from_one_backend_to_the_other(
    ranks: RankServer, tmp_path: Path, model: str
) -> None:
    assert ranks.run(carried_over, folder=str(tmp_path), model=model) == [(True, True)]


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("model", ["dense", "experts"])
def test_exact_and_slots_give_the_portable_numbers(ranks: RankServer, model: str, cp: int) -> None:
    results = {
        backend: ranks.run(
            step, world_size=cp, backend=backend, model=model, sizes=ParallelSizes(cp=cp)
        )[0]
        for backend in ("portable", "exact", "slots")
    }
    portable, _ = results["portable"]
    for backend in ("exact", "slots"):
        outcome, _ = results[backend]
        assert outcome.loss_sum == pytest.approx(portable.loss_sum, rel=1e-12)
        assert worst_error(outcome.gradients, portable.gradients) < 1e-12
    assert results["exact"][1] > 0
