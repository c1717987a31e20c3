"""Distillation: a student trained on packed rows joined with the payloads of teachers."""

from prefect import flow

from megapack.jobs.distill import DistillRequest
from megapack.jobs.train import TrainRequest
from megapack.records.refs import CheckpointRef
from tasks.distill import resolve_job, summarize_distillation
from tasks.resolve import resolve_model
from tasks.train import train_model


@flow(name="distill")
def distill(distill: DistillRequest, train: TrainRequest) -> CheckpointRef:
    """Teacher payloads to a trained student.

    1. Name dataset, payloads and the starting model by content.
    2. Train: every document is checked against its payload before a rank starts.
    3. Sum up held-out divergence and NLL.
    """
    settings = resolve_model.submit(train).result()
    job = resolve_job.submit(distill, settings).result()
    # Training runs in the flow's main thread: a cancel interrupts it at once.
    checkpoint = train_model(job, return_state=True).result()
    summarize_distillation.submit(job, checkpoint).result()
    return checkpoint
