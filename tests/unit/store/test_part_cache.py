import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from megapack.errors import DataError, StoreError
from megapack.store.part_cache import PartCache
from megapack.store.part_reader import PartReader
from megapack.store.payload_parts import write_payload_parts
from tests.support.counted_folder import Fetches
from tests.unit.store.test_payload_frames import TOPK_INFO, payload


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    location = Fetches(tmp_path / "store")
    parts = [
        write_payload_parts(location, [payload(name, 2), payload(name * 2, 1)], info=TOPK_INFO)[1]
        for name in "abc"
    ]
    return location, parts


def cache_of(tmp_path, parts, *, room):
    return PartCache(tmp_path / "cache", limit_bytes=room * max(part.size for part in parts))


def test_a_part_is_fetched_once_and_read_like_the_store(tmp_path, store):
    location, parts = store
    cache = cache_of(tmp_path, parts, room=3)
    assert cache.holds([*parts, *parts])
    for _ in range(2):
        for part in parts:
            for rows in ((0, 2), (1, 1)):
                frame = cache.read(location, part, rows=rows)
                assert frame.equals(PartReader(location).read(part, rows=rows))
    assert location.keys == [part.key for part in parts]


def test_what_was_used_longest_ago_makes_room(tmp_path, store):
    location, parts = store
    cache = cache_of(tmp_path, parts, room=2)
    assert not cache.holds(parts)
    for at in (0, 1, 0, 2, 0, 1):
        for file in (tmp_path / "cache/parts").glob("*"):
            os.utime(file, (file.stat().st_mtime - 10,) * 2)
        cache.read(location, parts[at], rows=(0, 1))
    assert location.keys == [parts[at].key for at in (0, 1, 2, 1)]
    assert len(list((tmp_path / "cache/parts").iterdir())) == 2


def test_files_that_killed_processes_left_are_removed(tmp_path, store):
    location, parts = store
    cache = cache_of(tmp_path, parts, room=3)
    folder = tmp_path / "cache/parts"
    folder.mkdir(parents=True)
    for name, age in (("incomplete-old", 7200), ("incomplete-new", 0)):
        (folder / name).write_bytes(b"?")
        os.utime(folder / name, (time.time() - age,) * 2)
    (folder / parts[0].key.removeprefix("parts/")).write_bytes(b"cut short")
    assert cache.read(location, parts[0], rows=(0, 2)).height == 2
    names = {path.name for path in folder.iterdir()}
    assert names == {"incomplete-new", parts[0].key.removeprefix("parts/")}


def test_an_altered_part_never_gets_its_name(tmp_path, store):
    location, parts = store
    sound = location.get(parts[0].key)
    location.put(parts[0].key, sound[:-1] + b"?")
    with pytest.raises(DataError, match="expected sha256"):
        cache_of(tmp_path, parts, room=3).read(location, parts[0], rows=(0, 1))
    assert list((tmp_path / "cache/parts").iterdir()) == []
    location.delete(parts[0].key)
    with pytest.raises(StoreError, match="found nothing there"):
        cache_of(tmp_path, parts, room=3).read(location, parts[0], rows=(0, 1))


def test_those_who_share_a_folder_fetch_a_part_once_between_them(tmp_path, store):
    location, parts = store
    barrier = threading.Barrier(4)

    def read_all(_):
        # A cache of its own opens the lock by itself, as another process does.
        cache = cache_of(tmp_path, parts, room=3)
        barrier.wait()
        return [cache.read(location, part, rows=(0, 2)).height for part in parts]

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert list(pool.map(read_all, range(4))) == [[2, 2, 2]] * 4
    assert sorted(location.keys) == sorted(part.key for part in parts)


def test_a_damaged_page_is_a_fault_of_the_part_also_where_polars_panics(tmp_path, store):
    location, parts = store
    path = tmp_path / "store" / parts[0].key
    sound = path.read_bytes()
    failed = 0
    for at in range(len(sound) // 2, len(sound) // 2 + 170, 2):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x55]) + sound[at + 1 :])
        try:
            PartReader(location).read(parts[0], rows=(0, 2))
        except DataError:
            failed += 1
    assert failed
