"""Multimodal rows as Arrow tables, schema `megapack.multimodal_rows/1`, and back.

A record is a packed row: what it takes of the budgets, and its samples with all that was drawn for
them. Images stay in the files they came in, each once a sample: pixels are decoded when a row is
read, by the code that decoded them when it was packed. Floats are stored as they are, so a row that
is read back is the row that was written, bit for bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from megapack.errors import ContractError, DataError
from megapack.records.multimodal_sample import (
    LaidSample,
    PlanItem,
    Sample,
    SampleRef,
    SampleSize,
    SpanKind,
)

SIZES = ("tokens", "vit_tokens", "vae_tokens", "images")

_ITEM = pa.struct(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("text", pa.list_(pa.int32())),  # null for images
        pa.field("image", pa.int32(), nullable=False),  # index into `encoded`, -1 for text
        pa.field("height", pa.int32(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("loss", pa.bool_(), nullable=False),
        pa.field("droppable", pa.bool_(), nullable=False),
        pa.field("end_label", pa.int32()),
        pa.field("joins", pa.bool_(), nullable=False),
        pa.field("position_step", pa.int32()),
        pa.field("kept", pa.bool_(), nullable=False),
        pa.field("timestep", pa.float32(), nullable=False),  # -inf for text and clean images
        pa.field("start", pa.int32(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
    ]
)
_SIZES = [pa.field(name, pa.int32(), nullable=False) for name in SIZES]
_SAMPLE = pa.struct(
    [
        pa.field("group", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("reading", pa.int32(), nullable=False),
        *_SIZES,
        pa.field("items", pa.list_(_ITEM), nullable=False),
        pa.field("encoded", pa.list_(pa.binary()), nullable=False),
    ]
)
ROW_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32(), nullable=False),
        *_SIZES,
        pa.field("num_samples", pa.int32(), nullable=False),
        pa.field("samples", pa.list_(_SAMPLE), nullable=False),
    ]
)
PLANNING = ("epoch", *SIZES, "num_samples")
"""Columns that cost next to nothing to read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRow:
    """One row as it stands in a store.

    Attributes:
        epoch: of the stream that it came from.
        laid: its samples, in order; without pixels.
    """

    epoch: int
    laid: tuple[LaidSample, ...]

    @property
    def size(self) -> SampleSize:
        """What its samples take."""
        size = SampleSize()
        for one in self.laid:
            size = size.plus(one.size)
        return size

    @property
    def num_bytes(self) -> int:
        """Bytes of its images."""
        return sum(len(data) for one in self.laid for data in one.sample.encoded)


def rows_to_table(rows: Sequence[StoredRow]) -> pa.Table:
    """Rows as a table of `ROW_SCHEMA`.

    Raises:
        ContractError: an array of a sample has another length than its items.
    """
    return pa.Table.from_pylist([_row_record(row) for row in rows], schema=ROW_SCHEMA)


def table_to_rows(table: pa.Table, *, where: str) -> Iterator[StoredRow]:
    """Rows of a table, one at a time.

    Args:
        table: of `ROW_SCHEMA`.
        where: for messages.

    Raises:
        DataError: the table has other columns, or a record is damaged.
    """
    if not table.schema.equals(ROW_SCHEMA):
        raise DataError(
            f"{where}: expected the columns of megapack.multimodal_rows/1, found other ones "
            f"({', '.join(table.schema.names)}). Restore the part, or pack the data again."
        )
    for number in range(table.num_rows):
        (record,) = table.slice(number, 1).to_pylist()
        try:
            yield StoredRow(
                epoch=record["epoch"], laid=tuple(_laid(one) for one in record["samples"])
            )
        except (ContractError, TypeError, ValueError, KeyError) as error:
            raise DataError(
                f"{where} row {number}: expected a packed row, found a damaged record: {error}. "
                "Restore the part, or pack the data again."
            ) from error


def _row_record(row: StoredRow) -> dict[str, Any]:
    return {
        "epoch": row.epoch,
        **_size_record(row.size),
        "num_samples": len(row.laid),
        "samples": [_sample_record(one) for one in row.laid],
    }


def _size_record(size: SampleSize) -> dict[str, int]:
    return {name: getattr(size, name) for name in SIZES}


def _sample_record(laid: LaidSample) -> dict[str, Any]:
    ref = laid.sample.ref
    columns = (laid.kept, laid.timesteps, laid.starts, laid.lengths, laid.positions)
    names = ("kept", "timestep", "start", "length", "position")
    wrong = [name for name, one in zip(names, columns, strict=True) if one.ndim != 1]
    if wrong or any(one.size != len(laid.sample.items) for one in columns):
        raise ContractError(
            f"{ref}: expected one value an item ({len(laid.sample.items)}), found "
            f"{[one.shape for one in columns]}."
        )
    values = zip(*(one.tolist() for one in columns), strict=True)
    return {
        "group": ref.group,
        "source": ref.source,
        "file": ref.file,
        "row": ref.row,
        "reading": ref.reading,
        **_size_record(laid.size),
        "items": [
            _item_record(item) | dict(zip(names, drawn, strict=True))
            for item, drawn in zip(laid.sample.items, values, strict=True)
        ],
        "encoded": list(laid.sample.encoded),
    }


def _item_record(item: PlanItem) -> dict[str, Any]:
    return {
        "kind": item.kind.value,
        "text": None if item.text is None else item.text.tolist(),
        "image": item.image,
        "height": item.height,
        "width": item.width,
        "loss": item.loss,
        "droppable": item.droppable,
        "end_label": item.end_label,
        "joins": item.joins,
        "position_step": item.position_step,
    }


def _laid(record: Mapping[str, Any]) -> LaidSample:
    items = record["items"]
    sample = Sample(
        ref=SampleRef(
            group=record["group"],
            source=record["source"],
            file=record["file"],
            row=record["row"],
            reading=record["reading"],
        ),
        items=tuple(_item(one) for one in items),
        encoded=tuple(record["encoded"]),
    )
    return LaidSample(
        sample=sample,
        kept=np.array([one["kept"] for one in items], np.bool_),
        timesteps=np.array([one["timestep"] for one in items], np.float32),
        starts=np.array([one["start"] for one in items], np.int32),
        lengths=np.array([one["length"] for one in items], np.int32),
        positions=np.array([one["position"] for one in items], np.int32),
        size=SampleSize(**{name: record[name] for name in SIZES}),
    )


def _item(record: Mapping[str, Any]) -> PlanItem:
    text = record["text"]
    return PlanItem(
        kind=SpanKind(record["kind"]),
        text=None if text is None else np.array(text, np.int32),
        image=record["image"],
        height=record["height"],
        width=record["width"],
        loss=record["loss"],
        droppable=record["droppable"],
        end_label=record["end_label"],
        joins=record["joins"],
        position_step=record["position_step"],
    )
