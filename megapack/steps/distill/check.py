"""Everything about a distillation that can be refused before a rank starts."""

import logging

from megapack.conversation.vocabulary import first_differences, vocabulary_of
from megapack.errors import ConfigError, MegapackError
from megapack.jobs.train import TrainJob
from megapack.records.payload import PayloadKind
from megapack.steps.distill.documents import check_documents
from megapack.steps.distill.teachers import (
    OpenTeacher,
    common_dtype,
    common_temperature,
    open_teachers,
)
from megapack.steps.recorded_tokenizer import recorded_tokenizer
from megapack.store.committed import Committed

_logger = logging.getLogger(__name__)


def check_distillation(job: TrainJob, source: Committed) -> None:
    """Refuse teachers that cannot teach this student on this dataset; nothing without teachers.

    Args:
        job: the training job.
        source: its dataset.

    Raises:
        ConfigError: a payload is missing or does not hold what the loss reads, temperatures or
            vocabularies differ, or a document has not exactly one payload of equal positions.
        StoreError: the store failed, or a payload was replaced since.
        DataError: a part is damaged.
    """
    if job.distill is None:
        return
    info, loss = source.manifest.packed_info(), job.distill.settings
    vocab_size = job.settings.model.vocabulary(info.vocab_size)
    teachers = open_teachers(job.distill, vocab_size=vocab_size)
    dtype = common_dtype(teachers, loss.kind)
    temperature = common_temperature(teachers, loss)
    for teacher in teachers:
        check_vocabulary(teacher, source)
        check_lm_head(teacher, loss.kind)
    checked = check_documents(source, job.settings, teachers)
    _logger.info(
        "distillation checked documents=%d teachers=%d kind=%s dtype=%s temperature=%g",
        checked,
        len(teachers),
        loss.kind.value,
        dtype.value,
        temperature,
    )


def check_lm_head(teacher: OpenTeacher, kind: PayloadKind) -> None:
    """Refuse hidden states without the LM head that makes logits of them.

    Raises:
        ConfigError: it is missing, or of another shape than payload and vocabulary.
        StoreError: the store failed.
    """
    if kind is not PayloadKind.HIDDEN:
        return
    head = teacher.payloads.lm_head()
    expected = (teacher.payloads.info.vocab_size, teacher.kind(kind).width)
    if (head.vocab_size, head.width) != expected:
        raise ConfigError(
            f"{teacher.where}: expected an LM head of {expected[0]} rows of {expected[1]}, found "
            f"{head.vocab_size} of {head.width}. Extract the payload again."
        )


def check_vocabulary(teacher: OpenTeacher, source: Committed) -> None:
    """Refuse a teacher whose tokens have other ids, unless the job states the map.

    Raises:
        ConfigError: token-to-id maps differ, or cannot be compared.
        StoreError: the store failed.
    """
    info = source.manifest.packed_info()
    same_files = teacher.payloads.info.tokenizer_digest == info.tokenizer_digest
    if teacher.job.vocabulary is not None or same_files:
        return
    found = first_differences(_student_ids(source), teacher.payloads.vocabulary())
    if found:
        raise ConfigError(
            f"{teacher.where}: expected the token-to-id map of the dataset {source.uri}, found "
            f"another: {found}. Name a JSON file of pairs [student id, teacher id] in "
            "Teacher.vocabulary, or pack the data with the teacher's tokenizer."
        )


def _student_ids(source: Committed) -> dict[str, int]:
    """The token-to-id map of the dataset's tokenizer, which must still be where it was.

    Raises:
        ConfigError: it is not, or has another content.
    """
    try:
        return vocabulary_of(recorded_tokenizer(source.manifest))
    except MegapackError as error:
        raise ConfigError(
            f"{source.uri} version {source.version}: {error} Its token-to-id map cannot be "
            "compared with the teacher's. Restore the tokenizer, or state the map in "
            "Teacher.vocabulary."
        ) from error
