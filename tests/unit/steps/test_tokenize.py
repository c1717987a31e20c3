import hashlib
import os
from pathlib import Path

import pytest

from megapack.errors import ConfigError, DataError
from megapack.records.drops import DropReason
from megapack.steps.split import list_sources, split_source
from megapack.steps.tables import committed, parts
from megapack.steps.tokenize import tokenize_part
from megapack.store.document_frames import frame_to_documents, frame_to_drops
from megapack.store.manifest import PartKind
from tests.support.prepare_jobs import line, plain_line, prepare_job


def split_one(job):
    return split_source(job, list_sources(job)[0])


def documents(ref):
    return [
        document
        for part, frame in parts(committed(ref), PartKind.DOCUMENTS)
        for document in frame_to_documents(frame, where=part.key)
    ]


def write(tmp_path, *lines):
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines))
    return source


def test_documents_stand_with_counts_formats_and_parents(tmp_path):
    job = prepare_job(tmp_path, write(tmp_path, plain_line(1), line(("user", "w3"))))
    source = split_one(job)
    ref = tokenize_part(job, source, 0)
    (document,) = documents(ref)
    assert document.tokens.tolist() == [3, 9, 5, 4, 10, 11, 5]
    assert document.target_runs.tolist() == [4, 7]
    version = committed(ref)
    assert version.manifest.count("kept") == version.manifest.count("documents") == 1
    assert version.manifest.counts["target_tokens"] == 3
    assert version.manifest.parents["conversations"] == source.digest
    ((_, frame),) = parts(version, PartKind.DOCUMENTS)
    assert frame["format"].to_list() == ["chat_template"]
    ((_, drops),) = parts(version, PartKind.DROPS)
    assert [(d.reason, d.line) for d in frame_to_drops(drops)] == [
        (DropReason.NOTHING_SUPERVISED, 1)
    ]
    assert (ref.num_records, ref.num_dropped, ref.num_parts) == (1, 1, 1)


def test_parts_are_tokenized_one_by_one(tmp_path):
    lines = [plain_line(i) for i in range(5)]
    job = prepare_job(tmp_path, write(tmp_path, *lines), records_per_shard=2)
    source = split_one(job)
    refs = [tokenize_part(job, source, index) for index in range(source.num_parts)]
    assert [document.line for ref in refs for document in documents(ref)] == list(range(5))
    with pytest.raises(ConfigError, match="expected a part index below 3, found 3"):
        tokenize_part(job, source, 3)


def test_second_call_reuses_and_other_settings_do_not(tmp_path):
    job = prepare_job(tmp_path, write(tmp_path, plain_line(1)))
    source = split_one(job)
    first = tokenize_part(job, source, 0)
    assert tokenize_part(job, source, 0) == first.model_copy(update={"reused": True})
    for changes in (
        {"tokenize": {"long_documents": "drop", "loss_on": "all"}},
        {"tokenize": {"long_documents": "split"}},
        {"pack": {"row_length": 128}},
    ):
        other = prepare_job(tmp_path, tmp_path / "a.jsonl", **changes)
        assert tokenize_part(other, source, 0).uri != first.uri
    repacked = prepare_job(
        tmp_path, tmp_path / "a.jsonl", pack={"row_length": 64, "seed": 5}, validation_fraction=0.5
    )
    assert tokenize_part(repacked, source, 0).reused


def test_changed_tokenizer_is_not_reused(tmp_path):
    job = prepare_job(tmp_path, write(tmp_path, plain_line(1)))
    source = split_one(job)
    first = tokenize_part(job, source, 0)
    template = Path(job.tokenizer) / "chat_template.jinja"
    template.write_text(template.read_text() + "{{ '<eot>' }}")
    second = tokenize_part(job, source, 0)
    assert not second.reused
    assert documents(second)[0].num_tokens == documents(first)[0].num_tokens + 1


def test_equal_input_gives_equal_bytes_at_any_batch_and_store(tmp_path, monkeypatch):
    source = write(tmp_path, *(plain_line(i % 9) for i in range(20)))
    keys = []
    for store, batch in (("one", 256), ("two", 3)):
        monkeypatch.setattr("megapack.steps.tokenize._BATCH", batch)
        job = prepare_job(tmp_path, source, store=str(tmp_path / store))
        version = committed(tokenize_part(job, split_one(job), 0))
        keys.append([part.key for part in version.manifest.parts])
    assert keys[0] == keys[1]


def test_progress_counts_conversations(tmp_path):
    job = prepare_job(tmp_path, write(tmp_path, plain_line(1), plain_line(2)))
    seen = []
    tokenize_part(job, split_one(job), 0, on_progress=seen.append)
    assert seen == [2]


def test_damaged_part_is_refused(tmp_path):
    job = prepare_job(tmp_path, write(tmp_path, plain_line(1)))
    source = split_one(job)
    (part,) = committed(source).manifest.parts
    path = Path(source.uri) / part.key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    os.chmod(path, 0o644)  # noqa: PTH101
    path.write_bytes(data)
    assert hashlib.sha256(path.read_bytes()).hexdigest() != part.sha256
    with pytest.raises(DataError, match=part.sha256[:12]):
        tokenize_part(job, source, 0)


def test_error_policy_stops_the_step(tmp_path):
    long = line(("user", "w1"), ("assistant", " ".join(["w2"] * 100)))
    job = prepare_job(tmp_path, write(tmp_path, long), tokenize={"long_documents": "error"})
    with pytest.raises(DataError, match=r"a.jsonl:1 .* at most 65 tokens, found 105"):
        tokenize_part(job, split_one(job), 0)
