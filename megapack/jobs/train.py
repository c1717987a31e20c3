"""The training job: a packed dataset to checkpoints."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job
from megapack.jobs.model import BackendName, ModelJob, offload_fault
from megapack.jobs.model_layout import layout_faults
from megapack.jobs.parallel import ParallelJob
from megapack.records.refs import DatasetRef


class OptimizerJob(Job):
    """AdamW with warm-up and cosine decay.

    Attributes:
        lr: peak learning rate.
        min_lr: learning rate at the end of the decay.
        warmup_steps: linear warm-up.
        weight_decay: decoupled weight decay.
        beta1: first Adam coefficient.
        beta2: second Adam coefficient.
        epsilon: Adam's epsilon.
        clip_grad: largest gradient norm, 0 for none.
        distributed: shard optimizer state over the data parallel ranks.
    """

    lr: float = Field(default=3e-4, gt=0)
    min_lr: float = Field(default=3e-5, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    clip_grad: float = Field(default=1.0, ge=0)
    distributed: bool = True


class StragglerTiming(StrEnum):
    """Whether each rank's own time is measured and the slowest rank named in the metrics."""

    OFF = "off"
    EVERY_STEP = "every-step"


class TrainSettings(Job):
    """Everything about a training run except the data it reads and the place it writes to.

    Attributes:
        model: shape and precision.
        parallel: layout of the processes.
        optimizer: optimizer and schedule.
        backend: which implementation of the layers.
        steps: optimizer updates.
        global_batch_rows: rows of one optimizer step over all dp ranks.
        evaluate_every: steps between evaluations; there is one before and one after in any case.
        evaluation_rows: most validation rows of one evaluation.
        checkpoint_every: steps between checkpoints; the last step always has one.
        keep_checkpoints: newest checkpoints that stay in the store.
        seed: seed of weights and row order.
        straggler_timing: whether the metrics name the slowest rank of each step.
    """

    model: ModelJob
    parallel: ParallelJob = ParallelJob()
    optimizer: OptimizerJob = OptimizerJob()
    backend: BackendName = BackendName.AUTO
    steps: int = Field(ge=1)
    global_batch_rows: int = Field(ge=1)
    evaluate_every: int = Field(default=100, ge=1)
    evaluation_rows: int = Field(default=64, ge=1)
    checkpoint_every: int = Field(default=100, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    seed: int = Field(default=0, ge=0)
    straggler_timing: StragglerTiming = StragglerTiming.OFF

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        dp = self.parallel.data_parallel_size
        if self.global_batch_rows % dp:
            raise ValueError(
                f"TrainSettings.global_batch_rows = {self.global_batch_rows}, expected a multiple "
                f"of data_parallel_size = {dp}: every dp rank takes the same number of rows."
            )
        faults = layout_faults(self.model, self.parallel.sizes())
        if offload := offload_fault(self.model, self.backend):
            faults.append(offload)
        if faults:
            raise ValueError(" ".join(faults))
        return self


class TrainJob(Job):
    """What the training worker reads.

    Attributes:
        dataset: committed dataset version to read.
        settings: the run.
        output: folder or prefix in which checkpoints are committed, one version each.
    """

    dataset: DatasetRef
    settings: TrainSettings
    output: str = Field(min_length=1)
