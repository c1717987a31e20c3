import gzip
import json

import polars as pl
import pytest
import zstandard

from megapack.errors import ConfigError, DataError, StoreError
from megapack.store.source_excerpts import excerpts
from megapack.store.source_files import list_files
from megapack.store.source_heads import copy_head


def test_excerpts_stop_at_the_last_line_wanted(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"zero\r\n\nt\xffwo\nthree\n")
    assert excerpts(str(file), [0, 2, 9]) == {0: "zero", 2: "t\ufffdwo"}


LINES = b"".join(b"line %d\n" % number for number in range(50))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", LINES),
        ("x.jsonl.gz", gzip.compress(LINES)),
        ("x.jsonl.zst", zstandard.compress(LINES[:80]) + zstandard.compress(LINES[80:])),
        ("x.jsonl.packed", LINES),
    ],
)
def test_excerpts_of_any_line_file(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert excerpts(str(tmp_path / name), [49, 7]) == {7: "line 7", 49: "line 49"}


def test_excerpts_of_arrays_and_tables_are_their_records(tmp_path):
    records = [{"instruction": "é", "output": "b"}, {"instruction": "c", "output": "d"}]
    (tmp_path / "x.json").write_text(json.dumps(records), encoding="utf-8")
    pl.DataFrame(records).write_parquet(tmp_path / "x.parquet")
    wanted = {0: '{"instruction": "é", "output": "b"}'}
    assert excerpts(str(tmp_path / "x.json"), [0]) == wanted
    assert excerpts(str(tmp_path / "x.parquet"), [0]) == wanted


def test_excerpts_of_what_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(LINES)[:-9])
    with pytest.raises(DataError, match="cut off"):
        excerpts(str(tmp_path / "x.jsonl.gz"), [49])
    with pytest.raises(StoreError, match=r"none\.jsonl"):
        excerpts(str(tmp_path / "none.jsonl"), [0])
    with pytest.raises(ConfigError, match="suffixes"):
        excerpts(str(tmp_path / "x.txt"), [0])


def copied(tmp_path, name, data, *, most):
    (tmp_path / name).write_bytes(data)
    (file,) = list_files(str(tmp_path / name))
    folder = tmp_path / "copy"
    folder.mkdir()
    head = copy_head(file, folder / "0", most=most)
    (copy,) = folder.iterdir()
    return head, copy


def test_head_of_lines_is_byte_for_byte_and_tells_its_share(tmp_path):
    data = b"\n{\xff\r\n" + LINES
    head, copy = copied(tmp_path, "x.jsonl", data, most=3)
    assert copy.read_bytes() == b"\n{\xff\r\nline 0\nline 1\n"
    assert copy.name == "0.jsonl"
    assert (head.records, head.share) == (3, copy.stat().st_size / len(data))


def test_head_of_a_compressed_file_read_in_one_piece_tells_its_share_by_lines(tmp_path):
    head, copy = copied(tmp_path, "x.jsonl.packed.gz", gzip.compress(LINES), most=10)
    assert copy.name == "0.jsonl.packed"
    assert copy.read_bytes() == LINES[:70]
    assert head.share == 70 / len(LINES)


def test_head_of_a_large_compressed_file_stops_early(tmp_path):
    import numpy as np

    noise = np.random.default_rng(0).integers(33, 127, 3_000_000, dtype=np.uint8).tobytes()
    rows = b"\n".join(noise[at : at + 300] for at in range(0, len(noise), 300)) + b"\n"
    head, _ = copied(tmp_path, "x.jsonl.gz", gzip.compress(rows, 1), most=2000)
    assert head.records == 2000
    assert head.share == pytest.approx(0.2, abs=0.06)


def test_head_of_a_file_that_is_shorter_is_all_of_it(tmp_path):
    head, copy = copied(tmp_path, "x.jsonl", LINES[:-1], most=99)
    assert (head.records, head.share) == (50, 1.0)
    assert copy.read_bytes() == LINES


def test_head_of_an_empty_file_is_all_of_it(tmp_path):
    head, _ = copied(tmp_path, "x.jsonl", b"", most=9)
    assert (head.records, head.share) == (0, 1.0)
