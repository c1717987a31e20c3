import numpy as np
import pytest

import megapack.steps.lay_rows as step
from megapack.errors import DataError, StoreError
from megapack.jobs.pipeline import dataset_uri
from megapack.layout.granularity import Granularity
from megapack.packing.rows import RowShape
from megapack.steps.document_index import DocumentIndex, read_index
from megapack.steps.lay_rows import lay_rows
from megapack.steps.pack import pack
from megapack.steps.placement import Placement
from megapack.steps.tables import committed
from megapack.store.manifest import PartKind
from megapack.store.versions import read_version
from tests.support.documents import conversations_ref, documents_table, make_document, pack_job

SHAPE = RowShape(row_length=32, granularity=Granularity(segment=4, row=8, reasons=()), pad_id=0)


def tables(folder, *, count=60, parts=4):
    """Documents of random lengths in several tables."""
    draw = np.random.default_rng(5)
    documents = [make_document(i, int(draw.integers(1, 34))) for i in range(count)]
    refs = [
        documents_table(str(folder / f"d{at}"), own, kept=len(own))
        for at in range(parts)
        if (own := documents[at::parts])
    ]
    return documents, refs


def version_at(folder, memory_bytes):
    _, refs = tables(folder)
    job = pack_job(folder)
    source = conversations_ref(str(folder / "c"), 60)
    seen = []
    pack(
        job,
        conversations=[source],
        documents=refs,
        memory_bytes=memory_bytes,
        on_rows=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(at + 1, seen[0][1]) for at in range(len(seen))]
    return read_version(dataset_uri(job)).manifest


@pytest.mark.parametrize("memory_bytes", [1, 33 * 4, 700, 10**6])
def test_version_is_the_same_for_any_amount_of_memory(tmp_path, memory_bytes):
    whole = version_at(tmp_path / "whole", 1 << 30)
    cut = version_at(tmp_path / "cut", memory_bytes)
    assert cut.digest == whole.digest
    assert cut.parts_of(PartKind.ROWS) == whole.parts_of(PartKind.ROWS)


@pytest.mark.parametrize("memory_bytes", [1, 200, 10**6])
def test_rows_hold_what_the_placement_says(tmp_path, memory_bytes):
    documents, refs = tables(tmp_path)
    index = read_index([committed(ref) for ref in refs])
    by_id = {one.document_id: one for one in documents}
    short = np.flatnonzero(index.num_tokens <= 16)
    # Every document twice, two to a row, far from the order in which tokens are read.
    order = np.random.default_rng(1).permutation(np.concatenate([short, short]))[
        : short.size // 2 * 4
    ]
    offsets = np.arange(0, order.size + 1, 2)
    placement = Placement(document=order.astype(np.int32), offsets=offsets, first_held_out=3)
    rows = list(lay_rows(index, placement, SHAPE, memory_bytes=memory_bytes))
    assert len(rows) == placement.num_rows
    for at, row in enumerate(rows):
        own = [by_id[index.document_id(number)] for number in order[2 * at : 2 * at + 2]]
        assert row.document_ids == tuple(one.document_id for one in own)
        for slot, one in enumerate(own):
            start = int(row.layout.slot_starts[slot])
            assert row.tokens[start : start + one.num_tokens].tolist() == one.tokens.tolist()
            labels = row.labels()[start : start + one.num_tokens].tolist()
            assert labels == one.labels().tolist()


def test_full_scratch_space_is_a_store_error_with_advice(tmp_path, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    _, refs = tables(tmp_path)
    monkeypatch.setattr(step.tempfile, "TemporaryFile", Full)
    with pytest.raises(StoreError, match=r"scratch space .* No space left on device\. Free space"):
        pack(
            pack_job(tmp_path),
            conversations=[conversations_ref(str(tmp_path / "c"), 60)],
            documents=refs,
            memory_bytes=100,
        )


def test_tokens_that_contradict_the_small_columns_are_refused(tmp_path):
    _, refs = tables(tmp_path)
    index = read_index([committed(ref) for ref in refs])
    lying = index.num_tokens.copy()
    lying[7] += 1
    fields = {name: getattr(index, name) for name in DocumentIndex.__slots__}
    placement = Placement(
        document=np.array([7], np.int32), offsets=np.array([0, 1]), first_held_out=1
    )
    with pytest.raises(DataError, match="as num_tokens says"):
        list(
            lay_rows(
                DocumentIndex(**fields | {"num_tokens": lying}), placement, SHAPE, memory_bytes=1000
            )
        )


def test_documents_of_one_source_record_share_a_number(tmp_path):
    from dataclasses import replace

    documents = [replace(make_document(i, 5), line=line) for i, line in enumerate([0, 0, 2, 3, 3])]
    table = documents_table(str(tmp_path / "a"), documents, kept=5)
    again = replace(make_document(9, 5), line=3)
    other = documents_table(str(tmp_path / "b"), [again], kept=1)
    assert read_index([committed(table), committed(other)]).given.tolist() == [0, 0, 1, 2, 2, 2]
    # The same table twice is two files with equal content.
    single = documents_table(str(tmp_path / "c"), [make_document(1, 5)], kept=1)
    assert read_index([committed(single)] * 2).given.tolist() == [0, 1]
