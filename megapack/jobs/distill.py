"""Distillation: what a training job learns from the payloads of teachers."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job
from megapack.records.payload import PayloadKind
from megapack.records.refs import PayloadRef


class Divergence(StrEnum):
    """How far the student's distribution q is from the teacher's p, in nats a token.

    FORWARD_KL: sum p log(p/q). REVERSE_KL: sum q log(q/p). JENSEN_SHANNON: half of each of them
    to the mean of p and q.
    """

    FORWARD_KL = "forward_kl"
    REVERSE_KL = "reverse_kl"
    JENSEN_SHANNON = "jensen_shannon"


class Tail(StrEnum):
    """What becomes of the tokens outside a teacher's top-k.

    BUCKET: they are one outcome more, whose probability is exact on both sides: the divergence is
    a lower bound of that over the vocabulary. RENORMALIZE: both distributions are conditioned on
    the top-k; what the student gives to other tokens is not punished.
    """

    BUCKET = "bucket"
    RENORMALIZE = "renormalize"


class Teacher(Job):
    """One teacher's payload, and the documents that are its.

    Attributes:
        payload: committed payload version.
        sources: documents of these sources; None for every document that the payload holds.
        vocabulary: JSON file of pairs [student id, teacher id] for a teacher of another
            vocabulary; None expects equal token-to-id maps.
        vocabulary_digest: SHA-256 of that file.
    """

    payload: PayloadRef
    sources: tuple[str, ...] | None = Field(default=None, min_length=1)
    vocabulary: str | None = None
    vocabulary_digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _vocabulary_is_known_by_content(self) -> Self:
        if (self.vocabulary is None) != (self.vocabulary_digest is None):
            raise ValueError(
                f"Teacher.vocabulary = {self.vocabulary} with vocabulary_digest = "
                f"{self.vocabulary_digest}, expected both or none of them. Resolve the request "
                "first (megapack.steps.distill.resolve), or name the digest."
            )
        return self


class DistillSettings(Job):
    """The distillation loss: (1 - nll_weight) * T^2 * divergence + nll_weight * NLL.

    T^2 keeps the gradient's size when the temperature T flattens both distributions. The NLL is
    that of the student's own distribution at temperature 1.

    Attributes:
        kind: payload that the teacher's distribution is read from: topk, hidden or logits.
        divergence: between teacher and student.
        tail: what becomes of the tokens outside the top-k, for kind topk.
        temperature: of both distributions; None takes the payload's. A top-k payload has no other
            temperature than its own, because its tail is known for that one only.
        nll_weight: share of the loss of the labels, from 0 to 1.
    """

    kind: PayloadKind = PayloadKind.TOPK
    divergence: Divergence = Divergence.FORWARD_KL
    tail: Tail = Tail.BUCKET
    temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    nll_weight: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _has_a_distribution(self) -> Self:
        if self.kind is PayloadKind.LOGPROBS:
            raise ValueError(
                "DistillSettings.kind = logprobs, expected topk, hidden or logits: log-probs of "
                "the labels alone are no distribution."
            )
        return self

    @model_validator(mode="after")
    def _tail_is_of_a_topk(self) -> Self:
        if self.kind is not PayloadKind.TOPK and self.tail is not Tail.BUCKET:
            raise ValueError(
                f"DistillSettings.tail = {self.tail.value} with kind = {self.kind.value}, expected "
                "no tail: the whole vocabulary has none. Leave it out, or set kind = topk."
            )
        return self


class Distillation(Job):
    """What a training job learns from teachers.

    Attributes:
        settings: the loss.
        teachers: at least one; a document's teacher is the one whose payload holds it.
        cache_bytes: most bytes of payloads on each node's disk, for payloads in a remote store;
            None takes half of what is free there. Payloads that do not fit are read in place.
    """

    settings: DistillSettings = DistillSettings()
    teachers: tuple[Teacher, ...] = Field(min_length=1)
    cache_bytes: int | None = Field(default=None, ge=1)


class TeacherRequest(Job):
    """A teacher as people write it.

    Attributes:
        payload: its payload, or the store that holds only this one.
        version: version number of the payload; None takes the newest.
        sources: documents of these sources; None for every document that the payload holds.
        vocabulary: JSON file of pairs [student id, teacher id]; None expects equal vocabularies.
    """

    payload: str = Field(min_length=1)
    version: int | None = Field(default=None, ge=1)
    sources: tuple[str, ...] | None = Field(default=None, min_length=1)
    vocabulary: str | None = Field(default=None, min_length=1)


class DistillRequest(Job):
    """What a person asks for, but for the student's training. The parameters of `distill`.

    Attributes:
        dataset: packed dataset, or the store that holds only this one.
        dataset_version: its number, the newest one when None.
        teachers: at least one.
        distill: what is learned from them.
        store: folder or prefix below which checkpoints go, as `checkpoints/<address>`.
        cache_bytes: as in `Distillation`.
    """

    dataset: str = Field(min_length=1)
    dataset_version: int | None = Field(default=None, ge=1)
    teachers: tuple[TeacherRequest, ...] = Field(min_length=1)
    distill: DistillSettings = DistillSettings()
    store: str = Field(min_length=1)
    cache_bytes: int | None = Field(default=None, ge=1)
