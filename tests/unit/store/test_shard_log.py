import os
import time

from megapack.store.location import open_location
from megapack.store.payload_parts import write_payload_parts
from megapack.store.shard_log import SHARD_EXPIRES_S, ShardLog, recorded_parts
from tests.unit.store.test_payload_frames import INFO, payload


def shard(location, name):
    return write_payload_parts(location, [payload(name, 2)], info=INFO)


def test_finished_shards_are_found_again_until_they_are_cleared(tmp_path):
    location = open_location(tmp_path)
    log = ShardLog(location, "a1")
    assert log.done() == {}
    parts = {number: shard(location, name) for number, name in ((0, "a"), (7, "b"))}
    assert all(log.record(number, own) == own for number, own in parts.items())
    assert ShardLog(location, "a1").done() == parts
    assert ShardLog(location, "a2").done() == {}
    log.clear()
    assert log.done() == {}


def test_the_first_of_two_runs_to_finish_a_shard_is_who_wrote_it(tmp_path):
    location = open_location(tmp_path)
    first, second = shard(location, "a"), shard(location, "b")
    assert ShardLog(location, "a1").record(3, first) == first
    assert ShardLog(location, "a1").record(3, second) == first
    location.delete(first[0].key)
    assert ShardLog(location, "a1").record(3, second) == second
    assert ShardLog(location, "a1").done() == {3: second}


def test_a_damaged_record_and_one_whose_part_is_gone_do_not_count(tmp_path):
    location = open_location(tmp_path)
    log = ShardLog(location, "a1")
    parts = [shard(location, name) for name in "abc"]
    for number, own in enumerate(parts):
        log.record(number, own)
    location.put("shards/a1/00000000.json", b'{"number": 0, "par')
    location.put(parts[1][0].key, b"short")
    assert log.done() == {2: parts[2]}
    assert log.record(0, parts[0]) == parts[0]
    assert sorted(log.done()) == [0, 2]


def test_records_are_renewed_by_a_run_and_expire_without_one(tmp_path):
    location = open_location(tmp_path)
    log = ShardLog(location, "a1")
    parts = shard(location, "a")
    log.record(0, parts)
    path = tmp_path / "shards/a1/00000000.json"
    old = time.time() - SHARD_EXPIRES_S * 0.9
    os.utime(path, (old, old))
    assert recorded_parts(location) == {parts[0].key}
    log.done()
    assert time.time() - path.stat().st_mtime < 60
    old = time.time() - SHARD_EXPIRES_S * 1.1
    os.utime(path, (old, old))
    assert recorded_parts(location) == frozenset()
