import json
import os
import time
from pathlib import Path

import pytest

from megapack.errors import ConfigError, StoreError
from megapack.layout.granularity import Granularity
from megapack.store.local_folder import LocalFolder
from megapack.store.location import open_location
from megapack.store.manifest_text import parse_manifest
from megapack.store.pins import pin, unpin
from megapack.store.retention import collect, retire
from megapack.store.versions import (
    RetiredVersionError,
    commit,
    find_address,
    latest_version,
    read_version,
)
from megapack.store.writer import REFRESH_AFTER_S
from tests.support.store_rows import dataset_manifest, put_rows


class LostAnswers(LocalFolder):
    """Every conditional put takes effect, but its answer gets lost on the way."""

    def __init__(self, root: Path, *, answer: str) -> None:
        super().__init__(root)
        self.answer = answer
        self.puts = 0

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.puts += 1
        super().put_if_absent(key, data)
        if self.answer == "412 to the retry":
            return False
        raise StoreError("timed out")


class Racing(LocalFolder):
    """Another writer commits just before this one's first conditional put."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.raced = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if not self.raced:
            self.raced = True
            other = open_location(self.root)
            commit(other, dataset_manifest([put_rows(other, [900])], address="other"))
        return super().put_if_absent(key, data)


def test_commit_numbers_versions_from_one_and_reads_them_back(tmp_path):
    location = open_location(tmp_path)
    assert latest_version(location) == 0
    first = commit(location, dataset_manifest([put_rows(location, [1, 2])], address="a"))
    second = commit(location, dataset_manifest([put_rows(location, [3])], address="b"))
    assert (first.version, second.version, latest_version(location)) == (1, 2, 2)
    assert read_version(tmp_path.as_posix()).manifest == second.manifest
    assert read_version(location, 1) == first
    assert find_address(location, "a") == first
    assert find_address(location, "c") is None
    ref = first.dataset_ref()
    assert (ref.num_rows, ref.num_real_tokens, ref.num_target_tokens) == (2, 16, 4)
    first.check_ref(ref)
    with pytest.raises(StoreError, match="expected content"):
        second.check_ref(ref)


def test_content_digest_does_not_depend_on_when_or_why(tmp_path):
    location = open_location(tmp_path)
    parts = [put_rows(location, [1])]
    one, two = dataset_manifest(parts, address="a"), dataset_manifest(parts, address="b")
    assert one.digest == two.digest
    assert one.commit_token != two.commit_token
    assert dataset_manifest([put_rows(location, [2])]).digest != one.digest


def test_commit_of_a_missing_or_cut_part_is_refused(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    location.put(part.key, b"cut")
    with pytest.raises(StoreError, match=rf"expected a part of {part.size} bytes, found 3 bytes"):
        commit(location, dataset_manifest([part]))
    location.delete(part.key)
    with pytest.raises(StoreError, match="found nothing"):
        commit(location, dataset_manifest([part]))
    assert latest_version(location) == 0


@pytest.mark.parametrize("answer", ["412 to the retry", "timeout"])
def test_commit_whose_answer_got_lost_has_won(tmp_path, answer):
    location = LostAnswers(tmp_path, answer=answer)
    made = commit(location, dataset_manifest([put_rows(location, [1])]))
    assert made.version == 1
    assert location.puts == 1
    assert read_version(open_location(tmp_path)) == made
    assert latest_version(location) == 1


def test_commit_that_never_arrives_fails_with_the_store_error(tmp_path, monkeypatch):
    location = open_location(tmp_path)
    manifest = dataset_manifest([put_rows(location, [1])])

    def fail(key: str, data: bytes) -> bool:
        raise StoreError("the endpoint does not answer")

    monkeypatch.setattr(location, "put_if_absent", fail)
    monkeypatch.setattr("megapack.store.versions._BACKOFF_S", 0.0)
    with pytest.raises(StoreError, match="not create the version in 4 attempts: the endpoint"):
        commit(location, manifest)
    assert latest_version(location) == 0


def test_lost_race_becomes_the_next_version(tmp_path):
    location = Racing(tmp_path)
    mine = commit(location, dataset_manifest([put_rows(location, [1])], address="mine"))
    assert mine.version == 2
    assert [read_version(location, n).manifest.address for n in (1, 2)] == ["other", "mine"]


def test_lost_race_replans_on_top_of_the_winner(tmp_path):
    location = Racing(tmp_path)
    seen = []

    def replan(winner):
        seen.append(winner.version)
        return dataset_manifest([*winner.manifest.parts, put_rows(location, [1])])

    mine = commit(location, dataset_manifest([put_rows(location, [1])]), replan=replan)
    assert seen == [1]
    assert (mine.version, mine.manifest.count("num_rows")) == (2, 2)


@pytest.mark.parametrize("hint", [b'{"version": 1}', b'{"version": 99}', b"rubbish", None])
def test_latest_json_is_only_a_hint(tmp_path, hint):
    location = open_location(tmp_path)
    for number in range(3):
        commit(location, dataset_manifest([put_rows(location, [number])], address=str(number)))
    location.delete("latest.json") if hint is None else location.put("latest.json", hint)
    location.delete("addresses/1")
    assert latest_version(location) == 3
    assert find_address(location, "1").version == 2


def test_missing_version_says_which_there_are(tmp_path):
    location = open_location(tmp_path)
    with pytest.raises(ConfigError, match="version of any number, found no version at all"):
        read_version(location)
    commit(location, dataset_manifest([put_rows(location, [1])]))
    with pytest.raises(ConfigError, match="expected version 7, found versions 1 to 1"):
        read_version(location, 7)


def test_altered_or_foreign_manifest_is_refused(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest([put_rows(location, [1])]))
    content = json.loads(location.get("versions/00000001.json"))
    content["counts"]["num_rows"] = 2
    location.put("versions/00000001.json", json.dumps(content).encode())
    with pytest.raises(StoreError, match="manifest was altered"):
        read_version(location, 1)
    with pytest.raises(StoreError, match=r"here: expected a manifest of format 1.*digest"):
        parse_manifest(b'{"schema_id": "x", "kind": "y"}', where="here")


def test_check_reads_names_both_multiples(tmp_path):
    manifest = dataset_manifest([])
    manifest.check_reads(Granularity(segment=2, row=4), advice="cp 2")
    with pytest.raises(
        ConfigError, match=r"multiples of 8 .* and 8 .*slots are multiples of 4.*cp"
    ):
        manifest.check_reads(Granularity(segment=8, row=8, reasons=("2*cp = 8",)), advice="cp 4")


def test_retire_leaves_tombstones_and_shared_parts(tmp_path):
    location = open_location(tmp_path)
    parts = [put_rows(location, [number]) for number in range(4)]
    for number in range(1, 4):
        commit(location, dataset_manifest([parts[number - 1], parts[number]]))
    assert retire(location, keep_newest=1, min_age_s=0.0) == (1, 2)
    assert [location.size(part.key) is not None for part in parts] == [False, False, True, True]
    with pytest.raises(RetiredVersionError, match=r"retired at .* Read a newer version"):
        read_version(location, 1)
    location.delete("latest.json")
    assert latest_version(location) == 3
    assert commit(location, dataset_manifest([parts[3]])).version == 4
    assert retire(location, keep_newest=1, min_age_s=0.0) == (3,)
    with pytest.raises(ConfigError, match="keep_newest of at least 1"):
        retire(location, keep_newest=0)


def test_retire_spares_versions_that_are_to_be_kept_and_their_parts(tmp_path):
    location = open_location(tmp_path)
    parts = [put_rows(location, [number]) for number in range(3)]
    made = [commit(location, dataset_manifest([part])) for part in parts]
    best = made[0].manifest.digest
    gone = retire(location, keep_newest=1, min_age_s=0.0, keep=lambda one: one.digest == best)
    assert gone == (2,)
    assert [location.size(part.key) is not None for part in parts] == [True, False, True]


def test_retire_spares_pinned_versions_and_young_parts(tmp_path):
    location = open_location(tmp_path)
    parts = [put_rows(location, [number]) for number in range(3)]
    for part in parts:
        commit(location, dataset_manifest([part]))
    pin(location, 1, owner="run-a")
    assert retire(location, keep_newest=1) == (2,)
    assert all(location.size(part.key) is not None for part in parts)
    assert read_version(location, 1).version == 1
    unpin(location, 1, owner="run-a")
    assert retire(location, keep_newest=1, min_age_s=0.0) == (1,)


def test_collect_deletes_only_old_parts_that_no_version_names(tmp_path):
    location = open_location(tmp_path)
    named, unnamed = put_rows(location, [1]), put_rows(location, [2])
    commit(location, dataset_manifest([named]))
    assert collect(location) == 0
    assert location.size(unnamed.key) is not None
    assert collect(location, min_age_s=0.0) == 1
    assert location.size(unnamed.key) is None
    assert location.size(named.key) == named.size


def test_commit_returns_the_winner_when_it_serves(tmp_path):
    location = Racing(tmp_path)
    manifest = dataset_manifest([put_rows(location, [1])], address="mine")
    found = commit(location, manifest, replan=lambda _: None)
    assert (found.version, found.manifest.address) == (1, "other")
    assert latest_version(location) == 1


@pytest.mark.parametrize("hint", ['{"version": 1e999}', '{"version": -3}', "[]", "\\"])
def test_damaged_hint_is_not_followed(tmp_path, hint):
    location = open_location(tmp_path)
    commit(location, dataset_manifest([put_rows(location, [1])]))
    location.put("latest.json", hint.encode())
    assert latest_version(location) == 1


def test_newest_version_is_found_without_hint_where_nothing_can_be_written(tmp_path, monkeypatch):
    location = LocalFolder(tmp_path)
    commit(location, dataset_manifest([put_rows(location, [1])]))
    location.delete("latest.json")

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalFolder, "_staged", refuse)
    assert latest_version(location) == 1
    with pytest.raises(StoreError, match=r"could not write latest\.json"):
        location.put("latest.json", b"{}")


def test_manifest_of_another_format_is_refused(tmp_path):
    location = open_location(tmp_path)
    manifest = dataset_manifest([put_rows(location, [1])])
    later = json.loads(manifest.model_dump_json()) | {"manifest_format": 2, "new": True}
    with pytest.raises(StoreError, match="expected a manifest of format 1, found format 2"):
        parse_manifest(json.dumps(later).encode(), where="x")


def test_commit_makes_old_parts_young_unless_the_newest_version_names_them(tmp_path):
    location = open_location(tmp_path)
    kept, mine = put_rows(location, [1]), put_rows(location, [2])
    commit(location, dataset_manifest([kept]))
    old = time.time() - REFRESH_AFTER_S - 60
    for part in (kept, mine):
        os.utime(tmp_path / part.key, (old, old))
    commit(location, dataset_manifest([kept, mine]))
    assert location.stat(kept.key).age_s > REFRESH_AFTER_S
    assert location.stat(mine.key).age_s < 60


def test_lost_race_checks_again_what_the_version_before_had_kept(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    commit(location, dataset_manifest([part]))

    class RetiredMeanwhile(LocalFolder):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            if latest_version(location) == 1:
                commit(location, dataset_manifest([put_rows(location, [2])]))
                retire(location, keep_newest=1, min_age_s=0.0)
            return super().put_if_absent(key, data)

    with pytest.raises(StoreError, match=f"{part.key}: expected a part .* found nothing"):
        commit(RetiredMeanwhile(tmp_path), dataset_manifest([part]))
    assert latest_version(location) == 2


def test_newest_version_is_asked_for_again_when_it_was_retired_meanwhile(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest([put_rows(location, [1])]))

    class Followed(LocalFolder):
        def get(self, key: str) -> bytes:
            if key == "versions/00000001.json" and latest_version(location) == 1:
                commit(location, dataset_manifest([put_rows(location, [2])]))
                retire(location, keep_newest=1)
            return super().get(key)

    assert read_version(Followed(tmp_path)).version == 2
