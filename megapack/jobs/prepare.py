"""The preparation job: conversations to a packed dataset."""

from typing import Self

from pydantic import Field, model_validator

from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.errors import ConfigError
from megapack.jobs.base import Job
from megapack.jobs.parallel import ParallelJob
from megapack.layout.granularity import Granularity, Precision
from megapack.packing.config import PackAlgorithm, PackConfig


class Source(Job):
    """One source of conversations.

    Attributes:
        uri: file, folder, glob or prefix, local or `s3://`.
        name: how reports call it; the uri when empty.
        format: prompt format of this source, when it differs from the job's.
        weight: its part in `pack.blend`, whose unit says what it means; entries of one name share
            one weight.
    """

    uri: str = Field(min_length=1)
    name: str = ""
    format: PromptFormat | None = None
    weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)

    @property
    def label(self) -> str:
        """The name by which rows and reports know it."""
        return self.name or self.uri


class PrepareJob(Job):
    """Everything the data steps need.

    Attributes:
        sources: where conversations come from; reading order is the order given.
        tokenizer: folder (local or `s3://`) with `tokenizer.json` and, for templates,
            `tokenizer_config.json` or `chat_template.jinja`.
        tokenize: format, supervision, too-long policy.
        pack: row length, planner, seed.
        pack_for: layout whose multiples the rows must satisfy; may be larger than today's.
        precision: arithmetic whose multiples the rows must satisfy.
        validation_fraction: share of documents held out for evaluation, chosen by document id.
        store: folder or `s3://` prefix under which datasets, checkpoints and payloads stand.
        name: name of the dataset in the store.
        records_per_shard: conversations in one shard, the unit of retry and fan-out.
    """

    sources: tuple[Source, ...] = Field(min_length=1)
    tokenizer: str = Field(min_length=1)
    tokenize: TokenizeConfig
    pack: PackConfig
    pack_for: ParallelJob = ParallelJob()
    precision: Precision = Precision.BF16
    validation_fraction: float = Field(default=0.02, ge=0.0, lt=1.0)
    store: str = Field(min_length=1)
    name: str = Field(default="dataset", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    records_per_shard: int = Field(default=2000, ge=1)

    @model_validator(mode="after")
    def _row_length_fits(self) -> Self:
        try:
            self.granularity().check_row_length(
                self.pack.row_length, where="PrepareJob.pack.row_length"
            )
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _weights_mean_something(self) -> Self:
        weights: dict[str, float] = {}
        for source in self.sources:
            if weights.setdefault(source.label, source.weight) != source.weight:
                raise ValueError(
                    f"PrepareJob.sources: expected one weight for source {source.label!r}, found "
                    f"{weights[source.label]:g} and {source.weight:g}. Name them apart."
                )
        if self.pack.blend is None and any(weight != 1.0 for weight in weights.values()):
            raise ValueError(
                "PrepareJob.sources: expected pack.blend beside weights other than 1, found none. "
                "Say what a weight means: pack.blend.unit = epochs, documents or tokens."
            )
        if self.pack.blend is not None and self.pack.algorithm is PackAlgorithm.AS_GIVEN:
            raise ValueError(
                "PrepareJob.pack: expected no blend with algorithm as_given, which keeps records "
                "whole; found both. Leave one out."
            )
        return self

    def weights(self) -> dict[str, float]:
        """Weight of each source by its label, in the order given."""
        return {source.label: source.weight for source in self.sources}

    def granularity(self) -> Granularity:
        """Multiples of the dataset."""
        return self.pack_for.granularity(self.precision)

    @property
    def max_document_tokens(self) -> int:
        """Longest document in tokens."""
        return self.tokenize.max_document_tokens or self.pack.row_length + 1
