"""A request to distill becomes a training job: dataset, payloads and files named by content."""

from megapack.jobs.distill import Distillation, DistillRequest, Teacher, TeacherRequest
from megapack.jobs.pipeline import PAYLOADS, train_job_in
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.steps.distill.vocabulary import read_file
from megapack.steps.resolve import resolve_dataset
from megapack.store.only_one import only_one
from megapack.store.payload_reader import open_payloads


def resolve_distillation(request: DistillRequest, settings: TrainSettings) -> TrainJob:
    """The job, with its output in the request's store.

    Args:
        request: as people write it.
        settings: how the student is trained, resolved.

    Raises:
        ConfigError: there is no such dataset, payload or vocabulary file.
        StoreError: the store failed.
    """
    draft = TrainJob(
        dataset=resolve_dataset(request.dataset, version=request.dataset_version),
        settings=settings,
        output=request.store,
        distill=Distillation(
            settings=request.distill,
            teachers=tuple(map(resolve_teacher, request.teachers)),
            cache_bytes=request.cache_bytes,
        ),
    )
    return train_job_in(draft, request.store)


def resolve_teacher(request: TeacherRequest) -> Teacher:
    """A teacher by content.

    Raises:
        ConfigError: there is no such payload or vocabulary file.
        StoreError: the store failed.
    """
    payloads = open_payloads(only_one(request.payload, PAYLOADS, "payload"), request.version)
    digest = None if request.vocabulary is None else read_file(request.vocabulary)[1]
    return Teacher(
        payload=payloads.committed.payload_ref(),
        sources=request.sources,
        vocabulary=request.vocabulary,
        vocabulary_digest=digest,
    )
