"""Which group gives the next sample."""

from collections import Counter

import numpy as np
import pytest

from megapack.errors import ContractError
from megapack.packing.group_draw import DrawState, GroupDraw
from megapack.records.shard import Shard

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.0}


def _draw(weights=WEIGHTS, *, seed=0, epoch=0, shard=None):
    return GroupDraw(weights, seed=seed, epoch=epoch, shard=shard or Shard())


def test_shares_follow_weights():
    draw = _draw()
    counts = Counter(draw.draw() for _ in range(4000))
    assert counts["c"] == 0
    assert counts["b"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_groups_that_ended_leave_the_draw_and_weightless_ones_come_last():
    draw = _draw()
    draw.end("b")
    assert {draw.draw() for _ in range(50)} == {"a"}
    draw.end("a")
    assert draw.draw() == "c"
    draw.end("c")
    assert draw.draw() is None
    assert draw.all_ended
    with pytest.raises(ContractError, match="found d"):
        draw.end("d")


def test_mm2_each_rank_worker_and_epoch_draws_its_own_way_and_seed_0_is_a_seed():
    def drawn(**changes):
        draw = _draw({"a": 1.0, "b": 1.0}, **changes)
        return tuple(draw.draw() for _ in range(64))

    worlds = [
        {"seed": 0},
        {"seed": 1},
        {"epoch": 1},
        {"shard": Shard(rank=1, ranks=2)},
        {"shard": Shard(worker=1, workers=2)},
    ]
    assert len({drawn(**world) for world in worlds}) == len(worlds)
    assert drawn(seed=0) == drawn(seed=0)


def test_m41_no_global_generator_is_read_or_touched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - that it stays as it is
    first = [_draw().draw() for _ in range(5)]
    np.random.seed(7)  # noqa: NPY002 - that it does not matter
    after_seed = np.random.get_state()[1].copy()  # noqa: NPY002
    assert [_draw().draw() for _ in range(5)] == first
    assert np.array_equal(np.random.get_state()[1], after_seed)  # noqa: NPY002
    np.random.set_state(("MT19937", before, 624, 0, 0.0))  # noqa: NPY002


def test_a_draw_goes_on_from_its_state_by_way_of_json():
    draw = _draw()
    for _ in range(9):
        draw.draw()
    draw.end("a")
    state = DrawState.model_validate_json(draw.state().model_dump_json())
    again = _draw().resume(state)
    assert [again.draw() for _ in range(9)] == [draw.draw() for _ in range(9)]
    assert again.has_ended("a")


def test_weights_whose_sum_is_beyond_floats_are_still_shares():
    draw = GroupDraw({"a": 1e308, "b": 1e308}, seed=0, epoch=0, shard=Shard())
    assert {draw.draw() for _ in range(20)} == {"a", "b"}
