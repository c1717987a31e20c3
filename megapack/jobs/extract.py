"""The extraction job: a packed dataset and a checkpoint to teacher payloads."""

from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job
from megapack.jobs.model import BackendName, ModelJob
from megapack.jobs.model_layout import layout_faults
from megapack.jobs.parallel import ParallelJob
from megapack.records.payload import PayloadDtype
from megapack.records.refs import CheckpointRef, DatasetRef, FolderRef


class ExtractSettings(Job):
    """Everything about an extraction except what it reads and where it writes.

    Attributes:
        parallel: layout of the processes; need not be the one that trained.
        backend: which implementation of the layers.
        hidden_dtype: how hidden states are stored; has no default, because it decides cost.
        max_rows: rows to extract from each split, None for all.
        temperature: temperature of the log-probs.
    """

    parallel: ParallelJob = ParallelJob()
    backend: BackendName = BackendName.AUTO
    hidden_dtype: PayloadDtype
    max_rows: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, gt=0)


class ExtractJob(Job):
    """What the extraction worker reads.

    Attributes:
        dataset: committed dataset version to read.
        checkpoint: the teacher's weights: a committed checkpoint, or a Hugging Face folder.
        model: the teacher's shape.
        settings: the run.
        output: folder or prefix in which the payload is committed.
    """

    dataset: DatasetRef
    checkpoint: CheckpointRef | FolderRef
    model: ModelJob
    settings: ExtractSettings
    output: str = Field(min_length=1)

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        faults = layout_faults(self.model, self.settings.parallel.sizes())
        if faults:
            raise ValueError(" ".join(faults))
        return self
