"""One step or one look at a model in a process of its own, on the CPU or on a CUDA device.

`python -m tests.support.device_run ASK OUT`: ASK and OUT are pickles. The process sees a device
only when CUDA_VISIBLE_DEVICES lets it. Imports nothing heavy before `answer`.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megapack.records.packed_row import PackedRow

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What to run.

    Attributes:
        device: `cuda` or `cpu`.
        backend: value of BackendName.
        dtype: name of a torch dtype.
        rows: rows of the step, one microbatch each.
        job: changes to the tiny ModelJob of `tests.support.tiny_training`.
        vocab_size: real vocabulary.
        outputs: changes to OutputSettings.
        read: folder of a checkpoint to read before the step.
        write: folder to write the weights to before the step.
    """

    device: str
    rows: tuple[PackedRow, ...]
    backend: str = "portable"
    dtype: str = "float32"
    job: dict[str, Any] = field(default_factory=dict)
    vocab_size: int = 101
    outputs: dict[str, Any] = field(default_factory=dict)
    read: str | None = None
    write: str | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a step gave.

    Attributes:
        device: of the weights, as torch names it.
        communication: torch.distributed's backend.
        loss_sum: over the rows.
        gradients: float64, by global name; norms under the te backend's names.
        peak_bytes: device memory above what the model held before the step; 0 on the CPU.
        loaded: top-level packages of interest that the process had imported.
    """

    device: str
    communication: str
    loss_sum: float
    gradients: dict[str, np.ndarray]
    peak_bytes: int
    loaded: tuple[str, ...]


def ask(request: Ask) -> Answer:
    """Run a request in a child process and wait for its answer."""
    visible = {} if request.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "ask"), Path(folder, "answer")
        asked.write_bytes(pickle.dumps(request))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.support.device_run", asked, answered],
            cwd=ROOT,
            env={**os.environ, **visible},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{request.backend} on {request.device}:\n{done.stderr[-4000:]}")
        return pickle.loads(answered.read_bytes())


def answer(request: Ask) -> Answer:
    """Run the request in this process."""
    from megapack.jobs.model import BackendName
    from megapack.model.backend import engine_of, select_backend
    from megapack.parallel import runtime

    runtime.install_runtime(engine_of(select_backend(BackendName(request.backend))))
    with tempfile.TemporaryDirectory() as folder:
        runtime.start_process_group(rank=0, world_size=1, init_method=f"file://{folder}/world")
        try:
            return step(request)
        finally:
            runtime.stop_process_group()


def step(request: Ask) -> Answer:
    """Build, read, write, and take one training step."""
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    from megapack.batch.iterate import step_batch
    from megapack.engine.schedule import SchedulePlan, run_schedule
    from megapack.engine.sharded_state import load_model, model_sharded_state
    from megapack.jobs.model import BackendName, ModelJob
    from megapack.jobs.outputs import OutputSettings
    from megapack.layout.granularity import ParallelSizes
    from megapack.model.build import build_model, wrap_ddp
    from megapack.model.initialize import global_parameters
    from megapack.outputs.loss import Averaging, training_head
    from megapack.parallel.context import ParallelContext
    from tests.support.tiny_training import JOB

    context = ParallelContext.initialize(ParallelSizes(), seed=7)
    job = ModelJob.model_validate({**JOB.model_dump(), **request.job})
    chunks = build_model(
        job,
        context=context,
        vocab_size=request.vocab_size,
        backend=BackendName(request.backend),
        seed=11,
        params_dtype=getattr(torch, request.dtype),
    )
    if request.read:
        load_model(chunks, Path(request.read), context)
    if request.write:
        dist_checkpointing.save(model_sharded_state(chunks, context), request.write)
    wrapped = wrap_ddp(chunks, context=context, distributed_optimizer=False)
    wrapped[0].zero_grad_buffer()
    layout = request.rows[0].layout
    batch = step_batch(
        list(request.rows),
        context=context,
        row_length=layout.row_length,
        granularity=layout.granularity,
    )
    head = training_head(Averaging(), OutputSettings.model_validate(request.outputs))
    held = 0
    if request.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    result = run_schedule(wrapped, SchedulePlan(step=batch, head=head), context)
    peak = torch.cuda.max_memory_allocated() - held if request.device == "cuda" else 0
    gradients = {
        te_name(name): parameter.main_grad.double().cpu().numpy()
        for name, parameter in global_parameters(chunks[0], tied=job.tie_embeddings)
    }
    return Answer(
        device=str(next(chunks[0].parameters()).device),
        communication=dist.get_backend(),
        loss_sum=result.loss_sum,
        gradients=gradients,
        peak_bytes=peak,
        loaded=tuple(name for name in ("transformer_engine",) if sys.modules.get(name)),
    )


def te_name(name: str) -> str:
    """A portable parameter's name in the te backend."""
    from megapack.model.spec import NORM_NAMES

    for portable, fused in NORM_NAMES.items():
        name = name.replace(f".{portable}", f".{fused}")
    return name


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(
        pickle.dumps(answer(pickle.loads(Path(sys.argv[1]).read_bytes())))
    )
