"""Which token of a teacher each token of the student stands for.

Equal token-to-id maps make the identity on the ids that both models have; another vocabulary
needs a file of pairs. Letters: V student's vocabulary, U teacher's, m positions of a document.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError
from megapack.store.source_system import file_system, guarded

NO_TOKEN = -1
_SHOWN = 5
_PAIR = 2

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VocabularyMap:
    """One to one on the tokens that student and teacher share.

    Attributes:
        teacher_of: int64 [V]: the teacher's id of each student id, NO_TOKEN for none.
        student_of: int64 [U]: the other way round.
    """

    teacher_of: Int64
    student_of: Int64

    @classmethod
    def identity(cls, student: int, teacher: int) -> "VocabularyMap":
        """Equal ids, as far as both vocabularies reach.

        >>> VocabularyMap.identity(3, 2).teacher_of
        array([ 0,  1, -1])
        """
        return cls(
            teacher_of=_reaching(student, end=teacher), student_of=_reaching(teacher, end=student)
        )

    @property
    def is_identity(self) -> bool:
        """Whether every shared id is equal."""
        shared = min(self.teacher_of.size, self.student_of.size)
        return bool(np.array_equal(self.teacher_of[:shared], np.arange(shared)))

    def to_teacher(self, values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """int32 [m] of tokens or labels in the teacher's ids; NO_TOKEN where it has no such token.

        Negative values, which are no tokens, stay.
        """
        mapped = self.teacher_of[np.maximum(values, 0)]
        return np.where(values < 0, values, mapped).astype(np.int32)


def _reaching(size: int, *, end: int) -> Int64:
    ids = np.arange(size, dtype=np.int64)
    return np.where(ids < end, ids, NO_TOKEN)


def read_file(uri: str) -> tuple[bytes, str]:
    """A vocabulary file's content and its digest.

    Raises:
        ConfigError: there is none, or the scheme is unknown.
        StoreError: it cannot be read.
    """
    system, path = file_system(uri)

    def read() -> bytes | None:
        try:
            found: bytes = system.cat_file(path)
        except FileNotFoundError:
            return None
        return found

    blob = guarded(read, action="read", uri=uri)
    if blob is None:
        raise ConfigError(
            f"Teacher.vocabulary = {uri}: expected a JSON file of pairs [student id, teacher id], "
            "found none. Check the path."
        )
    return blob, hashlib.sha256(blob).hexdigest()


def map_of_file(blob: bytes, *, where: str, student: int, teacher: int) -> VocabularyMap:
    """The map that a file of pairs states.

    Args:
        blob: its content.
        where: its uri, for messages.
        student: V.
        teacher: U.

    Raises:
        ConfigError: it is no list of pairs, an id is out of range, or one stands twice.
    """
    pairs = _pairs(blob, where=where)
    own, other = pairs[:, 0], pairs[:, 1]
    for name, ids, size in (("student", own, student), ("teacher", other, teacher)):
        bad = ids[(ids < 0) | (ids >= size)]
        if bad.size:
            raise ConfigError(
                f"{where}: expected {name} ids in [0, {size}), found {int(bad[0])}. Name ids of "
                "the vocabularies that the student's dataset and the payload record."
            )
        values, counts = np.unique(ids, return_counts=True)
        twice = values[counts > 1]
        if twice.size:
            raise ConfigError(
                f"{where}: expected each {name} id in one pair, found {twice.size} of them in "
                f"several, the first {twice[:_SHOWN].tolist()}. A map that is not one to one "
                "would count probability twice: leave out all pairs but one."
            )
    teacher_of = np.full(student, NO_TOKEN, dtype=np.int64)
    student_of = np.full(teacher, NO_TOKEN, dtype=np.int64)
    teacher_of[own], student_of[other] = other, own
    return VocabularyMap(teacher_of=teacher_of, student_of=student_of)


def _pairs(blob: bytes, *, where: str) -> Int64:
    """int64 [pairs, 2]."""
    try:
        found = json.loads(blob)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: expected JSON: {error}.") from error
    if not isinstance(found, list) or not found or not all(map(_is_pair, found)):
        raise ConfigError(
            f"{where}: expected a JSON list of pairs [student id, teacher id], such as "
            f"[[0, 2], [1, 0]], found {str(found)[:80]}."
        )
    try:
        return np.array(found, dtype=np.int64)
    except OverflowError as error:
        raise ConfigError(f"{where}: expected ids of 64 bits: {error}.") from error


def _is_pair(found: object) -> bool:
    return (
        isinstance(found, list) and len(found) == _PAIR and all(type(one) is int for one in found)
    )
