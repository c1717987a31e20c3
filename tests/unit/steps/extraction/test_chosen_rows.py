from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from megapack.errors import ConfigError
from megapack.jobs.extract import ExtractSettings, PayloadChoice
from megapack.steps.extraction.chosen_rows import choose_rows
from megapack.store.manifest import Split
from megapack.store.sinks import RowSink
from megapack.store.versions import read_version
from tests.support import tiny_dataset
from tests.support.tiny_dataset import make_dataset, make_rows

TRAIN, VALIDATION = Split.TRAIN, Split.VALIDATION


def chosen(dataset, **settings):
    job = ExtractSettings(payload=PayloadChoice(), **settings)
    return choose_rows(read_version(dataset.uri), job)


def written(rows):
    """(split, row, segment) of everything that is written."""
    return [
        (place.split, place.number, at)
        for place in rows.places(0, rows.num_rows)
        for at, one in enumerate(place.written)
        if one
    ]


def brute_force(train, validation, *, max_rows=None, sources=None):
    """The same by a plain loop over documents."""
    seen, found = set(), []
    for split, rows in ((TRAIN, train), (VALIDATION, validation)):
        for number, row in enumerate(rows[:max_rows]):
            names = row.sources or ("",) * len(row.document_ids)
            for at, name in enumerate(row.document_ids):
                if name not in seen and (sources is None or names[at] in sources):
                    seen.add(name)
                    found.append((split, number, at))
    return found


@pytest.fixture(scope="module")
def rows():
    """Rows of two sources; rows, and documents inside rows, that repeat others."""
    fresh = make_rows(12, seed=1)
    fresh = [
        replace(row, sources=tuple("ab"[(at + i) % 2] for i in range(row.layout.num_segments)))
        for at, row in enumerate(fresh)
    ]
    twice = replace(fresh[5], document_ids=(fresh[1].document_ids[0], *fresh[5].document_ids[1:]))
    other = replace(fresh[2], sources=("c",) * fresh[2].layout.num_segments)
    return [*fresh[:5], twice, fresh[3], *fresh[6:9]], [fresh[0], *fresh[9:], other]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, rows):
    return make_dataset(tmp_path_factory.mktemp("data"), *rows)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_rows": 4},
        {"sources": ("a",)},
        {"sources": ("b", "c"), "max_rows": 6},
        {"sources": ("c",)},
    ],
)
def test_each_document_is_written_once_where_it_stands_first(dataset, rows, settings):
    found = chosen(dataset, **settings)
    expected = brute_force(*rows, **settings)
    assert written(found) == expected
    assert found.num_documents == len(expected)
    held = {TRAIN: rows[0], VALIDATION: rows[1]}
    lengths = [held[split][row].layout.lengths[at] for split, row, at in expected]
    assert found.num_positions == sum(lengths)
    assert found.num_rows == len({(split, row) for split, row, _ in expected})
    run = [held[place.split][place.number] for place in found.places(0, found.num_rows)]
    assert found.tokens_run == sum(row.num_real_tokens for row in run)
    assert found.pairs_run == sum(
        int(n) * (int(n) + 1) // 2 for row in run for n in row.layout.lengths
    )


def test_rows_that_only_repeat_others_are_not_run(dataset, rows):
    places = list(chosen(dataset).places(0, 100))
    assert (TRAIN, 6) not in [(one.split, one.number) for one in places]
    assert (VALIDATION, 0) not in [(one.split, one.number) for one in places]
    assert [one.split for one in places] == sorted(
        (one.split for one in places), key=[TRAIN, VALIDATION].index
    )


def test_places_are_cut_as_asked(dataset):
    found = chosen(dataset)
    whole = list(found.places(0, found.num_rows))
    assert list(found.places(2, 5)) == whole[2:5]
    assert list(found.places(found.num_rows - 1, found.num_rows + 5)) == whole[-1:]


def test_a_source_that_is_not_there_is_refused(dataset):
    with pytest.raises(ConfigError, match=r"has no rows of x among .* found sources a, b, c\."):
        chosen(dataset, sources=("a", "x"))


def test_rows_past_a_part_of_the_dataset_are_numbered_on(tmp_path, monkeypatch):
    monkeypatch.setattr("megapack.store.schema.GROUP_TOKENS", 1)
    monkeypatch.setattr(tiny_dataset, "RowSink", partial(RowSink, part_bytes=1))
    rows = make_rows(5, seed=3)
    dataset = make_dataset(tmp_path / "data", rows)
    assert len(read_version(dataset.uri).manifest.parts) == 5
    assert written(chosen(dataset, max_rows=4)) == brute_force(rows, [], max_rows=4)
    assert np.array_equal(chosen(dataset).numbers, np.arange(5))
