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

_CHECKPOINTS = "/checkpoints/"


def dataset_uri(job: PrepareJob) -> str:
    """Folder or prefix of the packed dataset."""
    return f"{job.store.rstrip('/')}/datasets/{job.name}"


def train_job(prepare: PrepareJob, settings: TrainSettings, dataset: DatasetRef) -> TrainJob:
    """The training job of a pipeline, with its output in the pipeline's store."""
    return train_job_in(
        prepare.store, TrainJob(dataset=dataset, settings=settings, output=prepare.store)
    )


def train_job_in(store: str, draft: TrainJob) -> TrainJob:
    """A training job, with its output in the store of a pipeline."""
    output = f"{store.rstrip('/')}{_CHECKPOINTS}{train_address(draft)}"
    return draft.model_copy(update={"output": output})


def extract_job(
    training: TrainJob, settings: ExtractSettings, checkpoint: CheckpointRef
) -> ExtractJob:
    """The extraction job that follows a training job, in the same store."""
    store = training.output.rpartition(_CHECKPOINTS)[0]
    draft = ExtractJob(
        dataset=training.dataset,
        checkpoint=checkpoint,
        model=training.settings.model,
        settings=settings,
        output=store,
    )
    return draft.model_copy(update={"output": f"{store}/payloads/{extract_address(draft)}"})
