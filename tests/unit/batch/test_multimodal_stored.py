"""Stored rows through torch's loaders: every row once, in a seeded order, resumed exactly."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from megapack.batch.multimodal_loader import multimodal_loader
from megapack.batch.multimodal_stored import StoredMultimodalDataset
from megapack.errors import ConfigError
from megapack.multimodal.config import MaskForm
from megapack.steps.multimodal.pack import pack_multimodal
from megapack.steps.multimodal.stored import open_multimodal
from tests.support.shapes_rows import pack_job

# torchdata 0.11 calls what torch 2.15 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    return pack_multimodal(pack_job(tmp_path_factory.mktemp("shapes"), epochs=2)).uri


@pytest.fixture(scope="module")
def total(uri):
    return open_multimodal(uri).num_rows


def names(batches):
    """What tells rows apart."""
    return [(batch.length, *(one.ref.row for one in batch.samples)) for batch in batches]


@pytest.fixture(scope="module")
def stored(uri):
    """Names of all rows, in stored order."""
    rows = open_multimodal(uri)
    all_rows = [rows.row(number) for number in range(rows.num_rows)]
    found = names(all_rows)
    assert len(set(found)) == len(found)
    return found


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (3, 0), (2, 1)])
def test_ranks_get_equally_many_rows_and_every_row_is_read_once(uri, stored, ranks, workers):
    seen = []
    for rank in range(ranks):
        data = StoredMultimodalDataset(uri, rank=rank, ranks=ranks, seed=1)
        own = names(DataLoader(data, batch_size=None, num_workers=workers))
        assert len(own) == len(data) == len(stored) // ranks
        seen += own
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(stored)


def test_workers_do_not_change_the_order_and_epochs_and_seeds_do(uri, stored):
    data = StoredMultimodalDataset(uri, seed=1)
    plain = names(data)
    assert names(DataLoader(data, batch_size=None, num_workers=2)) == plain != stored
    data.set_epoch(1)
    assert names(data) != plain
    assert sorted(names(data)) == sorted(stored)
    assert names(StoredMultimodalDataset(uri, seed=2)) != plain
    data.set_epoch(0)
    assert names(data) == plain


def test_a_row_that_is_cut_in_one_epoch_comes_in_another(uri, stored):
    ranks = len(stored) - 1
    rows = open_multimodal(uri)
    cut = set()
    for epoch in range(3):
        seen = set()
        for rank in range(ranks):
            data = StoredMultimodalDataset(rows, rank=rank, ranks=ranks)
            data.set_epoch(epoch)
            seen |= set(names(data))
        cut |= set(stored) - seen
    assert len(cut) > 1


def test_a_state_at_every_row_goes_on_there(uri, stored):
    rows = open_multimodal(uri)
    data = StoredMultimodalDataset(rows, seed=3)
    data.set_epoch(2)
    whole = names(data)
    for stop in range(len(stored) + 1):
        first = StoredMultimodalDataset(rows, seed=3)
        first.set_epoch(2)
        taken = [batch for batch, _ in zip(first, range(stop), strict=False)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        second = StoredMultimodalDataset(rows, seed=3)
        second.load_state_dict(state)
        assert second.state_dict() == state
        # zip takes one row more than it gives.
        given = state["taken"]
        assert names(taken) == whole[: len(taken)]
        assert names(second) == whole[given:]
    data.set_epoch(0)
    assert len(names(data)) == len(stored)


@pytest.mark.parametrize(("workers", "stops"), [(0, (1, 4, None)), (2, (3,))])
def test_a_stateful_loader_resumes_also_at_the_end_of_an_epoch(uri, stored, workers, stops):
    """At the end the rest is empty and the next epoch is whole: nothing is read twice."""

    def loader():
        data = StoredMultimodalDataset(uri, seed=5)
        return data, multimodal_loader(data, workers=workers)

    data, one = loader()
    whole = names(one)
    data.set_epoch(1)
    following = names(one)
    assert sorted(following) == sorted(whole)
    for stop in stops:
        _, first = loader()
        taken = [next(rows) for rows in [iter(first)] for _ in range(stop or 0)]
        if stop is None:
            taken = list(first)
        assert names(taken) == whole[:stop]
        data, second = loader()
        second.load_state_dict(first.state_dict())
        assert names(second) == whole[len(taken) :]
        data.set_epoch(1)
        assert names(second) == following


@pytest.mark.parametrize("workers", [0, 1])
def test_s2_a_state_at_the_end_of_an_epoch_skips_no_epoch_that_is_set(uri, total, workers):
    data = StoredMultimodalDataset(uri)
    loader = multimodal_loader(data, workers=workers)
    begun = loader.state_dict()
    rows = iter(loader)
    next(rows)
    within = loader.state_dict()
    assert len(list(rows)) == total - 1
    ended = loader.state_dict()
    data.set_epoch(1)
    following = names(loader)
    for state in (begun, ended):
        data = StoredMultimodalDataset(uri)
        loader = multimodal_loader(data, workers=workers)
        loader.load_state_dict(state)
        data.set_epoch(1)
        assert names(loader) == following
    if not workers:
        data = StoredMultimodalDataset(uri)
        loader = multimodal_loader(data)
        loader.load_state_dict(within)
        data.set_epoch(1)
        with pytest.raises(ConfigError, match=r"expected epoch 0 .* found set_epoch\(1\)"):
            iter(loader)


def test_two_iterations_at_once_give_all_rows_each(uri, total):
    data = StoredMultimodalDataset(uri)
    one, other = iter(data), iter(data)
    next(one)
    assert len(list(other)) == total


def test_states_of_another_world_are_refused_by_name(uri, total):
    state = StoredMultimodalDataset(uri, ranks=2).state_dict()
    with pytest.raises(ConfigError, match="ranks 1 and not 2"):
        StoredMultimodalDataset(uri).load_state_dict(state)
    with pytest.raises(ConfigError, match="seed 4 and not 0"):
        StoredMultimodalDataset(uri, ranks=2, seed=4).load_state_dict(state)
    loader = multimodal_loader(StoredMultimodalDataset(uri), workers=1)
    worker = {"worker_id": 0, "dataset_state": state}
    with pytest.raises(ConfigError, match="ranks 1 and not 2"):
        loader.load_state_dict({"_snapshot": {"_worker_snapshots": {"worker_0": worker}}})
    with pytest.raises(ConfigError, match=f"found rank 0 of {total + 1} and {total} rows"):
        StoredMultimodalDataset(uri, ranks=total + 1)
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        StoredMultimodalDataset(uri, rank=2, ranks=2)
    with pytest.raises(ConfigError, match="mask: expected 'nested' or 'flex', found 'dense'"):
        StoredMultimodalDataset(uri, mask="dense")


def test_flex_batches_are_padded_and_nested_ones_are_not(uri):
    rows = open_multimodal(uri)
    (flex,) = next(zip(StoredMultimodalDataset(rows, mask=MaskForm.FLEX), strict=False))
    assert flex.padded_length == rows.limits.max_tokens == flex.mask_columns.shape[1]
    (nested,) = next(zip(StoredMultimodalDataset(rows), strict=False))
    assert nested.padded_length == nested.length == sum(mask.shape[0] for mask in nested.masks)
    assert nested.text_ids.dtype == torch.int64
    assert torch.equal(nested.text_ids, flex.text_ids)
