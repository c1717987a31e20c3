import pytest

from megapack.engine.rows import RowSource
from megapack.errors import StoreError
from megapack.parallel.context import ParallelContext
from megapack.store.location import open_location
from megapack.store.manifest import Split
from megapack.store.pins import pinned_versions
from tests.support.tiny_dataset import make_dataset, make_rows


def test_a_run_pins_the_version_it_reads_until_it_closes(tmp_path):
    dataset = make_dataset(tmp_path, make_rows(4, seed=1))
    source = RowSource.open(dataset, run="train-abc")
    assert pinned_versions(dataset.uri) == {1}
    assert (
        open_location(dataset.uri).list_keys("pins/")[0].key.startswith("pins/00000001/train-abc")
    )
    steps = source.steps(
        seed=0, global_batch_rows=2, consumed_rows=2, context=ParallelContext.single()
    )
    assert next(steps).plan.next_consumed == 4
    assert len(source.read(Split.TRAIN, range(3))) == 3
    source.close()
    assert pinned_versions(dataset.uri) == set()


def test_ranks_that_are_given_no_name_pin_nothing(tmp_path):
    dataset = make_dataset(tmp_path, make_rows(4, seed=1))
    source = RowSource.open(dataset)
    assert pinned_versions(dataset.uri) == set()
    source.close()


def test_a_dataset_of_another_content_is_refused_and_not_kept(tmp_path):
    dataset = make_dataset(tmp_path, make_rows(4, seed=1))
    with pytest.raises(StoreError, match="expected content"):
        RowSource.open(dataset.model_copy(update={"digest": "0" * 64}), run="train-abc")
    assert pinned_versions(dataset.uri) == set()
