import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import megapack.steps.pack as pack_step
from megapack.errors import ContractError, DataError
from megapack.jobs.pipeline import dataset_uri
from megapack.packing.sides import is_held_out
from megapack.records.drops import Drop, DropReason
from megapack.steps.audit import audit
from megapack.steps.pack import pack
from megapack.steps.report import packing_report
from megapack.steps.resolve import resolve_dataset
from megapack.steps.summary import shared_documents
from megapack.store import versions
from megapack.store.location import open_location
from megapack.store.manifest import Contents, PartKind, Split
from megapack.store.reader import open_dataset
from megapack.store.versions import commit, latest_version, read_version
from megapack.store.writer import PartForm, write_part
from tests.support.chain import prepared
from tests.support.documents import (
    conversations_ref,
    documents_table,
    make_document,
    pack_job,
)
from tests.support.prepare_jobs import plain_line, prepare_job

LENGTHS = (7, 32, 33, 34, 1, 5, 12, 9, 30, 3, 3, 17)


def packed(tmp_path, *, documents=None, **changes):
    documents = documents or [make_document(i, n) for i, n in enumerate(LENGTHS)]
    job = pack_job(tmp_path, **changes)
    table = documents_table(str(tmp_path / "documents"), documents, kept=len(documents))
    source = conversations_ref(str(tmp_path / "conversations"), len(documents))
    return job, documents, pack(job, conversations=[source], documents=[table])


def flipped(data):
    """The bytes with one bit of the middle one changed."""
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def rows_of(ref):
    with open_dataset(ref.uri, ref.version) as dataset:
        return [
            row
            for split in (Split.TRAIN, Split.VALIDATION)
            for row in dataset.rows(split, np.arange(dataset.num_rows(split)))
        ]


def test_pack_places_or_drops_every_document(tmp_path):
    _, documents, ref = packed(tmp_path)
    placed = sorted(name for row in rows_of(ref) for name in row.document_ids)
    fitting = [d for d in documents if d.num_tokens <= 33]
    assert placed == sorted(d.document_id for d in fitting)
    report = packing_report(ref)
    assert report.documents_in == len(LENGTHS)
    assert dict(report.drops.documents) == {DropReason.LONGER_THAN_ROW: 1}
    assert dict(report.drops.tokens) == {DropReason.LONGER_THAN_ROW: 34}
    assert ref.num_target_tokens == sum(d.num_target_tokens for d in fitting)


def test_pack_keeps_sides_disjoint_and_stable_when_documents_are_added(tmp_path):
    documents = [make_document(i, 5 + i % 9) for i in range(60)]
    _, _, few = packed(tmp_path / "few", documents=documents[:30])
    _, _, many = packed(tmp_path / "many", documents=documents)

    def side(ref):
        with open_dataset(ref.uri) as dataset:
            held = dataset.rows(Split.VALIDATION, np.arange(dataset.num_rows(Split.VALIDATION)))
            return {name for row in held for name in row.document_ids}

    assert shared_documents(many) == 0
    assert side(few) <= side(many)
    assert side(few)


def test_pack_again_reuses_and_changed_settings_make_a_version(tmp_path):
    job, documents, first = packed(tmp_path)
    _, _, again = packed(tmp_path, documents=documents)
    assert (again.reused, again.version, again.digest) == (True, 1, first.digest)
    _, _, other = packed(tmp_path, documents=documents, pack={"row_length": 32, "seed": 1})
    assert (other.reused, other.version) == (False, 2)
    assert resolve_dataset(other.uri, version=1).digest == first.digest
    assert job.name in other.uri


def test_pack_drops_or_keeps_repeated_documents_as_told(tmp_path):
    documents = [make_document(1, 5), make_document(1, 5), make_document(2, 6)]
    _, _, kept = packed(tmp_path / "keep", documents=documents)
    assert packing_report(kept).documents_placed == 3
    _, _, dropped = packed(
        tmp_path / "drop", documents=documents, pack={"row_length": 32, "duplicates": "drop"}
    )
    assert dict(packing_report(dropped).drops.documents) == {DropReason.DUPLICATE: 1}


def test_pack_carries_drops_of_earlier_steps_with_their_place(tmp_path):
    drop = Drop(reason=DropReason.EMPTY, detail="nothing", uri="f.jsonl", line=9)
    table = documents_table(str(tmp_path / "d"), [make_document(1, 5)], kept=1, drops=[drop])
    source = conversations_ref(str(tmp_path / "c"), 2)
    ref = pack(pack_job(tmp_path), conversations=[source], documents=[table])
    version = read_version(ref.uri)
    assert [part.num_records for part in version.manifest.parts_of(PartKind.DROPS)] == [1]
    assert "dropped reason=empty documents=1" in packing_report(ref).lines()


def test_pack_refuses_when_documents_got_lost(tmp_path):
    table = documents_table(str(tmp_path / "d"), [make_document(1, 5)], kept=1)
    source = conversations_ref(str(tmp_path / "c"), 2)
    with pytest.raises(ContractError, match="2 documents in, but 1 placed"):
        pack(pack_job(tmp_path), conversations=[source], documents=[table])


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
np.random.seed(int(sys.argv[2]))
np.random.rand(int(sys.argv[2]))
from tests.unit.steps.test_pack import packed
print(packed(Path(sys.argv[1]))[2].digest)
"""


def test_pack_is_byte_identical_for_any_hash_seed_and_ambient_state(tmp_path):
    digests = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / seed), seed],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "POLARS_MAX_THREADS": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_audit_passes_on_a_sound_dataset(tmp_path):
    _, _, ref = packed(tmp_path)
    report = audit(ref)
    assert report.violations == ()
    assert report.num_rows == ref.num_rows
    report.check()


@pytest.mark.parametrize("damage", ["altered", "cut", "missing"])
def test_audit_finds_damaged_part_and_goes_on(tmp_path, damage):
    _, _, ref = packed(tmp_path)
    damaged, sound = read_version(ref.uri).manifest.parts_of(PartKind.ROWS)
    location = open_location(ref.uri)
    data = location.get(damaged.key)
    if damage == "missing":
        location.delete(damaged.key)
    else:
        location.put(damaged.key, data[:-1] if damage == "cut" else flipped(data))
    report = audit(ref)
    (violation,) = report.violations
    assert damaged.key in violation
    assert "run the step that writes it again" in violation
    assert report.num_rows == sound.num_records
    assert damage == "missing" or location.stat(damaged.key) is not None


def test_audit_finds_damaged_list_of_drops(tmp_path):
    _, _, ref = packed(tmp_path)
    (part,) = read_version(ref.uri).manifest.parts_of(PartKind.DROPS)
    location = open_location(ref.uri)
    location.put(part.key, flipped(location.get(part.key)))
    (violation,) = audit(ref).violations
    assert part.key in violation


LONG = 33
FULL = replace(make_document(7, LONG), target_runs=np.array([30, 33], np.int32))


def audited(tmp_path, change, *, documents=None, drops=True):
    """Violations of a dataset whose first part of rows was changed."""
    _, _, ref = packed(tmp_path, documents=documents, validation_fraction=0.0)
    manifest = read_version(ref.uri).manifest
    location = open_location(ref.uri)
    (part,) = manifest.parts_of(PartKind.ROWS)
    frame = change(pl.read_parquet(location.parquet_source(part.key).path))
    form = PartForm(schema=None, kind=PartKind.ROWS, split=Split.TRAIN, group_records=100)
    contents = Contents(
        schema_id=manifest.schema_id,
        kind="dataset",
        parts=[
            write_part(location, frame, form=form, counts=part.counts),
            *(manifest.parts_of(PartKind.DROPS) if drops else ()),
        ],
        counts=manifest.counts,
        drops=manifest.drop_ledger(),
        packed=manifest.packed_info(),
    )
    return audit(commit(ref.uri, contents.manifest()).dataset_ref()).violations


def null_in_list(frame):
    ids = frame["document_ids"].to_list()
    ids[0][0] = None
    return frame.with_columns(pl.Series("document_ids", ids, dtype=pl.List(pl.String)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.with_columns(tokens=pl.lit(None, pl.Binary)), "expected no null in tokens"),
        (
            lambda f: f.with_columns(document_ids=pl.lit(None, pl.List(pl.String))),
            "expected no null in document_ids",
        ),
        (null_in_list, "expected no null in document_ids"),
        (lambda f: f.drop("sources"), "sources: absent instead of"),
        (lambda f: f.with_columns(pl.col("cost") + 1), "rows whose cost is not that of their"),
        (lambda f: f.with_columns(pl.col("num_real_tokens") - 1), "rows whose num_real_tokens is"),
        (lambda f: f.with_columns(final_label=pl.lit(5, pl.Int32)), "final_label reached by"),
    ],
)
def test_audit_finds_changed_columns(tmp_path, change, message):
    assert audited(tmp_path / "sound", lambda frame: frame) == ()
    assert any(message in one for one in audited(tmp_path / "wrong", change))


def test_audit_finds_final_label_outside_the_vocabulary(tmp_path):
    def outside(frame):
        return frame.with_columns(final_label=pl.lit(100, pl.Int32))

    assert audited(tmp_path / "sound", lambda frame: frame, documents=[FULL]) == ()
    (violation,) = audited(tmp_path / "wrong", outside, documents=[FULL])
    assert "final_label 100 in [0, 100): expected True, found False" in violation


def test_audit_compares_listed_drops_with_counted_ones(tmp_path):
    (violation,) = audited(tmp_path, lambda frame: frame, drops=False)
    assert violation == "drops listed: expected {'longer_than_row': 1}, found {}"


def test_pack_publishes_nothing_when_no_document_is_placed(tmp_path):
    _, _, good = packed(tmp_path)
    too_long = [make_document(number, 40) for number in range(3)]
    with pytest.raises(DataError) as caught:
        packed(tmp_path, documents=too_long)
    message = str(caught.value)
    assert "found none placed; dropped: longer_than_row 3. No version was committed." in message
    assert "first longer_than_row: f.jsonl:1: expected at most row_length + 1 = 33" in message
    assert latest_version(good.uri) == 1


def test_pack_publishes_nothing_when_the_training_side_is_empty(tmp_path):
    _, _, good = packed(tmp_path)
    documents = [make_document(number, 5) for number in range(20)]
    held = [one for one in documents if is_held_out(one.document_id, 0.25)]
    assert held
    with pytest.raises(DataError, match=r"on the validation side \(validation_fraction = 0.25\)"):
        packed(tmp_path, documents=held)
    assert latest_version(good.uri) == 1


def test_pack_refuses_when_no_document_came_in(tmp_path):
    source = conversations_ref(str(tmp_path / "c"), 0)
    with pytest.raises(DataError, match="found no record at all in "):
        pack(pack_job(tmp_path), conversations=[source], documents=[])


def test_pack_that_loses_the_race_to_its_twin_returns_that_version(tmp_path, monkeypatch):
    documents = [make_document(i, n) for i, n in enumerate(LENGTHS)]
    take = versions._take

    def raced(location, version, manifest):
        twin = manifest.model_copy(update={"commit_token": "twin"})
        if manifest.kind == "dataset":
            take(location, version, twin)
        return take(location, version, manifest)

    monkeypatch.setattr(versions, "_take", raced)
    _, _, ref = packed(tmp_path, documents=documents)
    job = pack_job(tmp_path)
    assert (ref.version, ref.reused) == (1, True)
    assert latest_version(dataset_uri(job)) == 1


def test_pack_returns_what_its_twin_committed_in_the_meantime(tmp_path, monkeypatch):
    documents = [make_document(i, n) for i, n in enumerate(LENGTHS)]
    real = pack_step.gather

    def overtaken(conversations, tables):
        monkeypatch.setattr(pack_step, "gather", real)
        pack(pack_job(tmp_path), conversations=conversations, documents=tables)
        return real(conversations, tables)

    monkeypatch.setattr(pack_step, "gather", overtaken)
    _, _, ref = packed(tmp_path, documents=documents)
    assert (ref.version, ref.reused, latest_version(ref.uri)) == (1, True, 1)


def test_audit_lists_what_is_wrong(tmp_path):
    """A dataset whose manifest promises another vocabulary and pad id, and other counts."""
    _, _, ref = packed(tmp_path)
    manifest = read_version(ref.uri).manifest
    info = manifest.packed_info().model_copy(update={"vocab_size": 40, "pad_id": 3})
    contents = Contents(
        schema_id=manifest.schema_id,
        kind=manifest.kind,
        parts=manifest.parts,
        counts={**manifest.counts, "num_target_tokens": 1, "documents_in": 99},
        drops=manifest.drop_ledger(),
        packed=info,
    )
    wrong = commit(ref.uri, contents.manifest()).dataset_ref()
    report = audit(wrong)
    text = "\n".join(report.violations)
    assert "token ids outside [0, 40)" in text
    assert "padding positions that do not hold pad id 3" in text
    assert "manifest num_target_tokens" in text
    assert "documents in = placed + dropped: expected 99" in text
    with pytest.raises(DataError, match=r"violations:\n"):
        report.check()


def test_audit_finds_document_on_both_sides(tmp_path):
    _, _, ref = packed(tmp_path)
    manifest = read_version(ref.uri).manifest
    train = manifest.parts_of(PartKind.ROWS, Split.TRAIN)
    twin = [part.model_copy(update={"split": Split.VALIDATION}) for part in train]
    contents = Contents(
        schema_id=manifest.schema_id,
        kind="dataset",
        parts=[*train, *twin],
        counts=dict(manifest.counts),
        drops=manifest.drop_ledger(),
        packed=manifest.packed_info(),
    )
    report = audit(commit(ref.uri, contents.manifest()).dataset_ref())
    assert any(one.startswith("documents on both sides") for one in report.violations)


def test_document_of_row_length_plus_one_keeps_its_last_target(tmp_path):
    document = make_document(7, 33)
    supervised_end = replace(document, target_runs=np.array([30, 33], np.int32))
    _, _, ref = packed(tmp_path, documents=[supervised_end], validation_fraction=0.0)
    (row,) = rows_of(ref)
    assert row.final_label == int(supervised_end.tokens[-1])
    assert row.labels()[-3:].tolist() == supervised_end.tokens[-3:].tolist()
    assert audit(ref).violations == ()


def test_pack_again_when_an_object_is_gone(tmp_path):
    _, documents, first = packed(tmp_path)
    location = open_location(first.uri)
    part = read_version(first.uri).manifest.parts_of(PartKind.ROWS)[0]
    location.delete(part.key)
    _, _, again = packed(tmp_path, documents=documents)
    assert (again.reused, again.version, again.digest) == (False, 2, first.digest)
    assert audit(again).violations == ()


def test_rows_do_not_depend_on_how_sources_are_cut_into_shards(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text("".join(f"{plain_line(number)}\n" for number in range(40)))
    digests = {
        prepared(prepare_job(tmp_path, source, records_per_shard=size, name=f"by-{size}")).digest
        for size in (1, 7, 2000)
    }
    assert len(digests) == 1
