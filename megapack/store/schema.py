"""The Parquet schemas, versioned by id, and what a file says about itself.

A schema id changes when a column's name, type or meaning does. File metadata holds only what the
records depend on: no time, host or package version, so that equal content is an equal file.

`megapack.packed_rows/2` keeps tokens as raw little-endian bytes in Binary columns, split at the
sixteenth bit (`token_planes`). Measured on 7.8M tokens of Python sources and documentation, a
vocabulary of 131,072, documents of 1,231 tokens on average in rows of 32,768, row groups of 1M
tokens, one thread, polars 2.1, in millions of tokens a CPU second:

| tokens as | zstd level | bytes a token | write | read |
| --- | --- | --- | --- | --- |
| int32, polars' own defaults | 3 | 1.055 | 28 | 100 |
| int32 | 8 | 0.919 | 7 | 104 |
| low 16 bits + bit plane | 3 | 0.976 | 32 | 152 |
| **low 16 bits + bit plane** | **6** | **0.909** | **16** | **160** |
| low 16 bits + bit plane | 8 | 0.890 | 11 | 159 |
| 24-bit ids (zstd alone) | 6 | 0.903 | | |

All other columns of these rows together take 0.036: target runs 0.019 (0.012 as differences, which
no query could read), document ids 0.015 as text (0.014 as 16 bytes each), the rest 0.002. The page
size makes no difference: polars writes one page a column chunk.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from megapack.errors import ConfigError, ContractError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import MOST_POSITIONS
from megapack.records.payload import PayloadDtype, PayloadKind

SCHEMA_KEY = "megapack.schema"


class SchemaId(StrEnum):
    """Ids of the schemas that this version of megapack writes."""

    PACKED_ROWS = "megapack.packed_rows/2"
    DOCUMENTS = "megapack.documents/1"
    DROPS = "megapack.drops/1"
    TEACHER_PAYLOAD = "megapack.teacher_payload/2"
    PAYLOAD_INDEX = "megapack.payload_index/1"
    MULTIMODAL_ROWS = "megapack.multimodal_rows/1"
    """Arrow schema in `multimodal_table`: pyarrow writes and reads it, also in forked workers."""
    MULTIMODAL_REJECTS = "megapack.multimodal_rejects/1"


_INTS = pl.List(pl.Int32())
_STRINGS = pl.List(pl.String())

SCHEMAS: dict[SchemaId, pl.Schema] = {
    SchemaId.PACKED_ROWS: pl.Schema(
        {
            "tokens": pl.Binary(),  # low 16 bits, little-endian; the row without its tail
            "tokens_high": pl.Binary(),  # bit planes above them, see `token_planes`
            "target_runs": _INTS,
            "final_label": pl.Int32(),  # null but for a document of row_length + 1 tokens
            "lengths": _INTS,
            "document_ids": _STRINGS,
            "sources": _STRINGS,
            "num_real_tokens": pl.Int32(),
            "num_target_tokens": pl.Int32(),
            "cost": pl.Int64(),  # query-key pairs of causal attention over the real tokens
        }
    ),
    SchemaId.DOCUMENTS: pl.Schema(
        {
            "document_id": pl.String(),
            "tokens": _INTS,
            "target_runs": _INTS,
            "source": pl.String(),
            "uri": pl.String(),
            "line": pl.Int64(),
            "piece": pl.Int32(),
            "format": pl.String(),
            "num_tokens": pl.Int32(),
            "num_target_tokens": pl.Int32(),
        }
    ),
    SchemaId.DROPS: pl.Schema(
        {
            "reason": pl.String(),
            "detail": pl.String(),
            "uri": pl.String(),
            "line": pl.Int64(),
            "document_id": pl.String(),
            "tokens": pl.Int64(),
        }
    ),
    SchemaId.TEACHER_PAYLOAD: pl.Schema(
        {
            "document_id": pl.String(),
            "teacher": pl.Int16(),
            "num_tokens": pl.Int32(),  # m
            "width": pl.Int32(),  # 0, K, H or V
            "values": pl.Binary(),  # byte planes of [m, width], see `byte_planes`
            "indices": pl.Binary(),  # low 16 bits of the ids [m, K], null unless TOPK
            "indices_high": pl.Binary(),  # bit planes above them, see `token_planes`
            "target_logprobs": pl.List(pl.Float32()),  # m, nats, NaN where no label counts
            "tail_logprobs": pl.List(pl.Float32()),  # m, nats, null unless TOPK
            "labels_digest": pl.UInt64(),
        }
    ),
    SchemaId.PAYLOAD_INDEX: pl.Schema(
        {
            "document_id": pl.String(),
            "teacher": pl.Int16(),
            "num_tokens": pl.Int32(),
            "labels_digest": pl.UInt64(),
        }
    ),
}


class PackedInfo(BaseModel):
    """What every row of a packed dataset shares.

    Attributes:
        row_length: T.
        segment_granularity: multiple of every slot.
        row_granularity: multiple of T.
        pad_id: token id in slot padding and tail.
        vocab_size: ids lie in [0, vocab_size).
        tokenizer_digest: digest of the tokenizer's files.
        format: prompt format.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row_length: int = Field(ge=1, le=MOST_POSITIONS)
    segment_granularity: int = Field(ge=1)
    row_granularity: int = Field(ge=1)
    pad_id: int = Field(ge=0)
    vocab_size: int = Field(ge=1)
    tokenizer_digest: str
    format: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.row_length % self.row_granularity or self.pad_id >= self.vocab_size:
            raise ValueError(
                f"PackedInfo: expected row_length = {self.row_length} to be a multiple of "
                f"row_granularity = {self.row_granularity} and pad_id = {self.pad_id} to be below "
                f"vocab_size = {self.vocab_size}."
            )
        return self

    @property
    def granularity(self) -> Granularity:
        """The multiples as the layout layer takes them."""
        return Granularity(
            segment=self.segment_granularity,
            row=self.row_granularity,
            reasons=("recorded in the dataset's manifest",),
        )

    @property
    def group_rows(self) -> int:
        """Rows of one Parquet row group: about a million tokens."""
        return max(1, GROUP_TOKENS // self.row_length)


class KindInfo(BaseModel):
    """One kind of a teacher payload.

    Attributes:
        kind: what `values` is.
        dtype: how `values` is stored.
        width: 0, K, H or V.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: PayloadKind
    dtype: PayloadDtype
    width: int = Field(ge=0)


class LmHeadInfo(BaseModel):
    """The LM head of one teacher, beside its hidden states.

    Attributes:
        digest: of all its files and of the fields below.
        dtype: of its values.
        vocab_size: rows, those of the real vocabulary.
        width: H.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    dtype: PayloadDtype
    vocab_size: int = Field(ge=1)
    width: int = Field(ge=1)


class PayloadInfo(BaseModel):
    """What every document of a teacher payload shares.

    Attributes:
        kinds: what is stored of each document, one record of each kind.
        temperature: temperature of the log-probs, top-k ones included.
        vocab_size: real vocabulary, without the padding that tensor parallelism adds.
        tokenizer_digest: tokenizer of the documents.
        teachers: names of the teachers, by index.
        lm_heads: LM heads that are published beside, by index of the teacher.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kinds: tuple[KindInfo, ...] = Field(min_length=1)
    temperature: float = Field(gt=0)
    vocab_size: int = Field(ge=1)
    tokenizer_digest: str
    teachers: tuple[str, ...] = Field(min_length=1)
    lm_heads: Mapping[int, LmHeadInfo] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _kinds_differ(self) -> Self:
        names = [one.kind for one in self.kinds]
        if len(set(names)) < len(names):
            raise ValueError(f"PayloadInfo.kinds: expected each kind once, found {names}.")
        return self

    def of(self, kind: PayloadKind) -> KindInfo:
        """One of the kinds.

        Raises:
            ConfigError: the payload does not hold it.
        """
        for one in self.kinds:
            if one.kind is kind:
                return one
        raise ConfigError(
            f"expected a payload of kind {kind.value}, found "
            f"{', '.join(one.kind.value for one in self.kinds)}. Extract this kind too."
        )


GROUP_TOKENS = 1 << 20


def payload_metadata(info: PayloadInfo, kind: PayloadKind) -> dict[str, str]:
    """What a payload part says about itself: its own kind, and what its log-probs rest on.

    Raises:
        ConfigError: `info` has no such kind.
    """
    shared = info.model_dump(mode="json", exclude={"kinds", "lm_heads"})
    fields = info.of(kind).model_dump(mode="json") | shared
    return {SCHEMA_KEY: SchemaId.TEACHER_PAYLOAD.value} | _metadata(fields)


def file_metadata(schema: SchemaId, info: BaseModel | None = None) -> dict[str, str]:
    """What a Parquet file says about itself.

    Args:
        schema: id of its schema.
        info: what its records share, one key a field.
    """
    fields = {} if info is None else info.model_dump(mode="json")
    return {SCHEMA_KEY: schema.value} | _metadata(fields)


def _metadata(fields: Mapping[str, Any]) -> dict[str, str]:
    return {f"megapack.{name}": str(value) for name, value in sorted(fields.items())}


def check_frame(frame: pl.DataFrame, schema: SchemaId) -> None:
    """Check that a frame has exactly the columns of a schema.

    Raises:
        ContractError: a column is missing, unexpected, or of another type.
    """
    expected = SCHEMAS[schema]
    if frame.schema == expected:
        return
    wrong = [
        f"{name}: {frame.schema.get(name, 'absent')} instead of {expected.get(name, 'nothing')}"
        for name in dict.fromkeys((*expected, *frame.schema))
        if frame.schema.get(name) != expected.get(name)
    ]
    raise ContractError(
        f"{schema.value}: expected columns {', '.join(expected)}; found other ones "
        f"({'; '.join(wrong) or 'in another order'})."
    )
