"""Each change to torch and megatron-core is needed: without it something fails. See PATCHES."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megapack.jobs.model import Recompute
from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankFailure, RankServer
from tests.support.rows import make_row

ROOT = Path(__file__).parents[2]
RANDOM = "megatron.core.tensor_parallel.random"
MAPPINGS = "megatron.core.tensor_parallel.mappings"
SHARED_EXPERTS = ParallelSizes(tp=2, dp=2, ep=2, etp=2, sequence_parallel=True)
ONE, TWO_STAGES = ParallelSizes(), ParallelSizes(pp=2)
# What raises without a patch: a training step of this model at this layout.
STEPS: dict[str, tuple[ParallelSizes, str]] = {
    "torch.cuda:current_device": (ONE, "dense"),
    "torch.cuda:synchronize": (TWO_STAGES, "dense"),
    "torch.cuda:current_stream": (ONE, "dense"),
    "torch.cuda:Stream": (ONE, "experts"),
    f"{RANDOM}:_get_cuda_rng_state": (ONE, "recompute"),
    f"{RANDOM}:_CUDA_RNG_STATE_TRACKER": (ONE, "dense"),
    f"{RANDOM}:_CUDA_RNG_STATE_TRACKER_INITIALIZED": (ONE, "dense"),
    "megatron.core.transformer.moe.token_dispatcher:maybe_move_tensor_to_cpu": (
        ParallelSizes(dp=2, ep=2),
        "experts",
    ),
    f"{MAPPINGS}:_gather_along_first_dim": (SHARED_EXPERTS, "experts"),
    "cuda literals": (ONE, "dense"),
}
SET_RANDOM = f"{RANDOM}:_set_cuda_rng_state"
MISSING_STEP = (
    "megatron.core.optimizer.distrib_optimizer:"
    "DistributedOptimizer._set_main_param_and_optimizer_states"
)
NORM = "megatron.core.optimizer.clip_grads:l2_norm_impl"
RESULTS_QUEUE = "megatron.core.dist_checkpointing.strategies.filesystem_async:" + (
    "get_write_results_queue"
)


def step(*, sizes: ParallelSizes, model: str) -> float:
    from tests.support.tiny_training import JOB, MOE_JOB, train_step

    jobs = {
        "dense": JOB,
        "experts": MOE_JOB,
        "recompute": JOB.model_copy(update={"recompute": Recompute.FULL}),
    }
    rows = [make_row([5, 17, 3, 23], seed=6)] * sizes.dp
    return train_step(sizes=sizes, rows=rows, job=jobs[model]).loss_sum


def step_without(*, key: str, sizes: ParallelSizes, model: str) -> float:
    from megapack.parallel import patches

    with patches.without(key):
        return step(sizes=sizes, model=model)


def postponed_calls(*, key: str | None) -> int:
    """Calls that torch keeps for a CUDA that never starts, after a recomputed step."""
    import torch

    before = len(torch.cuda._queued_calls)
    if key is None:
        step(sizes=ONE, model="recompute")
    else:
        step_without(key=key, sizes=ONE, model="recompute")
    return len(torch.cuda._queued_calls) - before


def kind_of_queue(*, key: str | None) -> str:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    from megapack.parallel import patches

    if key is None:
        return type(filesystem_async.get_write_results_queue()).__module__
    with patches.without(key):
        return type(filesystem_async.get_write_results_queue()).__module__


# What compiles, beside the settings that torch._dynamo loads.
COMPILER = ("torch._inductor.compile_fx", "torch._inductor.graph", "torch._inductor.scheduler")


def compiled() -> tuple[list[str], list[str]]:
    from megapack.parallel import patches

    asked = [name for name in patches.NOT_COMPILED if name.startswith("megatron.core.")]
    return asked, [name for name in sys.modules if name.startswith(COMPILER)]


def keys() -> set[str]:
    from megapack.parallel.patches import PATCHES

    return {patch.key for patch in PATCHES}


def test_every_patch_has_its_test(ranks: RankServer) -> None:
    # MISSING_STEP: test_upstream_faults.
    shown = {*STEPS, SET_RANDOM, MISSING_STEP, RESULTS_QUEUE, NORM}
    shown |= {"torch:compile", "transformer_engine"}
    assert ranks.run(keys) == [shown]


@pytest.mark.parametrize("key", STEPS)
def test_a_step_fails_without_the_patch(ranks: RankServer, key: str) -> None:
    sizes, model = STEPS[key]
    arguments: dict[str, Any] = {"sizes": sizes, "model": model, "world_size": sizes.world_size}
    signs = r"CUDA|NoneType|incompatible function arguments|invalid tensor size"
    with pytest.raises(RankFailure, match=signs):
        ranks.run(step_without, key=key, **arguments)


@pytest.mark.parametrize(("sizes", "model"), sorted(set(STEPS.values()), key=str))
def test_the_same_step_runs_with_all_patches(
    ranks: RankServer, sizes: ParallelSizes, model: str
) -> None:
    assert ranks.run(step, sizes=sizes, model=model, world_size=sizes.world_size)[0] > 0


def test_recompute_postpones_nothing_with_the_patch_and_something_without(
    ranks: RankServer,
) -> None:
    assert ranks.run(postponed_calls, key=None) == [0]
    assert ranks.run(postponed_calls, key=SET_RANDOM)[0] > 0


def test_writers_of_checkpoints_start_a_process_without_the_patch(ranks: RankServer) -> None:
    assert ranks.run(kind_of_queue, key=None) == ["queue"]
    assert ranks.run(kind_of_queue, key=RESULTS_QUEUE) == ["multiprocessing.managers"]


def norm_error(*, key: str | None) -> float:
    """Relative error of the norm of 4M numbers."""
    import torch
    from megatron.core.optimizer.clip_grads import get_grad_norm_fp32

    from megapack.parallel import patches
    from megapack.parallel.context import ParallelContext

    context = ParallelContext.initialize(ONE, seed=1)
    gradient = torch.randn(1 << 22)
    group = context.collection.mp
    if key is None:
        found = get_grad_norm_fp32([gradient], grad_stats_parallel_group=group)
    else:
        with patches.without(key):
            found = get_grad_norm_fp32([gradient], grad_stats_parallel_group=group)
    context.destroy()
    exact = float(gradient.double().square().sum().sqrt())
    return abs(float(found) / exact - 1)


def test_gradient_norm_is_exact_with_the_patch_and_not_without(ranks: RankServer) -> None:
    assert ranks.run(norm_error, key=None)[0] < 1e-6
    assert ranks.run(norm_error, key=NORM)[0] > 1e-5


def test_the_import_asks_for_compilation_and_no_compiler_is_loaded(ranks: RankServer) -> None:
    [(asked, loaded)] = ranks.run(compiled)
    assert asked
    assert loaded == []


BROKEN = "raise RuntimeError('curand shared object not found')\n"
CHILD = """
import os, sys, tempfile
from megapack.parallel import runtime

child = os.fork()
if child == 0:
    try:
        import megatron.core.transformer.transformer_layer
    except RuntimeError as error:
        os._exit(7 if "curand" in str(error) else 1)
    os._exit(0)
print("without", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with tempfile.TemporaryDirectory() as folder:
    runtime.prepare_import()
    runtime.start_process_group(rank=0, world_size=1, init_method=f"file://{folder}/world")
    runtime.install_cpu_runtime()
    from megapack.layout.granularity import ParallelSizes
    from tests.support.rows import make_row
    from tests.support.tiny_training import train_step
    print("loss", train_step(sizes=ParallelSizes(), rows=[make_row([5, 9, 3], seed=1)]).loss_sum)
    runtime.stop_process_group()
print("loaded", [one for one in sys.modules if "transformer_engine" in one.split(".")[0]
      and sys.modules[one] is not None])
"""


def test_a_broken_transformer_engine_is_never_imported_and_does_no_harm(tmp_path: Path) -> None:
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text(BROKEN)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    without, loss, loaded = done.stdout.splitlines()
    assert without == "without 7"
    assert float(loss.split()[1]) > 0
    assert loaded == "loaded []"
