"""Numbers of the comparison, and a timer that is off."""

import torch

from megapack.engine.straggler import NoTimer, slowest, step_timer
from megapack.jobs.train import StragglerTiming


def test_slowest_rank_its_seconds_and_its_ratio_to_the_median():
    assert slowest("read", [1.0, 4.0, 2.0, 2.0]) == {
        "straggler_read_rank": 1,
        "straggler_read_s": 4.0,
        "straggler_read_ratio": 2.0,
    }


def test_ranks_that_did_nothing_are_equally_slow():
    assert slowest("forward", [0.0, 0.0])["straggler_forward_ratio"] == 1.0


def test_a_timer_that_is_off_hands_the_iterator_back_and_needs_no_world():
    timer = step_timer(StragglerTiming.OFF, torch.device("cpu"))
    items = iter([1, 2])
    assert isinstance(timer, NoTimer)
    assert timer.reading(items) is items
    assert timer.compare() == {}
