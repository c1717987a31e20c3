"""The store against a real S3 server, and writers that are killed, race and lose answers."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from megapack.errors import ConfigError, StoreError
from megapack.store.files import commit_folder, fetch_folder
from megapack.store.location import MissingKeyError, open_location
from megapack.store.manifest import Contents, Split
from megapack.store.reader import open_dataset
from megapack.store.retention import collect, retire
from megapack.store.s3_prefix import S3Prefix
from megapack.store.versions import commit, find_address, latest_version, read_version
from tests.support.s3_server import closed_port
from tests.support.store_rows import dataset_manifest, make_row, put_rows, same_row
from tests.support.store_writer import PARTS, ROWS

pytestmark = pytest.mark.flow
_ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["local", "s3"])
def uri(request, tmp_path):
    return request.getfixturevalue("s3") if request.param == "s3" else str(tmp_path / "store")


def _writer(*arguments: object, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_writer", *map(str, arguments)],
        cwd=_ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def _check_whole(uri: str, version: int | None) -> int:
    """Read all of a version; every row belongs to it. Returns its number."""
    committed = read_version(uri, version)
    with open_dataset(uri, committed.version) as dataset:
        firsts = [int(row.tokens[0]) for row in dataset.rows(Split.TRAIN, range(PARTS * ROWS))]
    assert firsts == [committed.manifest.settings["generation"]] * (PARTS * ROWS)
    return committed.version


def test_location_operations(s3, tmp_path):
    location = open_location(s3)
    location.check_writable()
    assert location.list_keys("") == []
    with pytest.raises(MissingKeyError, match="expected a/b, found nothing"):
        location.get("a/b")
    with pytest.raises(MissingKeyError, match="expected a/b, found nothing"):
        location.get_file("a/b", tmp_path / "never")
    assert list(tmp_path.iterdir()) == []
    assert location.size("a/b") is None
    assert location.put_if_absent("a/b", b"1") is True
    assert location.put_if_absent("a/b", b"2") is False
    assert location.get("a/b") == b"1"
    found = location.stat("a/b")
    assert found.size == 1
    assert -1 <= found.age_s < 60
    location.touch("a/b")
    assert location.get("a/b") == b"1"
    with pytest.raises(MissingKeyError, match="expected a/c, found nothing"):
        location.touch("a/c")
    location.delete("a/b")
    location.delete("a/b")
    assert location.size("a/b") is None


def test_large_file_round_trip(s3, tmp_path):
    location = open_location(s3)
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(1 << 20) * 101)
    location.put_file("big", source)
    assert location.size("big") == 101 << 20
    location.get_file("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_listing_and_size_are_never_remembered(s3):
    reader, writer = open_location(s3), open_location(s3)
    writer.put("parts/a", b"1")
    assert [(one.key, one.size) for one in reader.list_keys("parts/")] == [("parts/a", 1)]
    assert reader.size("parts/a") == 1
    writer.put("parts/a", b"22")
    writer.put("parts/b", b"")
    assert [(one.key, one.size) for one in reader.list_keys("parts/")] == [
        ("parts/a", 2),
        ("parts/b", 0),
    ]
    assert reader.size("parts/a") == 2


def test_rows_round_trip_and_nothing_is_created_on_local_disk(s3, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    location = open_location(s3)
    parts = [
        put_rows(location, [0, 1, 2], group_records=2),
        put_rows(location, [3], group_records=1),
        put_rows(location, [4, 5, 6, 7, 8, 9, 10], group_records=3),
    ]
    made = commit(location, dataset_manifest(parts, address="x"))
    assert find_address(s3, "x") == made
    with open_dataset(s3) as dataset:
        rows = list(dataset.rows(Split.TRAIN, range(11)))
        assert dataset.costs(Split.TRAIN).tolist() == [21] * 11
    assert all(same_row(row, make_row(number)) for number, row in enumerate(rows))
    assert list(tmp_path.iterdir()) == []


def test_replaced_or_missing_part_is_detected(s3):
    location = open_location(s3)
    part = put_rows(location, [1])
    commit(location, dataset_manifest([part]))
    location.put(part.key, location.get(part.key) + b"x")
    with open_dataset(s3) as dataset:
        with pytest.raises(StoreError, match=rf"expected {part.size} bytes, found {part.size + 1}"):
            list(dataset.rows(Split.TRAIN, [0]))
        location.delete(part.key)
        with pytest.raises(StoreError, match="found nothing"):
            list(dataset.rows(Split.TRAIN, [0]))


def test_folder_round_trip_and_retention(s3, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    contents = Contents(schema_id="c/1", kind="checkpoint", parts=())
    for step in range(3):
        (folder / "model.pt").write_bytes(np.full(1000, step).tobytes())
        commit_folder(s3, folder, contents)
    assert retire(s3, keep_newest=1, min_age_s=-5.0) == (1, 2)
    assert len(open_location(s3).list_keys("parts/")) == 1
    fetch_folder(s3, None, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "model.pt").read_bytes() == (folder / "model.pt").read_bytes()
    assert collect(s3) == 0
    assert latest_version(s3) == 3


def test_wrong_secret_is_one_clear_line(s3, monkeypatch):
    put_rows(open_location(s3), [1])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    location = open_location(s3)
    with pytest.raises(StoreError, match="secret key is wrong") as one:
        location.check_writable()
    assert "\n" not in str(one.value)
    assert "not-the-secret" not in str(one.value)
    with pytest.raises(StoreError, match="keys are wrong or may not do this"):
        location.size("latest.json")


def test_missing_credentials_are_one_clear_line(s3, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="expected S3 credentials, found none"):
        open_location(s3).check_writable()


def test_store_that_is_down_is_reported_within_seconds(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port()}")
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"does not answer .*Check AWS_ENDPOINT_URL"):
        open_location(s3).check_writable()
    with pytest.raises(StoreError, match="does not answer"):
        read_version(s3)
    assert time.monotonic() - began < 10


def test_missing_version_is_a_config_error(s3):
    with pytest.raises(ConfigError, match="found no version at all"):
        read_version(s3)


def test_commit_whose_answer_got_lost_has_won(s3, monkeypatch):
    location = open_location(s3)
    manifest = dataset_manifest([put_rows(location, [1])])
    original = S3Prefix.put_if_absent

    def sent_twice(self, key, data):
        original(self, key, data)
        return original(self, key, data)

    monkeypatch.setattr(S3Prefix, "put_if_absent", sent_twice)
    assert commit(location, manifest).version == 1
    monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(2))
def test_killed_writer_leaves_the_whole_version_or_the_previous_one(uri, attempt):
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"seed of the kill: {seed}\n")
    writer = _writer("commit", uri, attempt, 0)
    try:
        acknowledged = int(writer.stdout.readline())
        deadline = time.monotonic() + random.Random(seed).uniform(0.0, 1.5)
        while time.monotonic() < deadline:
            assert _check_whole(uri, None) >= acknowledged
    finally:
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate(timeout=30)[0].split()
    acknowledged = max([acknowledged, *map(int, rest)])
    newest = latest_version(uri)
    assert acknowledged <= newest <= acknowledged + 1
    for version in range(max(1, newest - 5), newest + 1):
        assert _check_whole(uri, version) == version
    location = open_location(uri)
    assert commit(location, dataset_manifest([put_rows(location, [1])])).version == newest + 1


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(uri):
    writers = [_writer("commit", uri, tag, 12) for tag in (1, 2)]
    outputs = [writer.communicate(timeout=120)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    versions = [list(map(int, output)) for output in outputs]
    assert sorted(versions[0] + versions[1]) == list(range(1, 25))
    assert latest_version(uri) == 24
    for tag, numbers in enumerate(versions, start=1):
        for done, version in enumerate(numbers):
            generation = read_version(uri, version).manifest.settings["generation"]
            assert generation == tag * 100_000 + done
    assert _check_whole(uri, 24) == 24


def test_parts_are_byte_equal_in_any_process():
    runs = [
        _writer("digests", PYTHONHASHSEED=seed, POLARS_MAX_THREADS=threads)
        for seed, threads in (("0", "1"), ("1", "4"))
    ]
    first, second = (run.communicate(timeout=60)[0].split() for run in runs)
    assert first == second
    assert len(set(first)) == 2
