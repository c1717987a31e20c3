"""The teachers of a job, opened: payload, vocabulary map, and the sources that are theirs."""

from collections.abc import Sequence
from dataclasses import dataclass

from megapack.errors import ConfigError
from megapack.jobs.distill import Distillation, DistillSettings, Teacher
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.steps.distill.vocabulary import VocabularyMap, map_of_file, read_file
from megapack.store.part_cache import PartCache
from megapack.store.payload_reader import PayloadDataset, open_payloads
from megapack.store.schema import KindInfo


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenTeacher:
    """One teacher.

    Attributes:
        number: its place in the job, from 0.
        job: what the job says of it.
        payloads: what it left behind.
        vocabulary: between the student's ids and its own.
    """

    number: int
    job: Teacher
    payloads: PayloadDataset
    vocabulary: VocabularyMap

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"{self.job.payload.uri} version {self.job.payload.version}"

    def takes(self, source: str) -> bool:
        """Whether documents of a source are its."""
        return self.job.sources is None or source in self.job.sources

    def kind(self, kind: PayloadKind) -> KindInfo:
        """How it stores a kind.

        Raises:
            ConfigError: it does not.
        """
        try:
            return self.payloads.info.of(kind)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error}") from error


def open_teachers(
    distill: Distillation, *, vocab_size: int, cache: PartCache | None = None
) -> tuple[OpenTeacher, ...]:
    """The teachers of a job, in its order; no payload is read.

    Args:
        distill: the job's part.
        vocab_size: V, the student's real vocabulary.
        cache: for parts of remote stores; None keeps nothing on this node.

    Raises:
        ConfigError: a payload is missing or is none, or a vocabulary file is wrong.
        StoreError: the store failed, or a payload or vocabulary file was replaced since.
    """
    return tuple(
        _open(number, teacher, vocab_size=vocab_size, cache=cache)
        for number, teacher in enumerate(distill.teachers)
    )


def _open(
    number: int, teacher: Teacher, *, vocab_size: int, cache: PartCache | None
) -> OpenTeacher:
    payloads = open_payloads(teacher.payload.uri, teacher.payload.version, cache=cache)
    payloads.committed.check_ref(teacher.payload)
    names = payloads.info.teachers
    if len(names) != 1:
        raise ConfigError(
            f"{teacher.payload.uri}: expected a payload of one teacher, found {len(names)}. Name "
            "one payload for each teacher."
        )
    return OpenTeacher(
        number=number,
        job=teacher,
        payloads=payloads,
        vocabulary=_vocabulary(teacher, student=vocab_size, teacher=payloads.info.vocab_size),
    )


def _vocabulary(job: Teacher, *, student: int, teacher: int) -> VocabularyMap:
    if job.vocabulary is None:
        return VocabularyMap.identity(student, teacher)
    blob, digest = read_file(job.vocabulary)
    if digest != job.vocabulary_digest:
        raise ConfigError(
            f"Teacher.vocabulary = {job.vocabulary}: expected content {job.vocabulary_digest}, "
            f"found {digest}: the file was changed. Restore it, or start a new run."
        )
    return map_of_file(blob, where=job.vocabulary, student=student, teacher=teacher)


def common_dtype(teachers: Sequence[OpenTeacher], kind: PayloadKind) -> PayloadDtype:
    """How all teachers store a kind.

    Raises:
        ConfigError: one does not store it, or they store it differently.
    """
    dtypes = {teacher.where: teacher.kind(kind).dtype for teacher in teachers}
    if len(set(dtypes.values())) > 1:
        told = ", ".join(f"{where}: {dtype.value}" for where, dtype in dtypes.items())
        raise ConfigError(
            f"expected payloads of kind {kind.value} of one dtype, found {told}. Extract them with "
            "equal settings."
        )
    return next(iter(dtypes.values()))


def common_temperature(teachers: Sequence[OpenTeacher], settings: DistillSettings) -> float:
    """Temperature of both distributions.

    Raises:
        ConfigError: top-k payloads have another than the settings say, or teachers differ and
            the settings say none.
    """
    found = {teacher.where: teacher.payloads.info.temperature for teacher in teachers}
    asked = settings.temperature
    told = ", ".join(f"{where}: {temperature}" for where, temperature in found.items())
    if settings.kind is PayloadKind.TOPK and asked is not None:
        wrong = [one for one in found.values() if one != asked]
        if wrong:
            raise ConfigError(
                f"DistillSettings.temperature = {asked}, expected that of the top-k payloads "
                f"({told}): a tail is known for one temperature only. Leave it out, extract at "
                "this temperature, or use kind hidden."
            )
    if asked is not None:
        return asked
    if len(set(found.values())) > 1:
        raise ConfigError(
            f"expected payloads of one temperature, found {told}. "
            + (
                "Extract them at the same one."
                if settings.kind is PayloadKind.TOPK
                else "Set DistillSettings.temperature."
            )
        )
    return next(iter(found.values()))
