import math

import pytest

from megapack.engine.guard import Fault, Guard, GuardError, GuardState, Verdict, spike_limit
from megapack.jobs.train import GuardJob, NotFinitePolicy, SpikePolicy


def guard(**changes):
    return Guard(GuardJob(**{"window": 4, "least_losses": 3, "spike_deviations": 2.0, **changes}))


def after(losses, **changes):
    one = guard(**changes)
    for loss in losses:
        one.applied(loss)
    return one


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_a_fault_from_the_first_step_on(loss):
    assert guard().find(loss, 1.0) is Fault.LOSS_NOT_FINITE


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_a_fault_at_a_finite_loss(norm):
    assert guard().find(2.0, norm) is Fault.GRADIENT_NOT_FINITE


def test_spike_limit_is_mean_plus_deviations_of_the_window():
    losses = (1.0, 2.0, 3.0)
    expected = 2.0 + 2.0 * math.sqrt(2.0 / 3.0)
    assert spike_limit(losses, GuardJob(least_losses=3, spike_deviations=2.0)) == expected
    assert spike_limit(losses[:2], GuardJob(least_losses=3)) is None


def test_equal_losses_leave_room_for_a_small_rise_only():
    one = after([2.0, 2.0, 2.0])
    assert one.find(2.03, 1.0) is Fault.NONE
    assert one.find(2.05, 1.0) is Fault.LOSS_SPIKE


def test_a_fall_is_no_spike():
    assert after([2.0, 2.0, 2.0]).find(0.1, 1.0) is Fault.NONE


def test_the_window_forgets():
    one = after([9.0, 1.0, 1.0, 1.0, 1.0])
    assert one.state.losses == (1.0, 1.0, 1.0, 1.0)
    assert one.find(3.0, 1.0) is Fault.LOSS_SPIKE


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (SpikePolicy.WARN, Verdict.APPLY),
        (SpikePolicy.SKIP, Verdict.SKIP),
        (SpikePolicy.STOP, Verdict.STOP),
    ],
)
def test_what_a_spike_leads_to_is_the_jobs_choice(policy, verdict):
    assert guard(on_spike=policy).verdict(Fault.LOSS_SPIKE) is verdict


@pytest.mark.parametrize("fault", [Fault.LOSS_NOT_FINITE, Fault.GRADIENT_NOT_FINITE])
def test_what_is_not_finite_is_never_applied(fault):
    assert guard().verdict(fault) is Verdict.STOP
    assert guard(on_not_finite=NotFinitePolicy.SKIP).verdict(fault) is Verdict.SKIP


def test_skipped_steps_do_not_enter_the_window_and_too_many_in_a_row_end_the_run():
    one = after([2.0, 2.0, 2.0], most_skipped_in_row=2)
    one.skipped()
    one.skipped()
    assert one.state == GuardState(losses=(2.0, 2.0, 2.0), skipped_in_row=2)
    with pytest.raises(GuardError, match=r"skipped 3 steps.*at most .*most_skipped_in_row = 2"):
        one.skipped()


def test_an_update_ends_the_count_of_skipped_steps():
    one = guard(most_skipped_in_row=1)
    one.skipped()
    one.applied(2.0)
    one.skipped()
    assert one.state.skipped_in_row == 1


def test_state_survives_json():
    import json

    state = GuardState(losses=(0.1, 1 / 3), skipped_in_row=2)
    assert GuardState.from_json(json.loads(json.dumps(state.as_json()))) == state


def test_a_window_too_small_to_judge_is_refused():
    with pytest.raises(ValueError, match="least_losses = 9, expected at most window = 4"):
        GuardJob(window=4, least_losses=9)
