"""StatefulDataLoader over any number of data workers: exact after every row, epoch by epoch."""

import copy
from unittest import mock

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from megapack.batch.multimodal import MultimodalDataset
from megapack.batch.multimodal_loader import loader_statistics, multimodal_loader
from megapack.errors import ConfigError
from megapack.packing.row_limits import RowLimits
from tests.support.fake_groups import fake_job, in_memory

pytestmark = [
    # Rightly said of three workers on a machine of two cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Rightly said where an earlier test of the same process left threads; these workers start none.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]

LIMITS = RowLimits(
    max_tokens=12,
    expected_tokens=9,
    max_sample_tokens=10,
    prefer_buffer_before=6,
    max_buffered=2,
)
GROUPS = {"a": [3, 5, 7, 4] * 5, "b": [6, 2] * 5}


@pytest.fixture(autouse=True)
def memory():
    with in_memory(GROUPS):
        yield


def _loader(workers, epoch=None, **changes):
    dataset = MultimodalDataset(fake_job(GROUPS, LIMITS, **changes))
    if epoch is not None:
        dataset.set_epoch(epoch)
    return dataset, multimodal_loader(dataset, workers=workers, start="fork")


def _refs(loader):
    return [[sample.ref for sample in batch.samples] for batch in loader]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_loader_resumes_after_a_row_and_at_the_end_of_an_epoch(workers):
    """S2 and S3: with data workers that are ahead, and over the border of an epoch."""
    dataset, loader = _loader(workers)
    states, whole = [], []
    for batch in loader:
        whole.append([sample.ref for sample in batch.samples])
        states.append(copy.deepcopy(loader.state_dict()))
    states.append(loader.state_dict())
    dataset.set_epoch(1)
    following = _refs(loader)
    assert sorted(map(str, sum(whole, []))) == sorted(  # noqa: RUF017 - few
        map(str, sum(following, []))  # noqa: RUF017
    )
    assert following != whole
    for number in {1, len(whole) - 1, len(whole)} if workers else range(len(whole) + 1):
        again, loader = _loader(workers)
        loader.load_state_dict(states[number - 1] if number else loader.state_dict())
        again.set_epoch(0)
        assert _refs(loader) == whole[number:]
        again.set_epoch(1)
        assert _refs(loader) == following
    again, loader = _loader(workers)
    loader.load_state_dict(states[-1])
    again.set_epoch(0)
    assert _refs(loader) == []


def test_all_workers_together_read_every_sample_once_and_say_what_they_did():
    _, loader = _loader(2)
    refs = [ref for row in _refs(loader) for ref in row]
    assert len(refs) == len(set(refs)) == 30
    statistics = loader_statistics(loader.state_dict())
    assert statistics.tokens == sum(GROUPS["a"]) + sum(GROUPS["b"])
    assert {name: group.samples for name, group in statistics.groups.items()} == {"a": 20, "b": 10}


@pytest.mark.parametrize(
    "state",
    [{}, {"epoch": 3}, {"_snapshot": {}}, {"dataset_state": 3}, {"stream": {"statistics": 3}}],
)
def test_statistics_of_what_is_no_state_are_refused(state):
    with pytest.raises(ConfigError, match="loader_statistics: expected what state_dict"):
        loader_statistics(state)


def test_asking_for_a_state_before_the_first_row_does_not_fix_the_epoch():
    expected = _refs(_loader(0, epoch=3)[1])
    dataset, loader = _loader(0)
    loader.state_dict()
    dataset.set_epoch(3)
    assert _refs(loader) == expected


@pytest.mark.parametrize(("before", "now"), [(0, 2), (2, 0), (1, 2)])
def test_s4_another_number_of_data_workers_is_refused_with_both(before, now):
    _, loader = _loader(before)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ConfigError, match=f"of {now} data workers .* found one of {before}"):
        _loader(now)[1].load_state_dict(state)
    with pytest.raises(ConfigError, match="expected a state, found an empty one"):
        _loader(now)[1].load_state_dict({})
    with pytest.raises(ConfigError, match=r"expected a state, found \['_snapshot'\]"):
        _loader(now)[1].load_state_dict({"_snapshot": {}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, r"^State .*expected seed 4 .* found seed 0"),
        ({"mandatory": ["a"]}, r"^State .*expected job \w{64} .* found job \w{64}"),
    ],
)
def test_s4_a_state_of_another_job_is_refused_before_a_worker_starts(changes, message):
    """From a worker it would come as thirty lines of its traceback."""
    _, loader = _loader(1)
    next(iter(loader))
    _, other = _loader(1, **changes)
    with pytest.raises(ConfigError, match=message):
        other.load_state_dict(loader.state_dict())


def test_more_workers_than_records_and_a_wrong_tokenizer_are_refused_before_one_starts():
    dataset = MultimodalDataset(fake_job(GROUPS, LIMITS), ranks=4)
    with pytest.raises(ConfigError, match=r"^group b: .*10 "):
        multimodal_loader(dataset, workers=3)
    wrong = "megapack.steps.multimodal.open_job.open_tokenizer"
    other = MultimodalDataset(fake_job(GROUPS, LIMITS))
    with (
        mock.patch(wrong, side_effect=ConfigError("no tokenizer")),
        pytest.raises(ConfigError, match="no tokenizer"),
    ):
        multimodal_loader(other, workers=1)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_plain_stateful_loader_resumes_within_an_epoch():
    whole = _refs(MultimodalDataset(fake_job(GROUPS, LIMITS)))
    loader = StatefulDataLoader(MultimodalDataset(fake_job(GROUPS, LIMITS)), batch_size=None)
    rows = iter(loader)
    for _ in range(2):
        next(rows)
    again = StatefulDataLoader(MultimodalDataset(fake_job(GROUPS, LIMITS)), batch_size=None)
    again.load_state_dict(loader.state_dict())
    assert _refs(again) == whole[2:]
