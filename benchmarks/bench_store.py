"""Packed rows in the store: their size, and the way from Parquet to what a model is fed with.

Real text, 131,072 tokens, rows of 32,768. Ours is read through `PackedDataset` and turned into
arrays by `PackedRow.arrays`, as training does. Peers are compared by what a row trains, label by
label; formats by the rows that they give back.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time

import numpy as np
import zstandard

from benchmarks.inputs import TokenRow, token_rows
from benchmarks.peers_loader import (
    Load,
    RowTensors,
    expected_supervision,
    hugging_face_flattening,
    megatron_bridge,
    megatron_sft_dataset,
    supervision,
)
from benchmarks.peers_store import FORMATS, RowFormat, stored_bytes
from benchmarks.record import at_least, at_most, cpu_seconds, emit, missing
from benchmarks.tekken import tekken_folder
from megapack.layout.pack_layout import PackLayout
from megapack.layout.row_arrays import RowArrays
from megapack.layout.runs import runs_of_mask
from megapack.records.packed_row import PackedRow
from megapack.store.location import open_location
from megapack.store.manifest import Contents, PartKind, Split
from megapack.store.part_reader import PartReader
from megapack.store.reader import PackedDataset
from megapack.store.row_table import RowTable
from megapack.store.schema import PackedInfo, SchemaId
from megapack.store.sinks import ROW_LEVEL, RowSink, row_counts
from megapack.store.versions import commit

_ROWS, _ROW_LENGTH = 160, 32_768
_TOKENS = _ROWS * _ROW_LENGTH
# Speed is taken over 21M tokens, so that opening the dataset once does not pass for reading it.
_TURNS = 4
_FEW_ROWS = 6
_INFO = PackedInfo(
    row_length=_ROW_LENGTH,
    segment_granularity=1,
    row_granularity=1,
    pad_id=0,
    vocab_size=131_072,
    tokenizer_digest="tekken",
    format="chat_template",
)


def main() -> None:
    """Print the goal lines of size and speed, and a line for each format."""
    try:
        folder = tekken_folder()
    except ImportError as error:
        for goal in ("P7", "P8"):
            missing(goal, "packed rows", peer="mistral-common (tokenizer)", why=str(error))
        return
    from tokenizers import Tokenizer

    rows = token_rows(
        Tokenizer.from_file(str(folder / "tokenizer.json")), rows=_ROWS, row_length=_ROW_LENGTH
    )
    with tempfile.TemporaryDirectory() as name:
        dataset = _write(rows, Path(name) / "ours")
        with dataset:
            _size(dataset)
            for form in FORMATS:
                _format(form, rows, Path(name) / type(form).__name__)
        with _write([*rows] * _TURNS, Path(name) / "long") as long:
            _speed(long, rows, Path(name) / "bridge")


def _write(rows: Sequence[TokenRow], folder: Path) -> PackedDataset:
    """The rows as a committed dataset."""
    location = open_location(folder)
    sink = RowSink(location, info=_INFO, split=Split.TRAIN)
    packed = [_packed(row, number) for number, row in enumerate(rows)]
    begin = process_time()
    for row in packed:
        sink.add(row)
    parts = sink.close()
    tokens = len(rows) * _ROW_LENGTH
    emit("store write", mtok_per_cpu_s=round(tokens / (process_time() - begin) / 1e6, 1))
    contents = Contents(
        schema_id=SchemaId.PACKED_ROWS,
        kind="dataset",
        parts=parts,
        counts=row_counts(parts),
        packed=_INFO,
    )
    return PackedDataset(location, commit(location, contents.manifest()))


def _packed(row: TokenRow, number: int) -> PackedRow:
    """Ids are random, as digests are, and every document has a source."""
    counted = np.append(row.mask[1:], 0).astype(np.bool_)
    counted[np.cumsum(row.lengths) - 1] = False
    draw = np.random.Generator(np.random.Philox(number))
    return PackedRow(
        tokens=row.tokens,
        target_runs=runs_of_mask(counted),
        layout=PackLayout(
            row_length=_ROW_LENGTH, lengths=row.lengths, granularity=_INFO.granularity
        ),
        document_ids=tuple(draw.bytes(16).hex() for _ in row.lengths),
        sources=tuple(f"source-{i % 3}" for i in range(row.lengths.size)),
    )


def _size(dataset: PackedDataset) -> None:
    parts = dataset.committed.manifest.parts
    stored = sum(part.size for part in parts) / _TOKENS
    documents = sum(part.counts["num_documents"] for part in parts)
    at_most(
        "P7",
        "bytes a token, all columns",
        stored,
        0.85,
        unit="B/token",
        tokens_a_document=round(_TOKENS / documents),
    )


def _format(form: RowFormat, rows: Sequence[TokenRow], folder: Path) -> None:
    """One information line: size and speed of a peer's format, its rows checked."""
    folder.mkdir()
    try:
        form.write(rows, folder)
        same = all(_same(*pair) for pair in zip(form.read(folder), rows, strict=True))
        seconds = cpu_seconds(lambda: [row.tokens.sum() for row in form.read(folder)], 2)
    except ImportError as error:
        missing("P7", "bytes a token", peer=form.name, why=str(error))
        return
    emit(
        "store format",
        peer=form.name,
        same_rows=same,
        bytes_a_token=round(stored_bytes(folder) / _TOKENS, 3),
        read_mtok_per_cpu_s=round(_TOKENS / seconds / 1e6, 1),
    )


def _same(left: TokenRow, right: TokenRow) -> bool:
    return all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("tokens", "mask", "lengths")
    )


def _speed(dataset: PackedDataset, rows: Sequence[TokenRow], folder: Path) -> None:
    """Ours against the limits and the peers, all per CPU second."""
    into = RowArrays.empty(_ROW_LENGTH)
    parts = dataset.committed.manifest.parts_of(PartKind.ROWS, Split.TRAIN)
    reader = PartReader(open_location(dataset.committed.uri))
    tables = [RowTable(reader.read(part), info=_INFO, where=part.key) for part in parts]

    def from_memory() -> None:
        for table in tables:
            for at in range(len(table)):
                table.row(at).arrays(into)

    count = dataset.num_rows(Split.TRAIN)
    tokens = count * _ROW_LENGTH

    def from_parquet() -> None:
        with PackedDataset(open_location(dataset.committed.uri), dataset.committed) as fresh:
            for row in fresh.rows(Split.TRAIN, range(count)):
                row.arrays(into)

    for number, row in zip(range(_FEW_ROWS), dataset.rows(Split.TRAIN, range(_ROWS)), strict=False):
        _check("ours", _tensors(row), rows[number])
    memory, parquet, decompress = (
        cpu_seconds(work, 3) / tokens
        for work in (from_memory, from_parquet, _decompressing(dataset))
    )
    copy = cpu_seconds(_copying(), 5) / _TOKENS
    emit(
        "store read",
        from_memory_mtok_per_cpu_s=round(1e-6 / memory, 1),
        from_parquet_mtok_per_cpu_s=round(1e-6 / parquet, 1),
        decompress_mtok_per_cpu_s=round(1e-6 / decompress, 1),
        copy_mtok_per_cpu_s=round(1e-6 / copy, 1),
    )
    at_least("P8", "from decompressed buffers", copy / memory, 0.25, peer="copying the arrays")
    at_least("P8", "from Parquet", decompress / parquet, 0.6, peer="decompressing alone")
    folder.mkdir()
    peers: tuple[tuple[str, float, Callable[[], Load]], ...] = (
        ("Megatron-Bridge", 75, lambda: megatron_bridge(rows[:_FEW_ROWS], folder)),
        ("HF DataCollatorWithFlattening", 20, lambda: hugging_face_flattening(rows[:_FEW_ROWS])),
        ("Megatron-LM SFTDataset", 30, lambda: megatron_sft_dataset(rows[:_FEW_ROWS])),
    )
    for name, bound, make in peers:
        _peer(name, bound, make, rows, ours=parquet)


def _peer(
    name: str, bound: float, make: Callable[[], Load], rows: Sequence[TokenRow], *, ours: float
) -> None:
    try:
        load = make()
        for number in range(_FEW_ROWS):
            _check(name, load(number), rows[number])
        seconds = cpu_seconds(lambda: [load(number) for number in range(_FEW_ROWS)], 2)
    except ImportError as error:
        missing("P8", "from Parquet", peer=name, why=str(error))
        return
    theirs = seconds / (_FEW_ROWS * _ROW_LENGTH)
    at_least("P8", "from Parquet", theirs / ours, bound, peer=name, mtok=round(1e-6 / theirs, 2))


def _check(name: str, found: RowTensors, row: TokenRow) -> None:
    """Raises ValueError when a row does not train what it should."""
    if not np.array_equal(supervision(found), expected_supervision(row)):
        raise ValueError(f"{name}: the row trains something else than it should")


def _tensors(row: PackedRow) -> RowTensors:
    made = row.arrays()
    return RowTensors(
        made.tokens, made.labels, made.loss_mask, made.position_ids, made.cu_seqlens_padded
    )


def _copying() -> Callable[[], None]:
    """Copies what a row's arrays hold, row after row, from memory that no cache holds."""
    size = 13 * _ROW_LENGTH
    source = np.ones((_ROWS, size), dtype=np.uint8)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def _decompressing(dataset: PackedDataset) -> Callable[[], None]:
    """zstd alone over the tokens' bytes, cut as row groups cut them."""
    reader = PartReader(open_location(dataset.committed.uri))
    packer = zstandard.ZstdCompressor(level=ROW_LEVEL)
    pieces = [packer.compress(piece) for piece in _column_chunks(dataset, reader)]
    unpacker = zstandard.ZstdDecompressor()

    def work() -> None:
        for piece in pieces:
            unpacker.decompress(piece)

    return work


def _column_chunks(dataset: PackedDataset, reader: PartReader) -> Iterator[bytes]:
    for part in dataset.committed.manifest.parts_of(PartKind.ROWS, Split.TRAIN):
        frame = reader.read(part, columns=("tokens", "tokens_high"))
        for name in frame.columns:
            values = frame[name].to_list()
            for begin in range(0, len(values), _INFO.group_rows):
                yield b"".join(values[begin : begin + _INFO.group_rows])


if __name__ == "__main__":
    main()
