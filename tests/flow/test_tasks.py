"""What the tasks add to the steps: when they try again, how reuse and losses are shown.

Prefect is imported inside the tests: at the top, each process that collects this file pays for it.
"""

import pytest

from megapack.errors import (
    ConfigError,
    ContractError,
    DataError,
    RankError,
    StoppedError,
    StoreError,
)
from megapack.records.refs import Ref

pytestmark = pytest.mark.flow


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StoreError("x"), True),
        (RankError("x", rank=1, exit_code=-9), True),
        (RankError("x", rank=-1, exit_code=1), True),
        (RankError("x", rank=-1, exit_code=-15), False),
        (RankError("x", rank=-1, exit_code=-2), False),
        (StoppedError("x"), False),
        (ConfigError("x"), False),
        (DataError("x"), False),
        (ContractError("x"), False),
        (ValueError("x"), False),
    ],
)
def test_only_store_and_rank_errors_are_tried_again(error, again):
    from prefect.states import Failed

    from tasks.retry import store_or_rank_failed

    assert store_or_rank_failed(None, None, Failed(data=error)) is again


def test_reused_reference_is_a_completed_state_of_that_name():
    from tasks.retry import reused_or_done

    ref = Ref(uri="u", version=3, digest="d")
    assert reused_or_done(ref) is ref
    state = reused_or_done(ref.model_copy(update={"reused": True}))
    assert (state.name, state.type) == ("Reused", "COMPLETED")
    assert state.data.uri == "u"


def test_loss_curve_is_a_png():
    from tasks.loss_curve import draw

    drawn = draw({"train": [(1, 3.0), (2, 2.5)], "evaluation": [(0, 3.1)]})
    assert drawn.startswith(b"\x89PNG")
