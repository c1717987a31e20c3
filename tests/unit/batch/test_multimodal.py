"""The data set: batches of real files, a state of what was handed out, epochs."""

import json
import pickle
import threading

import pytest
import torch
from torch.utils.data import DataLoader

from megapack.batch.multimodal import MultimodalDataset
from megapack.errors import ConfigError, DataError
from megapack.multimodal.config import MaskForm
from megapack.packing.row_limits import RowLimits
from tests.support.fake_groups import BAD, fake_job, in_memory
from tests.support.small_mixture import small_mixture

LIMITS = RowLimits(
    max_tokens=12,
    expected_tokens=9,
    max_sample_tokens=10,
    prefer_buffer_before=6,
    max_buffered=2,
)
GROUPS = {"a": [3, 5, 7, 4] * 5, "b": [6, 2] * 5}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return small_mixture(tmp_path_factory.mktemp("mixture"))


def _refs(batches):
    return [[sample.ref for sample in batch.samples] for batch in batches]


def _same(one, other):
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("text_ids", "vit_tokens", "vae_images", "timesteps", "mse_index", "ce_weights")
    )


def test_rows_of_all_three_kinds_come_from_files_and_again_the_same(job):
    batches = list(MultimodalDataset(job))
    assert sum(len(batch.samples) for batch in batches) == 22
    assert {sample.ref.group for batch in batches for sample in batch.samples} == {
        *("pairs", "talk", "edits")
    }
    for batch in batches:
        assert batch.length == sum(batch.sample_lengths) <= batch.padded_length
        assert len(batch.text_ids) + len(batch.vit_index) + len(batch.vae_index) == batch.length
        assert batch.samples[0].ref.group == "pairs"
        assert torch.isfinite(batch.timesteps).sum() == len(batch.mse_index) > 0
    assert all(map(_same, batches, MultimodalDataset(job, prefetch=0)))


def test_a_plain_loader_without_state_gives_the_same_batches(job):
    dataset = MultimodalDataset(job, mask=MaskForm.FLEX)
    batches = list(DataLoader(dataset, batch_size=None))
    assert all(map(_same, batches, MultimodalDataset(job)))
    assert {batch.mask_columns.shape for batch in batches} == {(3, 120)}


@pytest.mark.parametrize("prefetch", [0, 3])
def test_s3_a_state_is_of_what_was_handed_out_whatever_was_made_ahead(prefetch):
    job = fake_job(GROUPS, LIMITS)
    with in_memory(GROUPS):
        whole = _refs(MultimodalDataset(job))
        for number in range(len(whole) + 1):
            dataset = MultimodalDataset(job, prefetch=prefetch)
            rows = iter(dataset)
            assert _refs(next(rows) for _ in range(number)) == whole[:number]
            state = json.loads(json.dumps(dataset.state_dict()))
            rows.close()
            again = MultimodalDataset(job, prefetch=prefetch)
            again.load_state_dict(state)
            assert again.state_dict() == state
            assert _refs(again) == whole[number:]
            again.set_epoch(1)
            assert sum(map(len, _refs(again))) == 30


def test_s2_an_epoch_that_a_state_had_ended_is_not_read_again():
    job = fake_job(GROUPS, LIMITS)
    with in_memory(GROUPS):
        dataset = MultimodalDataset(job)
        list(dataset)
        end = dataset.state_dict()
        dataset.set_epoch(1)
        following = _refs(dataset)
        again = MultimodalDataset(job)
        again.load_state_dict(end)
        assert _refs(again) == []
        with pytest.raises(ConfigError, match=r"an epoch after 0, .* Call set_epoch\(1\)"):
            iter(again)
        again.set_epoch(1)
        assert _refs(again) == following
        another = MultimodalDataset(job)
        another.set_epoch(1)
        another.load_state_dict(end)
        assert _refs(another) == following


def test_s4_states_of_other_worlds_and_epochs_are_refused():
    job = fake_job(GROUPS, LIMITS)
    with in_memory(GROUPS):
        dataset = MultimodalDataset(job, ranks=2)
        next(iter(dataset))
        state = dataset.state_dict()
        other = MultimodalDataset(job, ranks=3)
        with pytest.raises(ConfigError, match=r"expected ranks 3 .* found ranks 2"):
            other.load_state_dict(state)
        later = MultimodalDataset(job, ranks=2)
        later.set_epoch(4)
        later.load_state_dict(state)
        with pytest.raises(ConfigError, match=r"epoch 0 .* found set_epoch\(4\)"):
            iter(later)
        whole = later.state_dict()
        for damaged in (
            {},
            {"version": 1, "epoch": 0},
            {**whole, "epoch": "x"},
            {**whole, "epoch": -1},
            {**whole, "stream": 3},
        ):
            with pytest.raises(ConfigError, match=r"expected a state of version 1 .* found \{"):
                later.load_state_dict(damaged)


def test_epochs_differ_and_one_is_the_same_again():
    job = fake_job(GROUPS, LIMITS)
    with in_memory(GROUPS):
        dataset = MultimodalDataset(job)
        first = _refs(dataset)
        assert _refs(dataset) == first
        dataset.set_epoch(1)
        assert _refs(dataset) != first
    with pytest.raises(ConfigError, match="expected an epoch from 0, found -1"):
        dataset.set_epoch(-1)


def test_errors_of_the_thread_reach_the_consumer_and_leave_no_thread():
    groups = {"a": [BAD] * 3}
    with in_memory(groups), pytest.raises(DataError, match="expected usable samples"):
        list(MultimodalDataset(fake_job(groups, LIMITS)))
    assert "megapack-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_a_data_set_can_be_pickled_and_keeps_its_epoch(job):
    dataset = MultimodalDataset(job)
    dataset.set_epoch(2)
    again = pickle.loads(pickle.dumps(dataset))
    assert _refs(again) == _refs(dataset)
    assert again.state_dict()["epoch"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 2, "ranks": 2}, r"a rank in \[0, 2\), found 2"),
        ({"padded_length": 9}, "padded_length: expected at least .* 12, found 9"),
        ({"prefetch": -1}, "prefetch: expected 0 or more rows, found -1"),
        ({"mask": "dense"}, "mask: expected 'nested' or 'flex', found 'dense'"),
    ],
)
def test_wrong_settings_are_refused_at_once(changes, message):
    with pytest.raises(ConfigError, match=message):
        MultimodalDataset(fake_job(GROUPS, LIMITS), **changes)


def test_a_path_is_told_how_a_job_is_loaded():
    with pytest.raises(ConfigError, match=r"found 'job\.json'\. .* MultimodalJob\.load\(path\)"):
        MultimodalDataset("job.json")


def test_a_form_of_masks_may_be_given_as_text():
    with in_memory(GROUPS):
        for form, columns in (("nested", False), ("flex", True)):
            dataset = MultimodalDataset(fake_job(GROUPS, LIMITS), mask=form, prefetch=0)
            batch = next(iter(dataset))
            assert (batch.mask_columns is not None, batch.masks == ()) == (columns, columns)
