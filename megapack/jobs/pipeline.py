"""Where the results of a pipeline stand in its store, and the jobs that lead there.

Under `PrepareJob.store`: `steps/` holds intermediate tables, `datasets/<name>` the packed dataset,
`checkpoints/<address>` one training run, `payloads/<address>` one extraction. An address is a
digest of everything the result depends on, so another job never continues in the same place.
"""

from megapack.jobs.addresses import extract_address, train_address
from megapack.jobs.extract import ExtractJob, ExtractSettings
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.records.refs import CheckpointRef, DatasetRef

CHECKPOINTS = "/checkpoints/"
PAYLOADS = "/payloads/"


def dataset_uri(job: PrepareJob) -> str:
    """Folder or prefix of the packed dataset."""
    return f"{job.store.rstrip('/')}/datasets/{job.name}"


def train_job(prepare: PrepareJob, settings: TrainSettings, dataset: DatasetRef) -> TrainJob:
    """The training job of a pipeline, with its output in the pipeline's store."""
    draft = TrainJob(dataset=dataset, settings=settings, output=prepare.store)
    return train_job_in(draft, prepare.store)


def train_job_in(job: TrainJob, store: str) -> TrainJob:
    """The same training with its output where it belongs in a store."""
    output = f"{store.rstrip('/')}{CHECKPOINTS}{train_address(job)}"
    return job.model_copy(update={"output": output})


def extract_job(
    training: TrainJob, settings: ExtractSettings, checkpoint: CheckpointRef
) -> ExtractJob:
    """The extraction job that follows a training job, in the same store."""
    store = training.output.rpartition(CHECKPOINTS)[0]
    draft = ExtractJob(
        dataset=training.dataset,
        checkpoint=checkpoint,
        model=training.settings.model,
        settings=settings,
        output=store,
    )
    return in_store(draft, store)


def in_store(job: ExtractJob, store: str) -> ExtractJob:
    """The same extraction with its output where it belongs in a store."""
    output = f"{store.rstrip('/')}{PAYLOADS}{extract_address(job)}"
    return job.model_copy(update={"output": output})
