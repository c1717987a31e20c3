"""The extraction job: a packed dataset and a checkpoint to teacher payloads."""

from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from megapack.jobs.base import Job
from megapack.jobs.model import BackendName, ModelJob
from megapack.jobs.model_layout import layout_faults
from megapack.jobs.parallel import ParallelJob
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.records.refs import CheckpointRef, DatasetRef, FolderRef

MOST_TOP_K = 1024


class PayloadChoice(Job):
    """What one extraction stores of each document; log-probs of the labels come with every kind.

    Attributes:
        top_k: likeliest tokens a position, None for none of them.
        top_k_dtype: how their log-probs are stored; bf16 would cost up to 0.06 nats.
        hidden: how hidden states before the LM head are stored, None to leave them out.
        logits: how logits of the whole vocabulary are stored, None to leave them out.
    """

    top_k: int | None = Field(default=64, ge=1, le=MOST_TOP_K)
    top_k_dtype: PayloadDtype = PayloadDtype.FP16
    hidden: PayloadDtype | None = None
    logits: PayloadDtype | None = None

    @model_validator(mode="after")
    def _logprobs_are_precise(self) -> Self:
        if self.top_k_dtype is PayloadDtype.BF16:
            raise ValueError(
                "PayloadChoice.top_k_dtype = bf16, expected fp16 or fp32: bfloat16 rounds a "
                "log-prob of -16 by up to 0.06 nats."
            )
        return self

    def dtypes(self) -> Iterator[tuple[PayloadKind, PayloadDtype]]:
        """Kinds to store and how, at least one: log-probs alone where nothing else is chosen."""
        chosen = {
            PayloadKind.TOPK: None if self.top_k is None else self.top_k_dtype,
            PayloadKind.HIDDEN: self.hidden,
            PayloadKind.LOGITS: self.logits,
        }
        kept = [(kind, dtype) for kind, dtype in chosen.items() if dtype is not None]
        yield from kept or [(PayloadKind.LOGPROBS, PayloadDtype.FP32)]


class ExtractSettings(Job):
    """Everything about an extraction except what it reads and where it writes.

    Attributes:
        parallel: layout of the processes; need not be the one that trained.
        backend: which implementation of the layers.
        payload: what is stored; has no default, because it decides cost.
        max_bytes: most bytes that the payload may take; an extraction that would take more is
            refused before it starts. None for no limit.
        max_rows: rows to extract from each split, None for all.
        sources: extract documents of these sources only; None for all.
        temperature: temperature of the log-probs.
        tokens_per_chunk: tokens whose logits exist at once; None takes 32M logits.
        shard_rows: rows of one shard, which is what a stopped run has to do again at most; None
            takes about 128 MiB of payload, and a million positions at most.
    """

    parallel: ParallelJob = ParallelJob()
    backend: BackendName = BackendName.AUTO
    payload: PayloadChoice
    max_bytes: int | None = Field(default=None, ge=1)
    max_rows: int | None = Field(default=None, ge=1)
    sources: tuple[str, ...] | None = Field(default=None, min_length=1)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    tokens_per_chunk: int | None = Field(default=None, ge=1)
    shard_rows: int | None = Field(default=None, ge=1)


class ExtractRequest(Job):
    """What a person asks for: an extraction by addresses. The parameters of `extract-teacher`.

    Attributes:
        dataset: packed dataset, or the store of a job that made one dataset.
        dataset_version: its number, the newest one when None.
        teacher: checkpoints of a training run, the store that holds only this run, or a Hugging
            Face model folder.
        teacher_version: number of the checkpoint, the newest one when None.
        extract: the run.
        store: folder or prefix below which the payload goes, as `payloads/<address>`.
    """

    dataset: str = Field(min_length=1)
    dataset_version: int | None = Field(default=None, ge=1)
    teacher: str = Field(min_length=1)
    teacher_version: int | None = Field(default=None, ge=1)
    extract: ExtractSettings
    store: str = Field(min_length=1)


class ExtractJob(Job):
    """What the extraction worker reads.

    Attributes:
        dataset: committed dataset version to read.
        checkpoint: the teacher's weights: a committed checkpoint, or a Hugging Face folder.
        model: the teacher's shape.
        settings: the run.
        output: folder or prefix in which the payload is committed.
    """

    dataset: DatasetRef
    checkpoint: CheckpointRef | FolderRef
    model: ModelJob
    settings: ExtractSettings
    output: str = Field(min_length=1)

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        faults = layout_faults(self.model, self.settings.parallel.sizes())
        if faults:
            raise ValueError(" ".join(faults))
        return self
