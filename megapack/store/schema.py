"""The Parquet schemas, versioned by id, and what a file says about itself.

A schema id changes when a column's name, type or meaning does. File metadata holds only what the
records depend on: no time, host or package version, so that equal content is an equal file.

`megapack.packed_rows/1` keeps tokens as raw little-endian int32 in a Binary column: measured on
9.9M tokens in rows of 32,768 (zstd level 3, one thread, polars 2.1), 0.85 bytes a token read at
88M tokens a second, against 0.95 and 34-40M as List(Int32). `row_frames.token_lists` gives the
List form for queries. Every other column is a plain list or number.
"""

from enum import StrEnum
from typing import Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from megapack.errors import ContractError
from megapack.layout.granularity import Granularity
from megapack.records.payload import PayloadDtype, PayloadKind

SCHEMA_KEY = "megapack.schema"


class SchemaId(StrEnum):
    """Ids of the schemas that this version of megapack writes."""

    PACKED_ROWS = "megapack.packed_rows/1"
    DOCUMENTS = "megapack.documents/1"
    DROPS = "megapack.drops/1"
    TEACHER_PAYLOAD = "megapack.teacher_payload/1"


_INTS = pl.List(pl.Int32())
_STRINGS = pl.List(pl.String())

SCHEMAS: dict[SchemaId, pl.Schema] = {
    SchemaId.PACKED_ROWS: pl.Schema(
        {
            "tokens": pl.Binary(),  # int32 little-endian; the row without its tail
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
            "width": pl.Int32(),  # H, V or K
            "values": pl.Binary(),  # [m, width] row-major, little-endian, dtype in the metadata
            "indices": pl.Binary(),  # int32 [m, K], null unless TOPK
            "target_logprobs": pl.List(pl.Float32()),  # m, nats, NaN where no label counts
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

    row_length: int = Field(ge=1)
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


class PayloadInfo(BaseModel):
    """What every document of a teacher payload shares.

    Attributes:
        kind: what `values` is.
        dtype: how `values` is stored.
        width: H, V or K.
        temperature: temperature of the log-probs.
        vocab_size: real vocabulary, without the padding that tensor parallelism adds.
        teachers: names of the teachers, by index.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: PayloadKind
    dtype: PayloadDtype
    width: int = Field(ge=1)
    temperature: float = Field(gt=0)
    vocab_size: int = Field(ge=1)
    teachers: tuple[str, ...] = Field(min_length=1)


GROUP_TOKENS = 1 << 20


def file_metadata(schema: SchemaId, info: BaseModel | None = None) -> dict[str, str]:
    """What a Parquet file says about itself.

    Args:
        schema: id of its schema.
        info: what its records share, one key a field.
    """
    fields = {} if info is None else info.model_dump(mode="json")
    return {SCHEMA_KEY: schema.value} | {
        f"megapack.{name}": str(value) for name, value in sorted(fields.items())
    }


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
