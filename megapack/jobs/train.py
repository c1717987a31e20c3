"""The training job: a packed dataset to checkpoints."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job
from megapack.jobs.distill import Distillation
from megapack.jobs.draft import DraftJob, DraftTraining, draft_faults
from megapack.jobs.model import BackendName, ModelJob, offload_fault
from megapack.jobs.model_layout import layout_faults
from megapack.jobs.outputs import LossMean, OutputSettings, TokenLossBy
from megapack.jobs.parallel import ParallelJob
from megapack.records.refs import DatasetRef, FolderRef


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


class SpikePolicy(StrEnum):
    """What happens at a step whose loss stands out; its update has not been applied yet."""

    STOP = "stop"
    SKIP = "skip"
    WARN = "warn"


class NotFinitePolicy(StrEnum):
    """What happens at a step whose loss or gradient is NaN or infinite: never an update."""

    STOP = "stop"
    SKIP = "skip"


class GuardJob(Job):
    """What is done about steps that would damage the model.

    Attributes:
        on_spike: at a loss far above the recent ones.
        on_not_finite: at a loss or gradient norm that is NaN or infinite.
        spike_deviations: a loss is a spike from so many standard deviations above the mean.
        window: losses of the last updates that mean and deviation are taken over.
        least_losses: losses that must be there before any is called a spike.
        most_skipped_in_row: a run that skips more steps one after another ends.
    """

    on_spike: SpikePolicy = SpikePolicy.WARN
    on_not_finite: NotFinitePolicy = NotFinitePolicy.STOP
    spike_deviations: float = Field(default=6.0, gt=0)
    window: int = Field(default=64, ge=2)
    least_losses: int = Field(default=16, ge=2)
    most_skipped_in_row: int = Field(default=5, ge=0)

    @model_validator(mode="after")
    def _window_holds_enough(self) -> Self:
        if self.least_losses > self.window:
            raise ValueError(
                f"GuardJob.least_losses = {self.least_losses}, expected at most window = "
                f"{self.window}: no loss would ever be judged."
            )
        return self


class Saving(StrEnum):
    """Whether steps go on while a checkpoint is written and uploaded."""

    BACKGROUND = "background"
    WAIT = "wait"


class StragglerTiming(StrEnum):
    """Whether each rank's own time is measured and the slowest rank named in the metrics."""

    OFF = "off"
    EVERY_STEP = "every-step"


class TrainRequest(Job):
    """A training run as people write it, except the data it reads and the place it writes to.

    `megapack.steps.hugging_face.resolve` makes TrainSettings of it.

    Attributes:
        model: shape and precision; may be left out when a starting model says it.
        starting_model: Hugging Face folder whose weights training starts from; None starts from
            random ones.
        starting_digest: digest that the folder must have; None takes it as it is.
        parallel: layout of the processes.
        optimizer: optimizer and schedule.
        backend: which implementation of the layers.
        loss: what the loss is a mean over.
        outputs: how losses are computed; the numbers do not depend on it.
        steps: optimizer updates.
        global_batch_rows: rows of one optimizer step over all dp ranks.
        rows_per_microbatch: packed rows that one forward takes, also in evaluation.
        dense_token_budget: train on dense batches of at most this many positions, one document a
            row, instead of packed rows; None for packed rows.
        evaluate_every: steps between evaluations; there is one before and one after in any case.
        evaluation_rows: most validation rows of one evaluation.
        checkpoint_every: steps between checkpoints; the last step always has one.
        keep_checkpoints: newest checkpoints that stay in the store; the one with the lowest
            validation loss stays besides.
        saving: whether steps go on while a checkpoint is written; then host memory holds a copy.
        guard: what is done about losses and gradients that would damage the model.
        stop_within_s: seconds from SIGTERM until every rank has ended; what is not saved by then
            is lost, and the newest committed checkpoint stands.
        collective_timeout_s: seconds after which a rank no longer waits for one that does not
            answer.
        straggler_timing: whether the metrics name the slowest rank of each step.
        draft: draft of the model that is trained in the same run; None for none.
        seed: seed of weights and row order.
    """

    model: ModelJob | None = None
    starting_model: str | None = Field(default=None, min_length=1)
    starting_digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    parallel: ParallelJob = ParallelJob()
    optimizer: OptimizerJob = OptimizerJob()
    backend: BackendName = BackendName.AUTO
    loss: LossMean = LossMean.TOKEN_MEAN
    outputs: OutputSettings = OutputSettings()
    steps: int = Field(ge=1)
    global_batch_rows: int = Field(ge=1)
    rows_per_microbatch: int = Field(default=1, ge=1)
    dense_token_budget: int | None = Field(default=None, ge=1)
    evaluate_every: int = Field(default=100, ge=1)
    evaluation_rows: int = Field(default=64, ge=1)
    checkpoint_every: int = Field(default=100, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    saving: Saving = Saving.BACKGROUND
    guard: GuardJob = GuardJob()
    stop_within_s: float = Field(default=25.0, gt=0)
    collective_timeout_s: float = Field(default=600.0, gt=0)
    straggler_timing: StragglerTiming = StragglerTiming.OFF
    draft: DraftJob | None = None
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        dp = self.parallel.data_parallel_size
        if self.global_batch_rows % dp:
            raise ValueError(
                f"TrainSettings.global_batch_rows = {self.global_batch_rows}, expected a multiple "
                f"of data_parallel_size = {dp}: every dp rank takes the same number of rows."
            )
        return self

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        if self.dense_token_budget is None:
            return self
        if self.rows_per_microbatch > 1:
            raise ValueError(
                f"TrainSettings.dense_token_budget = {self.dense_token_budget} with "
                f"rows_per_microbatch = {self.rows_per_microbatch}, expected 1: the budget says "
                "how much a dense batch holds. Set one of them."
            )
        cp = self.parallel.context_parallel_size
        if cp > 1:
            raise ValueError(
                f"TrainSettings.dense_token_budget = {self.dense_token_budget} with "
                f"context_parallel_size = {cp}, expected 1: context parallelism cuts rows at "
                "document boundaries, which a dense batch does not have. Train on packed rows."
            )
        return self

    @model_validator(mode="after")
    def _says_a_model(self) -> Self:
        if self.model is None and self.starting_model is None:
            raise ValueError(
                "TrainRequest.model: expected a model, or a starting_model to take it from."
            )
        if self.starting_digest is not None and self.starting_model is None:
            raise ValueError("TrainRequest.starting_digest: expected a starting_model with it.")
        alone = self.draft is not None and self.draft.training is DraftTraining.ALONE
        if alone and self.starting_model is None:
            raise ValueError(
                "DraftJob.training = alone: expected a starting_model, found none: the policy "
                "would stay random. Name the finished model, or train the draft beside it."
            )
        return self


class TrainSettings(TrainRequest):
    """A training run with its model known, and with the content of its starting weights.

    Attributes:
        model: shape and precision.
    """

    model: ModelJob

    @model_validator(mode="after")
    def _model_fits(self) -> Self:
        faults = layout_faults(self.model, self.parallel.sizes())
        if offload := offload_fault(self.model, self.backend):
            faults.append(offload)
        if self.draft is not None:
            faults += draft_faults(self.draft, self.model, self.parallel.sizes(), self.backend)
        if faults:
            raise ValueError(" ".join(faults))
        if self.starting_model is not None and self.starting_digest is None:
            raise ValueError(
                f"TrainSettings.starting_model = {self.starting_model}, expected starting_digest "
                "with it. Resolve the request first (megapack.steps.hugging_face.resolve), or "
                "name the digest."
            )
        return self

    @property
    def starting_weights(self) -> FolderRef | None:
        """The folder to start from and its digest, None to start from random weights."""
        if self.starting_model is None or self.starting_digest is None:
            return None
        return FolderRef(uri=self.starting_model, digest=self.starting_digest)


class TrainJob(Job):
    """What the training worker reads.

    Attributes:
        dataset: committed dataset version to read.
        settings: the run.
        output: folder or prefix in which checkpoints are committed, one version each.
        distill: teachers to learn from and the loss; None to learn from the labels alone.
    """

    dataset: DatasetRef
    settings: TrainSettings
    output: str = Field(min_length=1)
    distill: Distillation | None = None

    @model_validator(mode="after")
    def _loss_is_ours(self) -> Self:
        by = self.settings.outputs.token_loss
        if self.distill is not None and by is TokenLossBy.MODEL:
            raise ValueError(
                f"OutputSettings.token_loss = {by.value} with TrainJob.distill, expected "
                "megapack: megatron-core's own cross-entropy knows no teacher. Leave it out."
            )
        return self
