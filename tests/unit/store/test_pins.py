import os
import time

import pytest

from megapack.errors import ConfigError, StoreError
from megapack.store.local_folder import LocalFolder
from megapack.store.location import open_location
from megapack.store.pins import (
    PIN_EXPIRES_S,
    HeldPin,
    pin,
    pinned_versions,
    retiring_key,
    unpin,
)
from megapack.store.retention import collect, retire
from megapack.store.versions import commit, read_version
from tests.support.store_rows import dataset_manifest, put_rows


@pytest.fixture
def store(tmp_path):
    """Three versions."""
    location = open_location(tmp_path)
    for number in range(3):
        commit(location, dataset_manifest([put_rows(location, [number])]))
    return location


def _age(location: LocalFolder, seconds: float) -> None:
    """Let all pins be that old."""
    then = time.time() - seconds
    for one in location.list_keys("pins/"):
        os.utime(location.root / one.key, (then, then))


def test_a_held_pin_keeps_its_version_until_it_is_closed(store):
    held = HeldPin(store, 1, run="train-abc")
    assert pinned_versions(store) == {1}
    assert retire(store, keep_newest=1) == (2,)
    assert read_version(store, 1).version == 1
    held.close()
    held.close()
    assert pinned_versions(store) == set()
    assert retire(store, keep_newest=1) == (1,)
    assert store.list_keys("retiring/") == []


def test_two_runs_of_one_name_hold_a_pin_each(store):
    first, second = HeldPin(store, 1, run="train-abc"), HeldPin(store, 1, run="train-abc")
    first.close()
    assert pinned_versions(store) == {1}
    second.close()
    assert pinned_versions(store) == set()


def test_pin_of_a_killed_run_expires_and_is_collected(store):
    pin(store, 1, owner="killed")
    _age(store, PIN_EXPIRES_S - 60)
    assert pinned_versions(store) == {1}
    assert collect(store) == 0
    _age(store, PIN_EXPIRES_S + 60)
    assert pinned_versions(store) == set()
    assert retire(store, keep_newest=1) == (1, 2)
    assert collect(store) == 1
    assert store.list_keys("pins/") == []


def test_a_pin_is_renewed_as_the_run_goes_on(store, monkeypatch):
    held = HeldPin(store, 1, run="train")
    _age(store, PIN_EXPIRES_S - 60)
    held.renew()
    assert store.list_keys("pins/")[0].age_s > PIN_EXPIRES_S - 120
    monkeypatch.setattr("megapack.store.pins.RENEW_AFTER_S", 0.0)
    held.renew()
    assert store.list_keys("pins/")[0].age_s < 60
    held.close()
    held.renew()
    assert store.list_keys("pins/") == []


def test_a_version_that_is_being_retired_cannot_be_pinned(store):
    store.put(retiring_key(1), b"")
    with pytest.raises(ConfigError, match="version 1 to stay, found that it is being retired"):
        HeldPin(store, 1, run="train")
    assert store.list_keys("pins/") == []
    pin(store, 1, owner="run")
    assert retire(store, keep_newest=1) == (2,)
    unpin(store, 1, owner="run")


def test_a_store_that_may_only_be_read_is_used_without_a_pin(store, monkeypatch, caplog):
    def refuse(self, key, data):
        raise StoreError("read-only")

    monkeypatch.setattr(LocalFolder, "put", refuse)
    held = HeldPin(store, 1, run="train")
    assert "version not pinned version=1 error=read-only" in caplog.text
    held.renew()
    held.close()


class PinnedLate(LocalFolder):
    """A run pins version 1 when retiring has looked for pins and marked it."""

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        if key == retiring_key(1):
            pin(open_location(self.root), 1, owner="late")


def test_a_pin_that_came_before_the_mark_was_seen_keeps_the_version(store):
    assert retire(PinnedLate(store.root), keep_newest=1) == (2,)
    assert read_version(store, 1).version == 1
    assert store.list_keys("retiring/") == []


@pytest.mark.parametrize("owner", ["", "a/b"])
def test_owner_that_is_no_path_component_is_refused(store, owner):
    with pytest.raises(ConfigError, match="owner without '/'"):
        pin(store, 1, owner=owner)
