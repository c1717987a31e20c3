"""Blends, rows as given and streaming, through the whole pack step."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from megapack.errors import ConfigError, DataError
from megapack.packing.sides import is_held_out
from megapack.records.drops import DropReason
from megapack.steps.audit import audit
from megapack.steps.pack import pack
from megapack.steps.tables import committed, parts
from megapack.store.document_frames import frame_to_drops
from megapack.store.manifest import PartKind, Split
from megapack.store.reader import open_dataset
from tests.support.documents import conversations_ref, documents_table, make_document, pack_job
from tests.support.prepare_jobs import plain_line, prepare_job
from tests.support.prepared import prepare

SOURCES = [{"uri": "a.jsonl", "name": "a"}, {"uri": "b.jsonl", "name": "b"}]


def made(number, length, *, source="a", line=None):
    line = number if line is None else line
    return replace(make_document(number, length), source=source, line=line)


def packed(folder, documents, **changes):
    job = pack_job(folder, **{"sources": SOURCES, "validation_fraction": 0.0} | changes)
    table = documents_table(str(folder / "documents"), documents, kept=len(documents))
    source = conversations_ref(str(folder / "conversations"), len(documents))
    return pack(job, conversations=[source], documents=[table])


def rows(ref, split=Split.TRAIN):
    with open_dataset(ref.uri, ref.version) as dataset:
        return list(dataset.rows(split, np.arange(dataset.num_rows(split))))


def places(ref):
    return Counter(name for split in Split for row in rows(ref, split) for name in row.document_ids)


def weighted(*weights):
    return [one | {"weight": weight} for one, weight in zip(SOURCES, weights, strict=True)]


def test_blend_by_epochs_repeats_and_leaves_out_and_counts_both(tmp_path):
    documents = [made(i, 5) for i in range(8)] + [made(i, 7, source="b") for i in range(8, 12)]
    pack_config = {"row_length": 32, "blend": {"unit": "epochs"}}
    ref = packed(tmp_path, documents, sources=weighted(0.5, 2.25), pack=pack_config)
    found = places(ref)
    assert sorted(found[one.document_id] for one in documents[:8]) == [0] * 4 + [1] * 4
    assert sorted(found[one.document_id] for one in documents[8:]) == [2, 2, 2, 3]
    manifest = committed(ref).manifest
    assert dict(manifest.drop_ledger().documents) == {DropReason.LEFT_OUT_BY_BLEND: 4}
    assert dict(manifest.drop_ledger().tokens) == {DropReason.LEFT_OUT_BY_BLEND: 20}
    assert manifest.counts["documents_in"] == 12
    assert manifest.counts["documents_placed"] == 13
    assert manifest.counts["documents_copied"] == 5
    assert 12 == 13 - 5 + 4
    assert audit(ref).violations == ()
    drops = [
        drop for _, frame in parts(committed(ref), PartKind.DROPS) for drop in frame_to_drops(frame)
    ]
    assert {drop.line for drop in drops} == {
        one.line for one in documents if not found[one.document_id]
    }
    assert all("Raise the weight of the source" in drop.detail for drop in drops)


def test_blend_by_tokens_holds_the_shares(tmp_path):
    documents = [made(i, 5 + i % 9) for i in range(200)]
    documents += [made(i, 4 + i % 5, source="b") for i in range(200, 260)]
    blend = {"unit": "tokens", "total": "first_exhausted"}
    pack_config = {"row_length": 32, "blend": blend}
    ref = packed(tmp_path, documents, sources=weighted(3, 1), pack=pack_config)
    tokens = Counter()
    for row in rows(ref):
        for source, length in zip(row.sources, row.layout.lengths.tolist(), strict=True):
            tokens[source] += length
    assert abs(tokens["a"] / (tokens["a"] + tokens["b"]) - 0.75) < 0.005
    assert max(places(ref).values()) == 1


def test_blend_names_the_source_that_is_missing_or_asked_too_often(tmp_path):
    documents = [made(i, 5) for i in range(8)]
    blend = {"unit": "documents", "total": "last_exhausted", "max_epochs": 2}
    pack_config = {"row_length": 32, "blend": blend}
    with pytest.raises(DataError, match=r"found none in sources \[1\] .* Sources: 0 = a, 1 = b\."):
        packed(tmp_path / "none", documents, pack=pack_config)
    documents += [made(9, 5, source="b")]
    with pytest.raises(ConfigError, match=r"\{1: 8.0\}.* Sources: 0 = a, 1 = b\."):
        packed(tmp_path / "often", documents, pack=pack_config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": weighted(1, 2)}, "expected pack.blend beside weights"),
        ({"sources": [*weighted(1, 1), SOURCES[0] | {"weight": 3}]}, "one weight for source 'a'"),
        (
            {"pack": {"row_length": 32, "algorithm": "as_given", "blend": {"unit": "epochs"}}},
            "expected no blend with algorithm as_given",
        ),
    ],
)
def test_weights_that_mean_nothing_are_refused(tmp_path, change, message):
    with pytest.raises(ValidationError, match=message):
        pack_job(tmp_path, **{"sources": SOURCES} | change)


AS_GIVEN = {"row_length": 32, "algorithm": "as_given"}


def test_record_is_one_row_as_given_and_one_that_does_not_fit_is_dropped_whole(tmp_path):
    # With slots of multiples of 4: 8 + 8 + 16 = 32 fits, 8 + 28 does not, 40 never.
    shape = [(0, 7), (0, 8), (0, 13), (1, 5), (1, 25), (2, 33), (3, 9), (4, 40), (4, 3)]
    documents = [made(i, length, line=line) for i, (line, length) in enumerate(shape)]
    ref = packed(tmp_path, documents, pack=AS_GIVEN)
    ids = [one.document_id for one in documents]
    expected = [tuple(ids[:3]), (ids[5],), (ids[6],)]
    assert [row.document_ids for row in rows(ref)] == expected
    ledger = committed(ref).manifest.drop_ledger()
    assert dict(ledger.documents) == {DropReason.LONGER_THAN_ROW: 4}
    assert dict(ledger.tokens) == {DropReason.LONGER_THAN_ROW: 5 + 25 + 40 + 3}
    assert audit(ref).violations == ()


def test_rows_as_given_never_share_a_conversation_between_sides(tmp_path):
    out = [i for i in range(200) if is_held_out(make_document(i, 5).document_id, 0.25)]
    train = next(i for i in range(200) if i not in out)
    first, second, third, alone = out[:4]
    # Held out by their first document; the chain first - second - third ends in a trained record.
    records = [(first, second), (second, third), (train, third), (alone,)]
    documents = [made(i, 5, line=line) for line, own in enumerate(records) for i in own]
    ref = packed(tmp_path, documents, pack=AS_GIVEN, validation_fraction=0.25)
    assert len(rows(ref)) == 3
    assert [row.document_ids for row in rows(ref, Split.VALIDATION)] == [
        (make_document(alone, 5).document_id,)
    ]
    assert audit(ref).violations == ()


def test_streaming_keeps_the_reading_order_near(tmp_path):
    documents = [made(i, 8) for i in range(40)]
    ref = packed(tmp_path, documents, pack={"row_length": 32, "algorithm": "streaming"})
    order = [name for row in rows(ref) for name in row.document_ids]
    assert order == [one.document_id for one in documents]
    assert audit(ref).violations == ()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 36), st.booleans()), min_size=1),
    weights=st.tuples(st.sampled_from([0, 0.3, 1, 2.5]), st.sampled_from([0.5, 1, 3])),
    algorithm=st.sampled_from(["best", "streaming"]),
    duplicates=st.sampled_from(["keep", "drop"]),
)
def test_every_document_is_placed_or_dropped_and_every_place_is_counted(
    tmp_path_factory, data, weights, algorithm, duplicates
):
    folder = tmp_path_factory.mktemp("law")
    documents = [
        made(number, length, source="b" if second else "a", line=at)
        for at, (number, length, second) in enumerate(data)
    ]
    config = {"row_length": 32, "algorithm": algorithm, "duplicates": duplicates}
    config |= {"blend": {"unit": "epochs"}}
    try:
        ref = packed(folder, documents, sources=weighted(*weights), pack=config)
    except DataError:
        return
    counts = committed(ref).manifest.counts
    dropped = committed(ref).manifest.drop_ledger().total
    assert counts["documents_in"] == len(documents)
    assert counts["documents_placed"] == places(ref).total()
    assert (
        counts["documents_in"] == counts["documents_placed"] - counts["documents_copied"] + dropped
    )
    assert audit(ref).violations == ()
    by_id = {one.document_id: one for one in documents}
    if duplicates == "drop":
        placed = places(ref)
        targets = sum(by_id[name].num_target_tokens * times for name, times in placed.items())
        if len({one.document_id for one in documents}) == len(documents):
            assert ref.num_target_tokens == targets


def test_blend_leaves_the_validation_side_alone(tmp_path):
    documents = [made(i, 5) for i in range(40)] + [made(i, 7, source="b") for i in range(40, 80)]
    pack_config = {"row_length": 32, "blend": {"unit": "epochs"}}
    ref = packed(
        tmp_path,
        documents,
        sources=weighted(0.25, 3),
        pack=pack_config,
        validation_fraction=0.4,
    )
    held = {one.document_id for one in documents if is_held_out(one.document_id, 0.4)}
    found = Counter(name for row in rows(ref, Split.VALIDATION) for name in row.document_ids)
    assert found == Counter(held)
    assert len(held) > 10
    assert held.isdisjoint(name for row in rows(ref) for name in row.document_ids)
    assert audit(ref).violations == ()


def test_file_under_a_name_that_another_had_keeps_its_own_records_as_given(tmp_path):
    # The renamed file is not split again, so that both say `a.jsonl` line 0.
    folder = tmp_path / "sources"
    folder.mkdir()
    job = prepare_job(tmp_path, folder, pack=AS_GIVEN, validation_fraction=0.0)
    (folder / "a.jsonl").write_text(plain_line(1) + "\n")
    prepare(job)
    (folder / "a.jsonl").rename(folder / "b.jsonl")
    (folder / "a.jsonl").write_text(plain_line(5) + "\n")
    ref = prepare(job)
    assert [row.layout.num_segments for row in rows(ref)] == [1, 1]
