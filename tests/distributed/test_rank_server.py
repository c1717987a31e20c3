"""The tool that the other tests stand on: failures, time-outs and dead ranks are reported."""

import os
import time
from pathlib import Path

import pytest

from tests.support.ranks import RankFailure, RankServer


def rank_number(*, add: int) -> int:
    import torch.distributed as dist

    return dist.get_rank() + add


def fail_on_rank_1() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("rank 1 does not like this")
    dist.barrier()


def die_on_rank_0() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 0:
        os._exit(3)


def sleep_for_ever() -> None:
    time.sleep(600)


def test_run_returns_each_ranks_result(ranks: RankServer) -> None:
    assert ranks.run(rank_number, world_size=4, add=10) == [10, 11, 12, 13]


def test_run_reports_traceback_of_failing_rank(ranks: RankServer) -> None:
    with pytest.raises(RankFailure, match=r"(?s)--- rank 1.*rank 1 does not like this"):
        ranks.run(fail_on_rank_1, world_size=2)


def test_run_reports_rank_that_dies(ranks: RankServer) -> None:
    with pytest.raises(RankFailure, match="rank 0\ndied without an answer"):
        ranks.run(die_on_rank_0, world_size=2)


def test_run_kills_ranks_after_timeout_and_leaves_no_child(ranks: RankServer) -> None:
    with pytest.raises(RankFailure, match=r"no answer in 0\.5 s"):
        ranks.run(sleep_for_ever, world_size=2, timeout_s=0.5)
    server = ranks._process.pid
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    assert children == []
