"""A request to distill becomes a training job: dataset, payloads and files named by content."""

from megapack.jobs.distill import Distillation, DistillRequest, Teacher, TeacherRequest
from megapack.jobs.pipeline import train_job_in
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.steps.distill.vocabulary import read_file
from megapack.store.dataset_address import read_named
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
    source = read_named(request.dataset, request.version)
    # Named by a person as if it were one: the check says so before a reference is made of it.
    source.manifest.packed_info()
    draft = TrainJob(
        dataset=source.dataset_ref(),
        settings=settings,
        output=request.store,
        distill=Distillation(
            settings=request.loss, teachers=tuple(map(resolve_teacher, request.teachers))
        ),
    )
    return train_job_in(draft, request.store)


def resolve_teacher(request: TeacherRequest) -> Teacher:
    """A teacher by content.

    Raises:
        ConfigError: there is no such payload or vocabulary file.
        StoreError: the store failed.
    """
    digest = None if request.vocabulary is None else read_file(request.vocabulary)[1]
    return Teacher(
        payload=open_payloads(request.payload, request.version).committed.payload_ref(),
        sources=request.sources,
        vocabulary=request.vocabulary,
        vocabulary_digest=digest,
    )
