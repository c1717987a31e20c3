"""Writers, a collector and readers at once, with lost requests and answers: whole versions only."""

import hashlib
import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megapack.errors import ConfigError, StoreError
from megapack.store.manifest import Contents, Part, PartKind
from megapack.store.manifest_text import parse_manifest
from megapack.store.objects import MissingKeyError
from megapack.store.pins import HeldPin
from megapack.store.retention import collect, retire
from megapack.store.versions import (
    RetiredVersionError,
    commit,
    is_tombstone,
    latest_version,
    read_version,
    version_key,
)
from megapack.store.writer import PART_PREFIX, put_once
from tests.support.faulty_store import Actor, Objects, interleave


def _part(view, data: bytes) -> Part:
    digest = hashlib.sha256(data).hexdigest()
    put_once(view, f"{PART_PREFIX}{digest}", data)
    return Part(key=f"{PART_PREFIX}{digest}", size=len(data), sha256=digest, kind=PartKind.FILE)


def _write(view, name: str, acknowledged: list, count: int = 4) -> None:
    """Commits of a part that all versions share, one of this writer and one of this commit."""
    for number in range(count):
        for _ in range(4):  # as a task is retried
            try:
                parts = [
                    _part(view, data) for data in (b"all", name.encode(), f"{number // 2}".encode())
                ]
                view._actor.still = True
                made = commit(view, Contents(schema_id="x", kind="test", parts=parts).manifest())
            except StoreError:
                continue
            finally:
                view._actor.still = False
            acknowledged.append((made.version, made.manifest.commit_token))
            break


def _collect(view) -> None:
    for _ in range(5):
        for work in (lambda: retire(view, keep_newest=1), lambda: collect(view)):
            try:
                view._actor.still = True
                work()
            except StoreError:
                continue
            finally:
                view._actor.still = False


def _again(work):
    """The answer of the store, asked until it comes."""
    while True:
        try:
            return work()
        except MissingKeyError:
            raise
        except StoreError:
            continue


def _check_whole(view, committed) -> None:
    for part in committed.manifest.parts:
        data = _again(lambda key=part.key: view.get(key))
        assert hashlib.sha256(data).hexdigest() == part.sha256


def _read(view) -> None:
    """Without a pin: a whole version, or an error that only a retired version gives."""
    for _ in range(6):
        try:
            committed = read_version(view)
            _check_whole(view, committed)
        except MissingKeyError:
            key = version_key(committed.version)
            assert is_tombstone(_again(lambda key=key: view.get(key)))
        except (ConfigError, StoreError):
            continue


def _read_pinned(view) -> None:
    """What was pinned and then read stays until it is unpinned."""
    for _ in range(4):
        try:
            version = latest_version(view)
            held = HeldPin(view, version, run="run") if version else None
        except (ConfigError, StoreError):
            continue
        if held is None or held._held is None:
            continue
        try:
            committed = _again(lambda version=version: read_version(view, version))
        except RetiredVersionError:
            held.close()
            continue
        for _ in range(3):
            _check_whole(view, committed)
        held.close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr("megapack.store.versions._BACKOFF_S", 0.0)


def _turns(draw: random.Random, *, patience: float):
    """Whose turn it is: an actor keeps it for a while, so that others find its work half done."""
    actor = 0
    while True:
        if draw.random() > patience:
            actor = draw.randrange(60)
        yield actor


def _hours(draw: random.Random):
    while True:
        yield draw.choice([5.0, 13.0, 25.0]) if draw.random() < 0.02 else 0.0


def _failures(draw: random.Random, *, often: float):
    while True:
        yield draw.choice(["before", "after"]) if draw.random() < often else ""


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.7, 0.95]), st.sampled_from([0.0, 0.02, 0.1]))
def test_readers_see_whole_versions_whatever_happens_when(seed, patience, often):
    objects, acknowledged = Objects(), []
    draw = random.Random(seed)
    actors = [
        Actor(objects, lambda view: _write(view, "a", acknowledged), "a"),
        Actor(objects, lambda view: _write(view, "b", acknowledged), "b"),
        Actor(objects, _collect, "collector"),
        Actor(objects, _read, "reader"),
        Actor(objects, _read_pinned, "pinned reader"),
    ]
    for actor in actors:
        actor.failures = _failures(random.Random(draw.random()), often=often)
    interleave(objects, actors, _turns(draw, patience=patience), _hours(draw))
    _check_end(objects, acknowledged)


def _check_end(objects: Objects, acknowledged: list) -> None:
    """Numbers have no gaps, every acknowledged version stands, and what stands is whole."""
    numbers = sorted(key for key in objects.held if key.startswith("versions/"))
    assert numbers == [version_key(number + 1) for number in range(len(numbers))]
    standing = [objects.held[key][0] for key in numbers]
    for version, token in acknowledged:
        assert token in standing[version - 1].decode()
    assert len({version for version, _ in acknowledged}) == len(acknowledged)
    tokens = [json.loads(data)["commit_token"] for data in standing]
    assert len(set(tokens)) == len(tokens)
    for data in standing:
        if not is_tombstone(data):
            for part in parse_manifest(data, where="end").parts:
                assert hashlib.sha256(objects.held[part.key][0]).hexdigest() == part.sha256
