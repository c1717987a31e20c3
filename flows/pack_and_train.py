"""The main job: prepare, train, and extract the teacher's payload when asked to."""

from prefect import flow

from flows.prepare import prepare_dataset
from megapack.jobs.extract import ExtractSettings
from megapack.jobs.pipeline import extract_job, train_job
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.train import TrainRequest
from megapack.records.refs import CheckpointRef
from tasks.extract import extract_payload
from tasks.preflight import preflight, preflight_payload
from tasks.resolve import resolve_model
from tasks.summary import summarize
from tasks.train import train_model


@flow(name="pack-and-train")
def pack_and_train(
    prepare: PrepareJob, train: TrainRequest, extract: ExtractSettings | None = None
) -> CheckpointRef:
    """Conversations to a trained checkpoint, and to teacher payloads.

    1. Refuse what cannot work before anything is computed; the starting model is read for that.
    2. Prepare: split, tokenize, pack, audit. Refuse payloads that are over their limit.
    3. Train on the packed rows.
    4. Extract payloads with the trained model, when `extract` is given.
    5. Sum up what was made and where it is.
    """
    settings = resolve_model.submit(train).result()
    preflight.submit(prepare, settings, extract).result()
    dataset = prepare_dataset(prepare)
    training = train_job(prepare, settings, dataset)
    if extract is not None:
        preflight_payload.submit(training, extract).result()
    # Training and extraction run in the flow's main thread: a cancel interrupts them at once.
    checkpoint = train_model(training, return_state=True).result()
    payload = None
    if extract is not None:
        payload = extract_payload(
            extract_job(training, extract, checkpoint), return_state=True
        ).result()
    summarize.submit(dataset, checkpoint, payload).result()
    return checkpoint
