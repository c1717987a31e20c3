"""What a training step of a 135M model spends outside the model, in CPU seconds of one thread.

The training engine itself runs: rows are read from a committed dataset, counted, made into tensors,
trained on, reduced and logged. Timers stand around what computes with the model: its forward, the
log-probs over the vocabulary, backward, the reduction of gradients and the optimizer. The rest of a
step is ours. The model has the shape of SmolLM2-135M; the first step warms up and is left out.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.one_process import one_process
from benchmarks.record import at_most, emit
from megapack.jobs.model import ModelJob
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.layout.runs import runs_of_mask
from megapack.records.packed_row import PackedRow
from megapack.records.refs import DatasetRef
from megapack.steps.launch.protocol import RunFiles
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Split
from megapack.store.schema import PackedInfo, SchemaId
from megapack.store.sinks import RowSink, row_counts
from megapack.store.versions import commit

VOCABULARY = 49_152
ROW_LENGTH = 1024
ROWS = 16
STEPS = 3
_MODEL = ("forward", "log-probs", "backward", "reduction", "optimizer")
SMOL = ModelJob(
    num_layers=30,
    hidden_size=576,
    ffn_hidden_size=1536,
    num_attention_heads=9,
    num_query_groups=3,
    tie_embeddings=True,
)


class _EndOfMeasurementError(Exception):
    """Ends the run before it evaluates and saves."""


def main() -> None:
    """Print the share of a step that is not the model's."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as name, one_process() as context, ExitStack() as stack:
        folder = Path(name)
        job = TrainJob(
            dataset=_dataset(folder / "rows"),
            settings=TrainSettings(model=SMOL, steps=100, global_batch_rows=1),
            output=str(folder / "checkpoints"),
        )
        RunFiles(scratch=folder / "scratch").metrics.parent.mkdir(parents=True)
        clock.watch(stack)
        from megapack.engine.train import run_training

        with suppress(_EndOfMeasurementError):
            run_training(job, context, folder / "scratch")
    steps = clock.steps[1:]
    total = sum(step["step"] for step in steps)
    model = sum(value for step in steps for name, value in step.items() if name != "step")
    parts = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
    outside = (total - model) / len(steps)
    if not all(parts.get(name) for name in _MODEL):
        raise RuntimeError(f"expected time in each of {_MODEL}, found {parts}.")
    emit(
        "step of a 135M model",
        row_length=ROW_LENGTH,
        steps=len(steps),
        outside_the_model_ms=round(1e3 * outside, 2),
        **{f"{name}_s": round(value, 3) for name, value in parts.items()},
    )
    at_most("P10", "step outside the model, 135M", 100 * (total - model) / total, 3.0, unit="%")


class _Clock:
    """CPU seconds of each step by part; `step` is the whole."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._parts: dict[str, float] = defaultdict(float)
        self._depth = 0

    def watch(self, stack: ExitStack) -> None:
        """Put timers around the model's parts until the stack ends."""
        from megatron.core.distributed import DistributedDataParallel
        from megatron.core.optimizer.optimizer import ChainedOptimizer, MixedPrecisionOptimizer
        from megatron.core.pipeline_parallel import schedules

        from megapack.engine import schedule
        from megapack.engine.rows import RowSource
        from megapack.model import build
        from megapack.outputs import loss

        places = [
            (schedule, "forward", "forward"),
            (loss, "label_logprobs", "log-probs"),
            (schedules, "backward_step", "backward"),
            (build, "finalize_model_grads", "reduction"),
            (DistributedDataParallel, "zero_grad_buffer", "zeroing"),
            (MixedPrecisionOptimizer, "step", "optimizer"),
            (MixedPrecisionOptimizer, "zero_grad", "zeroing"),
            (ChainedOptimizer, "step", "optimizer"),
            (ChainedOptimizer, "zero_grad", "zeroing"),
        ]
        for owner, name, part in places:
            stack.enter_context(patch.object(owner, name, self._timed(getattr(owner, name), part)))
        stack.enter_context(patch.object(RowSource, "steps", self._stamped(RowSource.steps)))

    def _timed(self, work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*arguments: object, **named: object) -> object:
            begin, self._depth = time.process_time(), self._depth + 1
            try:
                return work(*arguments, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._parts[part] += time.process_time() - begin

        return timed

    def _stamped(self, steps: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """A step lasts from one request for rows to the next."""

        def stamped(*arguments: object, **named: object) -> Iterator[Any]:
            rows = steps(*arguments, **named)
            for _ in range(STEPS):
                begin = time.process_time()
                self._parts.clear()
                yield next(rows)
                self.steps.append({"step": time.process_time() - begin, **self._parts})
            raise _EndOfMeasurementError

        return stamped


def _dataset(folder: Path) -> DatasetRef:
    """A committed version of full rows of documents of log-normal length."""
    location = open_location(folder)
    info = PackedInfo(
        row_length=ROW_LENGTH,
        segment_granularity=1,
        row_granularity=1,
        pad_id=0,
        vocab_size=VOCABULARY,
        tokenizer_digest="random",
        format="identity",
    )
    sink = RowSink(location, info=info, split=Split.TRAIN)
    draw = np.random.Generator(np.random.Philox(0))
    for number in range(ROWS):
        sink.add(_row(draw, number))
    parts = list(sink.close())
    contents = Contents(
        schema_id=SchemaId.PACKED_ROWS,
        kind="dataset",
        parts=parts,
        counts=row_counts(parts),
        packed=info,
    )
    return commit(location, contents.manifest()).dataset_ref()


def _row(draw: np.random.Generator, number: int) -> PackedRow:
    ends = np.cumsum(np.clip(draw.lognormal(np.log(150), 1.0, ROW_LENGTH // 8), 8, 512))
    ends = np.append(ends[ends < ROW_LENGTH - 8].astype(np.int32), ROW_LENGTH)
    lengths = np.diff(ends, prepend=0).astype(np.int32)
    counted = draw.random(ROW_LENGTH) < 0.5
    counted[ends - 1] = False
    return PackedRow(
        tokens=draw.integers(0, VOCABULARY, ROW_LENGTH).astype(np.int32),
        target_runs=runs_of_mask(counted),
        layout=PackLayout(
            row_length=ROW_LENGTH, lengths=lengths, granularity=Granularity(segment=1, row=1)
        ),
        document_ids=tuple(f"{number:08x}{i:024x}" for i in range(lengths.size)),
    )


if __name__ == "__main__":
    main()
