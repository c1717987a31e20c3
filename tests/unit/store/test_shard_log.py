import os
import time
from dataclasses import replace

from megapack.records.payload import PayloadKind
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.payload_parts import write_payload_parts
from megapack.store.payload_reader import open_payloads
from megapack.store.retention import collect, retire
from megapack.store.shard_log import SHARD_EXPIRES_S, ShardLog
from megapack.store.versions import commit
from megapack.store.writer import COLLECT_AFTER_S
from tests.unit.store.test_payload_frames import TOPK_INFO, payload


def shard(location, name):
    return write_payload_parts(location, [payload(name, 2)], info=TOPK_INFO)[1:]


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


def test_a_run_renews_its_records(tmp_path):
    location = open_location(tmp_path)
    log = ShardLog(location, "a1")
    log.record(0, shard(location, "a"))
    aged(tmp_path, "shards/a1/00000000.json", SHARD_EXPIRES_S * 0.9)
    log.done()
    assert time.time() - (tmp_path / "shards/a1/00000000.json").stat().st_mtime < 60


def aged(tmp_path, key, seconds):
    then = time.time() - seconds
    os.utime(tmp_path / key, (then, then))


def test_collection_spares_recorded_parts_and_lets_abandoned_shards_go(tmp_path):
    location = open_location(tmp_path)
    log = ShardLog(location, "a1")
    (kept,), (loose,) = shard(location, "a"), shard(location, "b")
    log.record(0, [kept])
    for part in (kept, loose):
        aged(tmp_path, part.key, COLLECT_AFTER_S * 3)
    assert collect(location) == 1
    assert log.done() == {0: (kept,)}
    aged(tmp_path, "shards/a1/00000000.json", SHARD_EXPIRES_S * 1.1)
    assert collect(location) == 1
    assert location.size(kept.key) == kept.size
    assert log.done() == {}
    assert collect(location) == 1
    assert location.size(kept.key) is None


def test_commit_of_recorded_parts_uploads_none_and_retiring_spares_them(tmp_path):
    location = open_location(tmp_path)
    (part,), (other,) = shard(location, "a"), shard(location, "b")
    contents = Contents(schema_id="", kind="payload", parts=(part,), payload=TOPK_INFO)
    commit(location, contents.manifest())
    commit(location, replace(contents, parts=(other,)).manifest())
    ShardLog(location, "a1").record(0, [part])
    for one in (part, other):
        aged(tmp_path, one.key, COLLECT_AFTER_S * 3)
    assert retire(location, keep_newest=1) == (1,)
    assert location.size(part.key) == part.size
    commit(location, contents.manifest())
    assert time.time() - (tmp_path / part.key).stat().st_mtime > COLLECT_AFTER_S * 2
    ShardLog(location, "a1").clear()
    assert collect(location) == 0
    assert open_payloads(location).parts(PayloadKind.TOPK) == (part,)
