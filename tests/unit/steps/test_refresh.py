import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import megapack.steps.dataset_version as writing
import megapack.steps.refresh as step
import megapack.steps.source_reading as reading
from megapack.errors import DataError, StoreError
from megapack.jobs.refresh import RefreshMode
from megapack.steps.audit import audit
from megapack.steps.refresh import refresh
from megapack.steps.tables import committed, parts
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.retention import collect
from megapack.store.sinks import RowSink
from megapack.store.versions import latest_version
from tests.support.chain import prepared, refreshed
from tests.support.documents import conversations_ref, documents_table, make_document, pack_job
from tests.support.prepare_jobs import line, plain_line, prepare_job


def write(path, numbers):
    Path(path).write_text("".join(f"{plain_line(number)}\n" for number in numbers))


def held(ref):
    """How often each document of each source stands in a dataset."""
    return Counter(
        pair
        for _, frame in parts(committed(ref), PartKind.ROWS)
        for ids, sources in frame.select("document_ids", "sources").iter_rows()
        for pair in zip(ids, sources, strict=True)
    )


def row_parts(ref):
    return [part.key for part in committed(ref).manifest.parts_of(PartKind.ROWS)]


def changes_of(ref):
    return committed(ref).manifest.changes


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "a.jsonl", range(12))
    write(folder / "b.jsonl", range(12, 24))
    return folder


def job_over(tmp_path, folder, **changes):
    return prepare_job(tmp_path, {"uri": str(folder), "name": "chats"}, **changes)


def test_nothing_new_is_no_new_version(tmp_path, sources):
    job = job_over(tmp_path, sources)
    first = prepared(job)
    again = refreshed(job)
    assert (again.reused, again.version, again.digest) == (True, 1, first.digest)
    assert latest_version(first.uri) == 1


def test_first_refresh_makes_the_version_of_a_full_preparation(tmp_path, sources):
    job = job_over(tmp_path, sources)
    first = refreshed(job)
    assert first.digest == prepared(job_over(tmp_path / "other", sources)).digest
    assert changes_of(first).because == ("there is no version yet",)
    assert (changes_of(first).documents_added, len(changes_of(first).files.new)) == (24, 2)
    assert prepared(job).reused


def test_touched_and_renamed_files_are_not_read_again(tmp_path, sources, monkeypatch):
    job = job_over(tmp_path, sources)
    first = prepared(job)
    os.utime(sources / "a.jsonl", ns=(1, 1))
    (sources / "b.jsonl").rename(sources / "c.jsonl")
    monkeypatch.setattr(reading, "read_records", pytest.fail)
    again = refreshed(job)
    assert (again.reused, again.version, again.digest) == (True, 1, first.digest)


def test_renamed_file_and_a_new_one_under_its_old_name_are_both_named(tmp_path, sources):
    job = job_over(tmp_path, sources)
    prepared(job)
    (sources / "b.jsonl").rename(sources / "c.jsonl")
    write(sources / "b.jsonl", range(24, 30))
    second = refreshed(job)
    files = committed(second).manifest.files
    assert sorted(Path(uri).name for uri in files) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert len(set(files.values())) == 3
    found = changes_of(second).files
    assert [Path(uri).name for uri in found.changed] == ["b.jsonl"]
    assert (found.new, found.removed, found.unchanged) == ((), (), 2)


def test_new_file_is_packed_beside_the_rows_that_stand(tmp_path, sources, monkeypatch):
    job = job_over(tmp_path, sources, validation_fraction=0.2)
    first = prepared(job)
    write(sources / "c.jsonl", range(24, 30))
    seen = []
    real = reading.read_records
    monkeypatch.setattr(reading, "read_records", lambda file: seen.append(file.uri) or real(file))
    second = refreshed(job)
    assert [Path(uri).name for uri in seen] == ["c.jsonl"]
    assert (second.version, second.reused) == (2, False)
    assert row_parts(second)[: len(row_parts(first))] == row_parts(first)
    assert held(second) == held(prepared(job_over(tmp_path / "full", sources)))
    found = changes_of(second)
    assert (found.base, found.because) == (1, ())
    assert [Path(uri).name for uri in found.files.new] == ["c.jsonl"]
    assert (found.files.unchanged, found.files.changed, found.files.removed) == (2, (), ())
    assert (found.documents_added, found.documents_removed) == (6, 0)
    assert (found.documents_kept, found.documents_repacked) == (24, 0)
    assert found.parts_kept == len(row_parts(first))
    assert found.parts_new == len(row_parts(second)) - found.parts_kept
    assert found.parts_dissolved == 0
    assert audit(second).violations == ()
    assert refreshed(job).reused


def test_changed_file_dissolves_only_the_part_that_held_it(tmp_path, sources):
    job = job_over(tmp_path, sources, validation_fraction=0.0)
    prepared(job)
    write(sources / "c.jsonl", range(24, 30))
    second = refreshed(job)
    write(sources / "c.jsonl", range(25, 33))
    third = refreshed(job)
    assert row_parts(third)[0] == row_parts(second)[0]
    assert row_parts(third)[1] != row_parts(second)[1]
    found = changes_of(third)
    assert [Path(uri).name for uri in found.files.changed] == ["c.jsonl"]
    assert (found.documents_added, found.documents_removed) == (3, 1)
    assert (found.documents_kept, found.documents_repacked) == (24, 5)
    assert (found.parts_kept, found.parts_new, found.parts_dissolved) == (1, 1, 1)
    (sources / "c.jsonl").unlink()
    fourth = refreshed(job)
    assert row_parts(fourth) == row_parts(second)[:1]
    assert changes_of(fourth).documents_removed == 8
    assert [audit(ref).violations for ref in (second, third, fourth)] == [(), (), ()]


def test_unusable_line_makes_a_version_that_counts_it_and_shares_all_rows(tmp_path, sources):
    job = job_over(tmp_path, sources)
    first = prepared(job)
    with (sources / "b.jsonl").open("a") as file:
        file.write("{broken\n")
    second = refreshed(job)
    assert second.version == 2
    assert row_parts(second) == row_parts(first)
    assert committed(second).manifest.count("documents_in") == 25
    assert audit(second).violations == ()
    assert refreshed(job).reused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pack": {"row_length": 32}}, "row_length: 64 -> 32"),
        ({"pack_for": {"context_parallel_size": 2}}, "segment_granularity: 1 -> 4"),
        ({"validation_fraction": 0.5}, "validation_fraction: 0.02 -> 0.5"),
        (
            {"tokenize": {"long_documents": "drop", "loss_on": "all"}},
            "tokenize.loss_on: assistant -> all",
        ),
        (
            {"tokenize": {"long_documents": "drop", "format": "identity"}},
            "format of source chats: chat_template -> identity",
        ),
    ],
)
def test_changed_recipe_packs_all_anew_and_says_why(tmp_path, sources, change, reason):
    prepared(job_over(tmp_path, sources))
    second = refreshed(job_over(tmp_path, sources, **change))
    assert second.version == 2
    assert reason in changes_of(second).because
    assert f"packed anew because: {reason}" in changes_of(second).lines()
    assert changes_of(second).documents_kept == 0
    assert second.digest == prepared(job_over(tmp_path / "full", sources, **change)).digest


def test_other_tokenizer_packs_all_anew_and_says_why(tmp_path, sources):
    job = job_over(tmp_path, sources)
    prepared(job)
    template = Path(job.tokenizer) / "chat_template.jinja"
    template.write_text(template.read_text().replace("<sys>", "<tool>"))
    (reason,) = changes_of(refreshed(job)).because
    assert reason.startswith("tokenizer_digest: ")


def test_compact_gives_the_rows_of_a_full_preparation(tmp_path, sources):
    job = job_over(tmp_path, sources)
    prepared(job)
    write(sources / "c.jsonl", range(24, 30))
    refreshed(job)
    compacted = refreshed(job, mode=RefreshMode.COMPACT)
    assert (compacted.version, changes_of(compacted).because) == (3, ("compact was asked for",))
    assert compacted.digest == prepared(job_over(tmp_path / "full", sources)).digest
    assert refreshed(job, mode=RefreshMode.COMPACT).reused


def test_source_under_two_formats_is_packed_anew(tmp_path, sources):
    both = [{"uri": str(sources), "name": "x"}, {"uri": str(sources), "name": "x"}]
    both[1]["format"] = "identity"
    job = prepare_job(tmp_path, *both)
    prepared(job)
    write(sources / "c.jsonl", [30])
    (reason,) = changes_of(refreshed(job)).because
    assert reason == "source x is read under several formats (chat_template,identity)"


def test_missing_object_is_written_again(tmp_path, sources):
    job = job_over(tmp_path, sources)
    first = prepared(job)
    open_location(first.uri).delete(row_parts(first)[0])
    again = refreshed(job)
    assert (again.version, again.digest, again.reused) == (1, first.digest, True)
    assert audit(again).violations == ()


def test_missing_object_and_new_documents_pack_all_anew(tmp_path, sources):
    job = job_over(tmp_path, sources)
    first = prepared(job)
    open_location(first.uri).delete(row_parts(first)[0])
    write(sources / "c.jsonl", [30])
    second = refreshed(job)
    assert changes_of(second).because == ("objects of version 1 are gone",)
    assert second.digest == prepared(job_over(tmp_path / "full", sources)).digest


def test_refresh_without_a_training_document_publishes_nothing(tmp_path, sources):
    job = job_over(tmp_path, sources)
    first = prepared(job)
    for path in sources.iterdir():
        path.write_text(line(("user", "w1"), ("assistant", "w2 " * 90)) + "\n")
    with pytest.raises(DataError, match="found none placed"):
        refreshed(job)
    assert latest_version(first.uri) == 1


def test_refresh_that_was_overtaken_plans_again_on_the_winner(tmp_path, sources, monkeypatch):
    job = job_over(tmp_path, sources)
    prepared(job)
    write(sources / "c.jsonl", range(24, 30))
    real = step.write_version
    others = [{"pack": {"row_length": 64, "seed": 1}}, {}]

    def overtaken(*arguments, **options):
        contents = real(*arguments, **options)
        if others:
            prepared(job_over(tmp_path, sources, **others.pop()))
        return contents

    monkeypatch.setattr(step, "write_version", overtaken)
    ref = refreshed(job)
    # The first attempt met a full preparation of the same documents, which serves.
    assert (ref.version, ref.reused) == (2, True)
    write(sources / "d.jsonl", [31])
    ref = refreshed(job)
    # This one met a preparation by another recipe, and packed on top of it.
    assert (ref.version, ref.reused) == (4, False)
    assert changes_of(ref).because == ("pack.seed: 1 -> 0",)
    assert audit(ref).violations == ()


def test_refresh_gives_up_when_others_keep_committing(tmp_path, sources, monkeypatch):
    def overtaken(*_):
        raise step._OvertakenError

    monkeypatch.setattr(step, "_refresh_once", overtaken)
    with pytest.raises(StoreError, match="Let one writer at a time publish"):
        refreshed(job_over(tmp_path, sources))


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    nights=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=14), min_size=2, max_size=4)
)
def test_any_history_holds_exactly_the_documents_that_there_are(tmp_path_factory, nights):
    """Documents may repeat, come back and vanish; every version is whole and stays readable."""
    folder = tmp_path_factory.mktemp("history")
    job = pack_job(folder, validation_fraction=0.3)
    versions = []
    with pytest.MonkeyPatch.context() as patch:
        # Parts of one row group each, which is one row here: many parts from little data.
        patch.setattr(writing, "RowSink", partial(RowSink, part_bytes=1))
        patch.setattr("megapack.store.schema.GROUP_TOKENS", 1)
        for night, numbers in enumerate(nights):
            documents = [make_document(number, 3 + number) for number in numbers]
            table = documents_table(f"{folder}/d{night}", documents, kept=len(documents))
            source = conversations_ref(f"{folder}/c{night}", len(documents))
            before = held(versions[-1]) if versions else Counter()
            try:
                ref = refresh(job, conversations=[source], documents=[table])
            except DataError:
                continue  # all of the few documents are held out
            wanted = Counter((one.document_id, one.source) for one in documents)
            assert held(ref) == wanted
            assert audit(ref).violations == ()
            assert ref.reused == (before == wanted)
            if not ref.reused and versions:
                kept = set(row_parts(versions[-1])) & set(row_parts(ref))
                assert changes_of(ref).parts_kept <= len(kept)
                assert changes_of(ref).documents_added == (wanted - before).total()
                assert changes_of(ref).documents_removed == (before - wanted).total()
            versions.append(ref)
        assert not versions or collect(versions[-1].uri, min_age_s=0) >= 0
        for ref in versions:
            assert audit(ref).violations == ()
