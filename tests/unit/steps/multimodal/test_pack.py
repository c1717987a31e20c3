"""A stream in a store: the same rows, the same version after any stop, and nothing read twice."""

import os
import time
from dataclasses import fields

import numpy as np
import pytest

from megapack.errors import ConfigError, StoreError
from megapack.multimodal.assemble import assemble
from megapack.records.rejects import RejectReason
from megapack.steps.multimodal import pack as packing
from megapack.steps.multimodal.pack import pack_multimodal
from megapack.steps.multimodal.stored import open_multimodal
from megapack.steps.multimodal.stream import MultimodalStream
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.multimodal_parts import RowPart
from megapack.store.retention import collect
from megapack.store.shard_log import SHARD_PREFIX, ShardLog
from megapack.store.versions import latest_version, read_version
from megapack.store.writer import COLLECT_AFTER_S
from tests.support.shapes_rows import pack_job, same_row


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return pack_job(tmp_path_factory.mktemp("shapes"), epochs=2)


@pytest.fixture(scope="module")
def packed(job):
    return pack_multimodal(job)


def in_store(job, folder):
    return job.model_copy(update={"store": str(folder)})


def test_stored_rows_are_those_of_the_stream_in_every_field(job, packed):
    stored = open_multimodal(job.store)
    expected = [
        (epoch, assemble(row.laid, stored.rules))
        for epoch in range(2)
        for row in MultimodalStream(job.stream, epoch=epoch)
    ]
    assert stored.num_rows == packed.num_rows == len(expected) > 6
    for number, (epoch, row) in enumerate(expected):
        assert stored.reader.row(number).epoch == epoch
        assert same_row(stored.row(number), row), number
    assert packed.num_tokens == sum(row.length for _, row in expected)


def test_the_ledger_counts_every_sample_and_the_rejects_are_listed(packed):
    manifest = read_version(packed.uri).manifest
    ledger = manifest.multimodal_info().ledger
    assert all(ledger.held(group) == 0 for group in ledger.drawn)
    assert ledger.rejected["text_to_image"][RejectReason.UNREADABLE_IMAGE] == 2
    assert ledger.rejected["understanding"][RejectReason.MISSING_IMAGE] == 2
    listed = sum(part.num_records for part in manifest.parts_of(PartKind.MULTIMODAL_REJECTS))
    assert listed == manifest.count("samples_rejected") >= 10
    assert manifest.count("samples_in") == packed.num_samples + listed


def test_the_same_job_reads_nothing_again_and_moved_files_are_the_same(
    job, packed, tmp_path, monkeypatch
):
    monkeypatch.setattr(packing, "MultimodalStream", None)
    again = pack_multimodal(job)
    assert again.reused
    assert again.version == packed.version
    assert again.digest == packed.digest
    changed = job.model_copy(update={"epochs": 1})
    with pytest.raises(TypeError):
        pack_multimodal(changed)


def test_files_that_stand_elsewhere_make_the_same_version_with_its_rejects(packed, tmp_path):
    elsewhere = pack_multimodal(pack_job(tmp_path / "another" / "folder", epochs=2))
    assert not elsewhere.reused
    assert elsewhere.digest == packed.digest


def test_an_older_version_of_the_same_job_becomes_the_newest(job, tmp_path, monkeypatch):
    first = in_store(job, tmp_path)
    one_epoch = first.model_copy(update={"epochs": 1})
    versions = [pack_multimodal(one_epoch), pack_multimodal(first)]
    assert not any(ref.reused for ref in versions)
    monkeypatch.setattr(packing, "MultimodalStream", None)
    back = pack_multimodal(one_epoch)
    assert (back.version, back.reused, back.digest) == (3, True, versions[0].digest)


class Killed(BaseException):
    """What a kill is to Python code: nothing catches it."""


@pytest.mark.parametrize("share", [0.0, 0.35, 0.6, 1.0])
def test_a_run_that_is_killed_anywhere_ends_with_the_same_version(job, packed, tmp_path, share):
    own = in_store(job, tmp_path)
    total = read_version(packed.uri).manifest.count("samples_in")

    def kill(done):
        if done >= share * total:
            raise Killed

    with pytest.raises(Killed):
        pack_multimodal(own, on_samples=kill)
    location = open_location(f"{tmp_path}/datasets/shapes")
    assert latest_version(location) == 0
    finished = len(location.list_keys(SHARD_PREFIX))
    counted = []
    assert pack_multimodal(own, on_samples=counted.append).digest == packed.digest
    assert location.list_keys(SHARD_PREFIX) == []
    assert counted[-1] == total if finished == 0 else counted[-1] < total
    settings = [read_version(uri).manifest.settings for uri in (location.uri, packed.uri)]
    assert settings[0]["statistics"] == settings[1]["statistics"]


def test_a_failing_store_at_each_shard_costs_one_part(job, packed, tmp_path, monkeypatch):
    """A record is lost or written and the answer lost, again and again."""
    own = in_store(job, tmp_path)
    record, calls = ShardLog.record, 0

    def failing(self, number, parts, *, state=""):
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            record(self, number, parts, state=state)
        if calls % 3:
            return record(self, number, parts, state=state)
        raise StoreError("the answer was lost")

    monkeypatch.setattr(ShardLog, "record", failing)
    failures = 0
    while True:
        try:
            ref = pack_multimodal(own)
            break
        except StoreError:
            failures += 1
            assert failures < 10
    assert failures >= 1
    assert ref.digest == packed.digest


def test_collection_spares_a_version_and_parts_of_a_run_that_was_stopped(job, tmp_path):
    own = in_store(job, tmp_path)

    def kill(done):
        if done > 30:
            raise Killed

    with pytest.raises(Killed):
        pack_multimodal(own, on_samples=kill)
    location = open_location(f"{tmp_path}/datasets/shapes")
    parts = {one.key: one.age_s for one in location.list_keys("parts/")}
    assert parts
    long_ago = time.time() - 3 * COLLECT_AFTER_S
    for key in parts:
        os.utime(f"{location.uri}/{key}", (long_ago, long_ago))
    assert collect(location) == 0
    assert pack_multimodal(own).num_rows > 6
    assert collect(location, min_age_s=0.0) == 0
    # Nor is what was recorded uploaded once more by the commit.
    ages = {one.key: one.age_s for one in location.list_keys("parts/")}
    assert all(ages[key] > 2 * COLLECT_AFTER_S for key in parts)


def test_a_sample_that_got_lost_is_no_version(job, tmp_path, monkeypatch):
    add = RowPart.add
    monkeypatch.setattr(
        RowPart, "add", lambda self, row: add(self, row) if row.epoch == 0 else None
    )
    with pytest.raises(Exception, match="samples in rows"):
        pack_multimodal(in_store(job, tmp_path))
    assert latest_version(f"{tmp_path}/datasets/shapes") == 0


def test_other_kinds_of_versions_are_refused(packed, tmp_path):
    with pytest.raises(ConfigError, match="packed dataset, found a version of kind 'multimodal'"):
        read_version(packed.uri).manifest.packed_info()
    with pytest.raises(ConfigError, match="no version at all"):
        open_multimodal(str(tmp_path))


def test_same_row_sees_a_difference(packed):
    """The comparison that the other tests rest on."""
    stored = open_multimodal(packed.uri)
    row = stored.row(0)
    assert same_row(row, stored.row(0))
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, np.ndarray) and value.size:
            other = type(row)(**{f.name: getattr(row, f.name) for f in fields(row)} | {
                field.name: value.astype(np.float64)
            })  # fmt: skip
            assert not same_row(row, other), field.name
