import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megapack.errors import DataError, StoreError
from megapack.store.parquet_records import ParquetRecords, parquet_blocks

COLUMNS = ("image", "captions")


def written(path, count=23, *, row_group_size=10, **columns):
    values = {
        "other": ["not read"] * count,
        "image": [{"bytes": bytes([n]) * 50, "path": "x"} for n in range(count)],
        "captions": [[f"caption {n}"] for n in range(count)],
        **columns,
    }
    pq.write_table(pa.table(values), path, row_group_size=row_group_size)
    return str(path)


def all_rows(records, blocks, order):
    found = {}
    for number in order:
        block = records.read(number)
        for at, row in enumerate(block.rows):
            found[int(row)] = block.record(at)
    return found


def test_rows_are_read_a_row_group_at_a_time_and_only_the_columns_asked_for(tmp_path):
    uri = written(tmp_path / "a.parquet")
    blocks = parquet_blocks(uri, COLUMNS)
    assert blocks.sizes.tolist() == [10, 10, 3]
    assert blocks.row_groups == 3
    found = all_rows(ParquetRecords(uri, blocks, COLUMNS), blocks, [2, 0, 1])
    assert sorted(found) == list(range(23))
    assert found[21] == {
        "image": {"bytes": bytes([21]) * 50, "path": "x"},
        "captions": ["caption 21"],
    }


def test_a_large_row_group_is_read_in_parts_in_any_order(tmp_path):
    uri = written(tmp_path / "a.parquet", row_group_size=20)
    whole = parquet_blocks(uri, COLUMNS)
    parts = parquet_blocks(uri, COLUMNS, most_bytes=400)
    assert parts.units.tolist()[-2:] == [1, 1] or parts.units.tolist()[-1] == 1
    assert len(parts.sizes) > 5
    assert parts.num_records == whole.num_records == 23
    expected = all_rows(ParquetRecords(uri, whole, COLUMNS), whole, range(2))
    records = ParquetRecords(uri, parts, COLUMNS)
    assert all_rows(records, parts, range(len(parts.sizes))) == expected
    assert all_rows(records, parts, reversed(range(len(parts.sizes)))) == expected
    generator = np.random.default_rng(0)
    for _ in range(3):
        assert all_rows(records, parts, generator.permutation(len(parts.sizes))) == expected


def test_empty_row_groups_are_no_blocks_and_row_numbers_go_on(tmp_path):
    table = pa.table({"image": [b"1", b"2"], "captions": ["a", "b"]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 1), table.slice(0, 0), table.slice(1, 1)):
            writer.write_table(part)
    blocks = parquet_blocks(str(tmp_path / "a.parquet"), COLUMNS)
    assert blocks.row_groups == 4
    assert (blocks.units.tolist(), blocks.first_rows.tolist()) == ([1, 3], [0, 1])


def test_what_is_no_parquet_or_lacks_a_column_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(DataError, match=r"a\.parquet: expected a Parquet file, found one that"):
        parquet_blocks(str(tmp_path / "a.parquet"), COLUMNS)
    (tmp_path / "b.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.parquet: expected a Parquet file"):
        parquet_blocks(str(tmp_path / "b.parquet"), COLUMNS)
    uri = written(tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"one column 'text', found 0 .*'captions'.*text_field"):
        parquet_blocks(uri, ("image", "text"))


def test_a_damaged_page_is_the_files_fault_and_a_lost_file_the_stores(tmp_path):
    uri = written(tmp_path / "a.parquet", row_group_size=23)
    blocks = parquet_blocks(uri, COLUMNS)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    start = pq.ParquetFile(uri).metadata.row_group(0).column(1).data_page_offset
    data[start : start + 20] = b"\xff" * 20
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DataError, match="cannot be read"):
        ParquetRecords(uri, blocks, COLUMNS).read(0)
    written(tmp_path / "a.parquet", 5)
    with pytest.raises(DataError, match=r"expected 23 rows from row 0 on, found 5: the file has"):
        ParquetRecords(uri, blocks, COLUMNS).read(0)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(StoreError, match=r"could not read its records"):
        ParquetRecords(uri, blocks, COLUMNS).read(0)


def test_text_that_is_no_utf8_is_the_records_fault_alone(tmp_path):
    bad = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 2, 4], "<i4").tobytes()), pa.py_buffer(b"\xff\xfeok")
    )
    uri = written(tmp_path / "a.parquet", 2, captions=bad)
    blocks = parquet_blocks(uri, COLUMNS)
    block = ParquetRecords(uri, blocks, COLUMNS).read(0)
    with pytest.raises(DataError, match="UnicodeDecodeError"):
        block.record(0)
    assert block.record(1)["captions"] == "ok"
