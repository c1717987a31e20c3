"""Distillation: a student trained on packed rows joined with the payloads of teachers."""

from prefect import flow

from megapack.jobs.distill import DistillRequest, DistillSettings, TeacherRequest
from megapack.jobs.train import TrainRequest
from megapack.records.refs import CheckpointRef
from tasks.distill import resolve_job, summarize_distillation
from tasks.resolve import resolve_model
from tasks.train import train_model


@flow(name="distill")
def distill(  # noqa: PLR0913 - what a person types
    dataset: str,
    teachers: list[TeacherRequest],
    store: str,
    train: TrainRequest,
    distill: DistillSettings | None = None,
    dataset_version: int | None = None,
    cache_bytes: int | None = None,
) -> CheckpointRef:
    """Train a student towards what teachers said of every document of a dataset.

    1. Name dataset, payloads and the starting model by content.
    2. Check that every document has one payload, of equal positions.
    3. Train; a run that was stopped goes on from its newest checkpoint.
    4. Sum up held-out divergence and NLL.
    """
    request = DistillRequest(
        dataset=dataset,
        dataset_version=dataset_version,
        teachers=tuple(teachers),
        distill=distill or DistillSettings(),
        store=store,
        cache_bytes=cache_bytes,
    )
    settings = resolve_model.submit(train).result()
    job = resolve_job.submit(request, settings).result()
    # In the flow's main thread: a cancel interrupts it at once.
    checkpoint = train_model(job, return_state=True).result()
    summarize_distillation.submit(job, checkpoint).result()
    return checkpoint
