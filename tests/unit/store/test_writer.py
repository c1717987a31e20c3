import os
import time

import polars as pl

from megapack.store.location import open_location
from megapack.store.manifest import Split
from megapack.store.schema import SCHEMA_KEY
from megapack.store.sinks import RowSink, row_counts
from megapack.store.writer import REFRESH_AFTER_S
from tests.support.store_rows import INFO, make_row, put_rows


def test_equal_rows_are_one_part_and_the_digest_is_pinned(tmp_path):
    location = open_location(tmp_path)
    first, second = put_rows(location, [1, 2]), put_rows(location, [1, 2])
    assert first == second
    assert first.key == f"parts/{first.sha256}.parquet"
    assert [one.key for one in location.list_keys("")] == [first.key]
    assert put_rows(location, [2, 1]).key != first.key


def test_part_says_what_it_is(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    found = pl.read_parquet_metadata(location.parquet_source(part.key).path)
    assert found[SCHEMA_KEY] == "megapack.packed_rows/2"
    assert {name.removeprefix("megapack.") for name in found} >= {"row_length", "pad_id", "format"}
    assert not {"host", "created_at", "package_version"} & {
        name.removeprefix("megapack.") for name in found
    }


def test_part_that_may_be_collected_soon_is_uploaded_anew(tmp_path):
    location = open_location(tmp_path)
    path = tmp_path / put_rows(location, [1]).key
    young = time.time() - REFRESH_AFTER_S / 2
    os.utime(path, (young, young))
    put_rows(location, [1])
    assert abs(path.stat().st_mtime - young) < 1
    old = time.time() - REFRESH_AFTER_S * 1.1
    os.utime(path, (old, old))
    put_rows(location, [1])
    assert time.time() - path.stat().st_mtime < 60


def test_row_sink_cuts_parts_at_whole_row_groups(tmp_path):
    location = open_location(tmp_path)
    info = INFO.model_copy(update={"row_length": 1 << 19})
    assert info.group_rows == 2
    sink = RowSink(location, info=info, split=Split.TRAIN, part_bytes=1)
    for number in range(5):
        sink.add(make_row(number, info=info))
    parts = sink.close()
    assert [part.num_records for part in parts] == [2, 2, 1]
    assert {part.split for part in parts} == {Split.TRAIN}
    assert row_counts(parts) == {"num_rows": 5, "num_real_tokens": 40, "num_target_tokens": 10}
    assert RowSink(location, info=info, split=Split.TRAIN).close() == ()


def test_part_that_was_altered_is_written_anew(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    sound = location.get(part.key)
    location.put(part.key, sound[:-1] + b"?")
    assert put_rows(location, [1]) == part
    assert location.get(part.key) == sound
