import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import DataError
from megapack.store import line_records
from megapack.store.line_records import LineRecords, line_blocks


def read(uri, *, block_records=3):
    blocks = line_blocks(uri, block_records=block_records)
    records = LineRecords(uri, blocks)
    return [
        (int(row), block.record(at))
        for block in map(records.read, range(len(blocks.sizes)))
        for at, row in enumerate(block.rows)
    ]


@settings(max_examples=30, deadline=None)
@given(
    lines=st.lists(st.sampled_from(["", "  ", "\t\r", "record", "é\u2028 \x85"]), max_size=12),
    ending=st.sampled_from(["\n", "\r\n"]),
    last=st.sampled_from(["", "\n", "\n\n"]),
)
def test_each_line_that_is_not_blank_is_a_record(tmp_path_factory, lines, ending, last):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    blank = [not line.strip() or line == "\t\r" for line in lines]
    texts = [
        line if empty else json.dumps({"at": at, "text": line}, ensure_ascii=False)
        for at, (line, empty) in enumerate(zip(lines, blank, strict=True))
    ]
    path.write_bytes((ending.join(texts) + last).encode())
    expected = [(at, {"at": at, "text": line}) for at, line in enumerate(lines) if not blank[at]]
    assert read(str(path)) == expected
    assert read(str(path), block_records=100) == expected


def test_blocks_are_small_in_bytes_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(line_records, "BLOCK_BYTES", 40)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 9 + json.dumps({"a": "x" * 90}))
    assert line_blocks(str(tmp_path / "a.jsonl")).sizes.tolist() == [5, 5]
    assert len(read(str(tmp_path / "a.jsonl"), block_records=100)) == 10


def test_a_byte_order_mark_is_no_fault_and_a_file_that_changed_is(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}')
    assert [record["a"] for _, record in read(str(path))] == [1, 2]
    records = LineRecords(str(path), line_blocks(str(path)))
    path.write_text('{"a": 1}\n')
    with pytest.raises(DataError, match=r"expected 2 records in bytes 0 to 20, found 1 in 9 bytes"):
        records.read(0)


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"\xff{}", b"null", b'{"a": ' + b"9" * 5000 + b"}", b"{\x00}"]
)
def test_a_line_that_is_no_object_costs_that_line(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(line + b'\n{"a": 2}\n')
    uri = str(tmp_path / "a.jsonl")
    block = LineRecords(uri, line_blocks(uri)).read(0)
    with pytest.raises(DataError, match=r"expected (a )?JSON"):
        block.record(0)
    assert block.record(1) == {"a": 2}
