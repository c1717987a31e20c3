"""Loss switches and formats of sources, from files to packed rows."""

import pytest

from megapack.layout.runs import mask_of_runs
from megapack.steps.audit import audit
from megapack.steps.pack import pack
from megapack.steps.split import list_sources, split_source
from megapack.steps.tables import committed, parts
from megapack.steps.tokenize import tokenize_part
from megapack.store.document_frames import frame_to_documents
from megapack.store.manifest import PartKind
from tests.support.prepare_jobs import WORDS, line, prepare_job
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    SPECIALS,
    save_tokenizer,
    words_tokenizer,
)

LINES = [
    line(
        ("user", f"w{i}"), ("assistant", f"w{i + 10}"), ("user", "w0"), ("assistant", f"w{i + 20}")
    )
    for i in range(1, 4)
]


def prepared(job):
    """The tables of a job and the packed dataset."""
    sources = [split_source(job, shard) for shard in list_sources(job)]
    tables = [tokenize_part(job, ref, at) for ref in sources for at in range(ref.num_parts)]
    return tables, pack(job, conversations=sources, documents=tables)


def documents(tables):
    return [
        document
        for table in tables
        for part, frame in parts(committed(table), PartKind.DOCUMENTS)
        for document in frame_to_documents(frame, where=part.key)
    ]


@pytest.mark.parametrize(
    ("turns", "targets"),
    [("all", [19, 5, 29, 5]), ("last", [29, 5]), ("none", [])],
)
def test_turns_of_the_job_reach_the_packed_rows(tmp_path, turns, targets):
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(LINES))
    job = prepare_job(
        tmp_path, source, tokenize={"long_documents": "drop", "loss_turns": turns},
        validation_fraction=0.0,
    )  # fmt: skip
    tables, dataset = prepared(job)
    made = documents(tables)
    assert len(made) == len(LINES)
    first = made[0]
    learnt = first.tokens[mask_of_runs(first.target_runs, first.num_tokens)].tolist()
    assert learnt == targets
    recorded = committed(tables[0]).manifest.settings["tokenize"]
    assert (recorded["loss_on"], recorded["loss_turns"]) == ("assistant", turns)
    assert not audit(dataset).violations
    assert dataset.num_target_tokens == len(targets) * len(LINES)


def test_one_file_under_two_formats_is_two_sources_each_with_its_own_ids(tmp_path):
    specials = ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", *SPECIALS)
    source = tmp_path / "a.jsonl"
    source.write_text(LINES[0])
    job = prepare_job(
        tmp_path,
        {"uri": str(source), "format": "nemotron-h-aligned", "name": "h"},
        {"uri": str(source), "format": "nemotron-nano-v2", "name": "nano"},
        validation_fraction=0.0,
    )
    words = words_tokenizer(f"{WORDS} User Assistant", specials=specials)
    save_tokenizer(words, job.tokenizer, template=MARKED_TEMPLATE)
    tables, dataset = prepared(job)
    one, other = documents(tables)
    end = words.token_to_id("<SPECIAL_12>")
    assert [one.source, other.source] == ["h", "nano"]
    assert end not in one.tokens
    assert (other.tokens == end).sum() == 2
    assert [
        frame["format"].to_list()
        for table in tables
        for _, frame in parts(committed(table), PartKind.DOCUMENTS)
    ] == [["nemotron-h-aligned"], ["nemotron-nano-v2"]]
    assert dataset.num_target_tokens == one.num_target_tokens + other.num_target_tokens
