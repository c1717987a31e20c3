import gzip
import json

import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from megapack.errors import DataError
from megapack.store.source_files import list_files
from megapack.store.source_records import read_records

LINES = b'\xef\xbb\xbf{"a":1}\r\n\n  \n[2]\n{"b":\n"\xff"\nNaN\n"\\ud800"\n"\\ud83d\\ude00"\n3'
VALUES = [(0, {"a": 1}), (3, [2]), (8, "😀"), (9, 3)]
FAULTS = [
    (4, "expected JSON, found: Expecting value (character 5)."),
    (5, "expected UTF-8, found byte 0xff at 1."),
    (6, "expected JSON: NaN is no JSON number."),
    (7, "expected text, found half of a surrogate pair."),
]


def records(path):
    return list(read_records(list_files(str(path))[0]))


def split(found):
    values = [(record.line, record.value) for record in found if not record.error]
    return values, [(record.line, record.error) for record in found if record.error]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.jsonl", bytes),
        ("a.jsonl.packed", bytes),
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.zst", zstandard.compress),
        ("a.jsonl.zst", lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
    ],
)
def test_lines_are_read_with_their_numbers_and_faults(name, pack, tmp_path):
    (tmp_path / name).write_bytes(pack(LINES))
    assert split(records(tmp_path / name)) == (VALUES, FAULTS)


def test_deep_nesting_costs_its_line_alone(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"[" * 10**5 + b"\n1\n")
    values, faults = split(records(tmp_path / "a.jsonl"))
    assert values == [(1, 1)]
    assert faults[0][0] == 0
    assert "expected JSON" in faults[0][1]


def test_array_object_and_broken_json_files(tmp_path):
    (tmp_path / "a.json").write_text('\ufeff[{"a": 1}, null]', encoding="utf-8")
    (tmp_path / "b.json").write_text('{"a": 1}', encoding="utf-8")
    (tmp_path / "c.json").write_text('{"a": 1}\n{"a": 2}', encoding="utf-8")
    assert split(records(tmp_path / "a.json")) == ([(0, {"a": 1}), (1, None)], [])
    assert split(records(tmp_path / "b.json")) == ([(0, {"a": 1})], [])
    assert split(records(tmp_path / "c.json")) == (
        [],
        [(0, "expected JSON, found: Extra data (character 9).")],
    )


def test_bad_element_of_an_array_costs_that_element_alone(tmp_path):
    digits = b"1" * 5000
    deep = b"[" * 10**5 + b"]" * 10**5
    (tmp_path / "a.json").write_bytes(
        b'\xef\xbb\xbf [{"a": "],["}, NaN, {"a": ["\\ud800"]},\n"\xff", 1 1, '
        + digits
        + b", "
        + deep
        + b', "\\"[", {"b": [1, 2]}] '
    )
    values, faults = split(records(tmp_path / "a.json"))
    assert values == [(0, {"a": "],["}), (7, '"['), (8, {"b": [1, 2]})]
    assert [line for line, _ in faults] == [1, 2, 3, 4, 5, 6]
    assert faults[:3] == [
        (1, "expected JSON: NaN is no JSON number."),
        (2, "expected text, found half of a surrogate pair."),
        (3, "expected UTF-8, found byte 0xff at 1."),
    ]


def test_large_frames_are_read_whole(tmp_path):
    lines = b"".join(b'{"a":%d}\n' % number for number in range(60_000))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines) * 2)
    values, faults = split(records(tmp_path / "a.jsonl.zst"))
    assert (len(values), faults) == (120_000, [])
    assert values[-1] == (119_999, {"a": 59_999})


def test_parquet_drops_the_members_that_its_schema_filled_with_null(tmp_path):
    chats = [
        [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"n": "f"}]}],
        [{"role": "user", "content": ""}],
    ]
    pl.DataFrame({"messages": chats, "tools": [None, ["t"]]}).write_parquet(tmp_path / "a.parquet")
    assert split(records(tmp_path / "a.parquet")) == (
        [(0, {"messages": chats[0]}), (1, {"messages": chats[1], "tools": ["t"]})],
        [],
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl.gz", gzip.compress(LINES * 50, mtime=0)[:-9]),
        ("a.jsonl.gz", b"no gzip"),
        ("a.jsonl.zst", b"no zstandard"),
        ("a.jsonl.zst", zstandard.compress(LINES * 50)[:-1]),
        ("a.jsonl.zst", zstandard.compress(LINES * 50)[:40]),
        ("a.jsonl.zst", zstandard.compress(LINES) + zstandard.compress(LINES)[:-1]),
        ("a.jsonl.zst", zstandard.compress(LINES) + b"rest"),
        ("a.json.zst", b""),
        ("a.json", b'[{"a": 1}, {"a": 2}'),
        ("a.json", b'[{"a": 1}, {"a": "2}]'),
        ("a.json", b"[1, 2,"),
        ("a.json", b"[1, 2"),
        ("a.json", b"[1, 2] [3]"),
        ("a.json", b"[]]"),
        ("a.jsonl.gz", b""),
        ("a.parquet", b"no parquet"),
    ],
)
def test_damaged_file_is_an_error_that_names_it(name, data, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=name):
        records(tmp_path / name)


@given(st.lists(st.one_of(st.none(), st.text(), st.integers(), st.lists(st.text())), max_size=6))
def test_lines_round_trip(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    assert [record.value for record in records(path) if not record.error] == values
