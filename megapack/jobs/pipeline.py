"""Where the results of a pipeline stand in its store, and the jobs that lead there.

Under `PrepareJob.store`: `steps/` holds intermediate tables, `datasets/<name>` the packed dataset,
`checkpoints/<address>` one training run, `payloads/<address>` one extraction. An address is a
digest of everything the result depends on, so another job never continues in the same place.
"""

from megapack.jobs.extract import ExtractJob, ExtractSettings
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.records.digest import step_address
from megapack.records.refs import CheckpointRef, DatasetRef

PIPELINE_SEMANTICS = 1
"""Raised when training or extraction comes to mean something else for the same settings."""


def dataset_uri(job: PrepareJob) -> str:
    """Folder or prefix of the packed dataset."""
    return f"{job.store.rstrip('/')}/datasets/{job.name}"


def train_job(prepare: PrepareJob, settings: TrainSettings, dataset: DatasetRef) -> TrainJob:
    """The training job of a pipeline: its output is addressed by dataset content and settings."""
    address = step_address(
        "train",
        PIPELINE_SEMANTICS,
        {"dataset": dataset.digest, "settings": settings.model_dump(mode="json")},
    )
    return TrainJob(
        dataset=dataset,
        settings=settings,
        output=f"{prepare.store.rstrip('/')}/checkpoints/{address}",
    )


def extract_job(
    training: TrainJob, settings: ExtractSettings, checkpoint: CheckpointRef
) -> ExtractJob:
    """The extraction job that follows a training job, in the same store."""
    address = step_address(
        "extract",
        PIPELINE_SEMANTICS,
        {
            "dataset": training.dataset.digest,
            "checkpoint": checkpoint.digest,
            "settings": settings.model_dump(mode="json"),
        },
    )
    store = training.output.rsplit("/checkpoints/", 1)[0]
    return ExtractJob(
        dataset=training.dataset,
        checkpoint=checkpoint,
        model=training.settings.model,
        settings=settings,
        output=f"{store}/payloads/{address}",
    )
