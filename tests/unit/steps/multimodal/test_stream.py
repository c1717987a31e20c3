"""The stream: nothing lost or twice, the same again, and exactly on from every row."""

import json
import random
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ConfigError, DataError
from megapack.packing.row_limits import RowLimits
from megapack.records.rejects import RejectReason
from megapack.records.shard import Shard
from megapack.steps.multimodal.stream import MultimodalStream
from tests.support.fake_groups import BAD, fake_job, in_memory, shards

LIMITS = {
    "max_tokens": 12,
    "expected_tokens": 9,
    "max_sample_tokens": 10,
    "prefer_buffer_before": 6,
    "max_buffered": 1,
}
# At, one below and one above each limit, and records that are no good.
NASTY = st.sampled_from([BAD, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13])


@st.composite
def jobs(draw, least=0):
    """A job and the lengths of its groups; each has a usable sample, or none at all but for "a"."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    groups = {name: draw(st.lists(NASTY, min_size=least, max_size=10)) for name in names}
    groups = {
        name: [*lengths, 4] if lengths or name == "a" else [] for name, lengths in groups.items()
    }
    mandatory = [name for name in names if draw(st.booleans())]
    limits = RowLimits(**LIMITS | {"max_buffered": draw(st.sampled_from([0, 1, 4]))})
    readings = {name: draw(st.integers(1, 2)) for name in names}
    return fake_job(groups, limits, readings=readings, mandatory=mandatory), groups


def _refs(rows):
    return [[laid.sample.ref for laid in row.laid] for row in rows]


def _rows(stream):
    return list(stream)


def _stop_after(stream, number):
    state = stream.state()
    for _ in range(number):
        state = next(stream).state
    return json.loads(json.dumps(state))


@given(jobs())
@settings(max_examples=40)
def test_conservation_every_sample_is_placed_or_rejected_once(made):
    job, groups = made
    rejects = []
    with in_memory(groups):
        stream = MultimodalStream(job, on_reject=lambda ref, reject: rejects.append(ref))
        rows = _rows(stream)
    placed = [ref for row in _refs(rows) for ref in row]
    usable = {
        (name, row, reading)
        for name, lengths in groups.items()
        for row, length in enumerate(lengths)
        for reading in range({g.name: g for g in job.groups}[name].readings)
        if 0 < length <= LIMITS["max_sample_tokens"]
    }
    assert len(placed) == len(usable)
    assert {(ref.group, ref.row, ref.reading) for ref in placed} == usable
    ledger = stream.ledger()
    assert sum(ledger.drawn.values()) == len(placed) + len(rejects)
    assert all(ledger.held(name) == 0 for name in groups)
    for reason in ("NO_TEXT", "TOO_MANY_TOKENS"):
        wanted = [BAD] if reason == "NO_TEXT" else [11, 12, 13]
        found = sum(of.get(RejectReason[reason], 0) for of in ledger.rejected.values())
        assert found == sum(
            lengths.count(length) * {g.name: g for g in job.groups}[name].readings
            for name, lengths in groups.items()
            for length in wanted
        )


@given(jobs())
@settings(max_examples=8)
def test_c13_s4_a_stream_resumed_after_any_row_gives_the_rest_and_the_same_counts(made):
    """Published: a buffered sample moves the cursor back, the buffer and the draw are lost."""
    job, groups = made
    with in_memory(groups):
        whole = MultimodalStream(job)
        rows = _rows(whole)
        for number in range(len(rows) + 1):
            state = _stop_after(MultimodalStream(job), number)
            again = MultimodalStream(job, state=state)
            assert again.state() == state
            rest = _rows(again)
            assert _refs(rest) == _refs(rows)[number:]
            assert [row.state for row in rest] == [row.state for row in rows[number:]]
            assert again.statistics() == whole.statistics()
            assert again.ledger() == whole.ledger()


@given(jobs(least=6), st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=12)
def test_mm2_the_union_over_ranks_and_workers_is_the_same_whatever_their_number(
    made, ranks, workers
):
    job, groups = made
    with in_memory(groups):
        alone = Counter(ref for row in _refs(_rows(MultimodalStream(job))) for ref in row)
        dealt = Counter()
        for shard in shards(ranks, workers):
            stream = MultimodalStream(job, shard=shard)
            dealt.update(ref for row in _refs(_rows(stream)) for ref in row)
    assert dealt == alone
    assert set(dealt.values()) == {1}


def test_mm3_m15_order_is_a_function_of_seed_and_epoch_and_zero_is_a_seed():
    groups = {"a": [3] * 30, "b": [4] * 30}

    def order(seed, epoch):
        with in_memory(groups):
            return _refs(MultimodalStream(fake_job(groups, seed=seed), epoch=epoch))

    assert order(0, 0) == order(0, 0)
    assert len({str(order(*world)) for world in [(0, 0), (0, 1), (1, 0)]}) == 3


def test_m41_global_generators_are_neither_read_nor_changed():
    groups = {"a": [3, 4, 5] * 10, "b": [4] * 30}
    seen = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - that it does not matter
        before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        with in_memory(groups):
            seen.append(_refs(MultimodalStream(fake_job(groups))))
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    assert seen[0] == seen[1]


def test_s2_a_state_at_the_very_end_gives_nothing_and_the_next_epoch_runs_whole():
    groups = {"a": [3] * 7}
    job = fake_job(groups, RowLimits(**LIMITS))
    with in_memory(groups):
        stream = MultimodalStream(job)
        rows = _rows(stream)
        for state in (rows[-1].state, stream.state()):
            assert _rows(MultimodalStream(job, state=state)) == []
        following = MultimodalStream(job, epoch=1)
        assert sum(len(row.laid) for row in following) == 7


def test_c14_sizes_are_those_written_and_statistics_count_them():
    groups = {"a": [5, 7, 3, 8, BAD, 11], "b": [2, 2, 9]}
    job = fake_job(groups, RowLimits(**LIMITS), mandatory=["b"])
    with in_memory(groups):
        stream = MultimodalStream(job)
        rows = _rows(stream)
    for row in rows:
        assert row.size.tokens == sum(int(laid.lengths.sum()) for laid in row.laid)
    statistics = stream.statistics()
    assert statistics.rows == len(rows) == sum(statistics.closed.values())
    assert statistics.tokens == statistics.text_tokens == 5 + 7 + 3 + 8 + 2 + 2 + 9
    assert statistics.capacity == 12 * len(rows)
    assert statistics.fill == pytest.approx(36 / (12 * len(rows)))
    assert statistics.sample_shares == pytest.approx({"a": 4 / 7, "b": 3 / 7})
    assert statistics.token_shares == pytest.approx({"a": 23 / 36, "b": 13 / 36})


def test_m14_a_group_without_end_of_only_rejected_samples_is_an_error_with_counts():
    """Published: an endless loop."""
    groups = {"a": [3, 3], "b": [BAD, BAD, 13]}
    job = fake_job(groups, RowLimits(**LIMITS), readings={"a": None, "b": None}, mandatory=["b"])
    with in_memory(groups), pytest.raises(DataError) as caught:
        next(MultimodalStream(job))
    assert "Group b: expected usable samples, found none among 3 records" in str(caught.value)
    assert "no_text: 2, too_many_tokens: 1" in str(caught.value)


def test_a_worker_without_a_usable_sample_goes_on_when_others_have_one():
    groups = {"a": [BAD, BAD, BAD, 3]}
    limits = RowLimits(**LIMITS | {"expected_tokens": 3})
    for readings in (None, 1):
        job = fake_job(groups, limits, readings=readings)
        with in_memory(groups):
            parts = [MultimodalStream(job, shard=shard) for shard in shards(2, 2)]
            if readings is None:
                assert all(len(next(part).laid) == 1 for part in parts)
            else:
                assert sum(len(_rows(part)) for part in parts) == 1


def test_an_epoch_without_any_usable_sample_is_an_error():
    groups = {"a": [BAD, 13], "b": []}
    with in_memory(groups), pytest.raises(DataError, match=r"a: .*no_text: 1, too_many_tokens: 1"):
        next(MultimodalStream(fake_job(groups, RowLimits(**LIMITS))))


@pytest.mark.parametrize("readings", [1, {"a": None, "b": 2}])
def test_a_group_without_any_usable_sample_is_an_error_though_another_one_has_some(readings):
    groups = {"a": [3] * 9, "b": [BAD, 13]}
    job = fake_job(groups, RowLimits(**LIMITS), readings=readings)
    with in_memory(groups), pytest.raises(DataError, match=r"^Group b: .*no_text: [12], ") as error:
        list(islice(MultimodalStream(job), 50))
    assert "For example: group b, source main, memory, row " in str(error.value)


def test_one_of_several_workers_without_a_usable_sample_of_a_group_warns(caplog):
    groups = {"a": [3] * 9, "b": [BAD, 13, BAD]}
    with in_memory(groups):
        for shard in shards(1, 2):
            assert _rows(MultimodalStream(fake_job(groups, RowLimits(**LIMITS)), shard=shard))
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(" found ")[0] for line in told] == [
        "Group b: worker 0 of 2",
        "Group b: worker 1 of 2",
    ]


def test_an_endless_stream_goes_on_over_readings_and_resumes_within_them():
    groups = {"a": [3, 4, 5], "b": [6]}
    job = fake_job(groups, RowLimits(**LIMITS), readings=None)
    with in_memory(groups):
        stream = MultimodalStream(job)
        rows = [next(stream) for _ in range(20)]
        again = MultimodalStream(job, state=rows[9].state)
        assert _refs([next(again) for _ in range(10)]) == _refs(rows[10:])
    readings = Counter(ref.reading for row in _refs(rows) for ref in row if ref.group == "a")
    assert set(list(readings.values())[:-2]) == {3}
    assert len(readings) > 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard": Shard(rank=0, ranks=2)}, "expected ranks 2 as in this run, found ranks 1"),
        ({"shard": Shard(worker=0, workers=3)}, "expected workers 3 .* found workers 1"),
        ({"epoch": 2}, "expected epoch 2 .* found epoch 0"),
        ({"seed": 5}, "expected seed 5 .* found seed 0"),
        ({"limits": RowLimits()}, "expected job [0-9a-f]{64} .* found job [0-9a-f]{64}"),
        ({"lengths": [3] * 8}, "expected job"),
    ],
)
def test_s4_a_state_of_another_world_is_refused_with_both_values(changes, message):
    groups = {"a": [3] * 9}
    limits = RowLimits(**LIMITS)
    with in_memory(groups):
        state = _stop_after(MultimodalStream(fake_job(groups, limits)), 1)
    changes = dict(changes)
    groups = {"a": changes.pop("lengths", groups["a"])}
    job = fake_job(groups, changes.pop("limits", limits), seed=changes.pop("seed", 0))
    with in_memory(groups), pytest.raises(ConfigError, match=message):
        MultimodalStream(job, state=state, **changes)


def test_a_damaged_state_and_a_changed_file_are_refused():
    limits = RowLimits(**LIMITS | {"expected_tokens": 12})
    groups = {"a": [7] * 4}
    job = fake_job(groups, limits)
    with in_memory(groups):
        state = _stop_after(MultimodalStream(job), 1)
        draw = state["draw"]
        for damaged in (
            {},
            {**state, "version": 0},
            {**state, "draw": {}},
            {**state, "draw": {**draw, "state": "-1"}},
            {**state, "draw": {**draw, "ended": ["b"]}},
            {**state, "supplies": {}},
        ):
            with pytest.raises(ConfigError, match="State of a multimodal stream: expected"):
                MultimodalStream(job, state=damaged)
    with in_memory({"a": [8] * 4}), pytest.raises(DataError, match=r"7 tokens .* found: 8"):
        MultimodalStream(job, state=state)


def test_m25b_states_hold_names_and_no_content():
    groups = {"a": [7] * 40}
    job = fake_job(groups, RowLimits(**LIMITS | {"max_buffered": 30}))
    with in_memory(groups):
        state = _stop_after(MultimodalStream(job), 1)
    held = [*state["openers"], *state["waiting"]]
    assert 20 < len(held) <= 31
    assert set(held[0]) == {"ref", "tokens"}
    assert len(json.dumps(state)) < 250 * len(held)
