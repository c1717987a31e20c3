"""The local launcher with real processes; ranks without torch, and once the real torchrun."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from megapack.errors import ConfigError, DataError, RankError, StoppedError
from megapack.steps.launch.local import run_ranks
from megapack.steps.launch.protocol import RankCommand, RunFiles

pytestmark = pytest.mark.distributed
PLAIN = "tests.support.plain_agent"
TORCHRUN = "torch.distributed.run"


def launch(scratch: Path, mode: str, *, agent: str = PLAIN, timeout_s: float | None = 50.0):
    lines: list[tuple[int, str]] = []
    metrics: list[dict] = []
    command = RankCommand(
        module="tests.support.plain_rank",
        arguments=(mode,),
        num_ranks=2,
        scratch=scratch,
        timeout_s=timeout_s,
        agent_module=agent,
    )
    run_ranks(command, on_line=lambda r, text: lines.append((r, text)), on_metric=metrics.append)
    return lines, metrics


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(")") + 1 :].split()[0] != "Z"


def pids_of(scratch: Path, *, within_s: float = 40.0) -> list[int]:
    """Process ids of both ranks and of their agent, once all run."""
    deadline = time.monotonic() + within_s
    files = [RunFiles(scratch=scratch).folder / f"pid-{rank}" for rank in (0, 1)]
    while time.monotonic() < deadline:
        texts = [file.read_text() for file in files if file.exists()]
        if len(texts) == 2 and all(len(text.split()) == 2 for text in texts):
            return [int(text.split()[0]) for text in texts] + [int(texts[0].split()[1])]
        time.sleep(0.02)
    raise AssertionError(f"ranks did not start within {within_s} s")


def seconds_until_gone(pids: list[int], *, limit_s: float) -> float:
    started = time.monotonic()
    while any(is_running(pid) for pid in pids):
        if time.monotonic() - started > limit_s:
            raise AssertionError(f"still running after {limit_s} s: {pids}")
        time.sleep(0.01)
    return time.monotonic() - started


def start_caller(scratch: Path, mode: str, where: str, agent: str = PLAIN) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.plain_caller", str(scratch), mode, where, agent],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )


def test_launch_relays_lines_and_metrics_of_all_ranks(tmp_path):
    lines, metrics = launch(tmp_path, "succeed")
    for rank in (0, 1):
        assert [text for r, text in lines if r == rank] == [
            f"rank {rank} says one",
            f"rank {rank} says two without an end",
        ]
    assert metrics == [{"step": 1, "loss": 1.5}, {"step": 2, "loss": 0.75}]


def test_launch_relays_metrics_while_ranks_run(tmp_path):
    command = RankCommand(
        module="tests.support.plain_rank",
        arguments=("slow_metric",),
        num_ranks=2,
        scratch=tmp_path,
        timeout_s=30.0,
        agent_module=PLAIN,
    )
    # The ranks end only when the metric has arrived here.
    run_ranks(command, on_line=lambda *_: None, on_metric=lambda _: (tmp_path / "seen").touch())
    assert (tmp_path / "seen").exists()


def test_launch_raises_config_error_of_a_rank_as_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"rank 1: row_length = 7, expected a multiple of 4"):
        launch(tmp_path, "config_error")


def test_launch_prefers_error_of_ours_over_broken_connection_of_a_peer(tmp_path):
    with pytest.raises(DataError, match="rank 1: document 3f"):
        launch(tmp_path, "data_error_after_peer")


def test_launch_reports_rank_exit_code_and_last_lines_of_a_crash(tmp_path):
    with pytest.raises(RankError, match=r"rank 1 ended with 1 .ValueError: broken") as caught:
        launch(tmp_path, "crash")
    assert (caught.value.rank, caught.value.exit_code, len(caught.value.tail)) == (1, 1, 50)
    assert caught.value.tail[-1] == "ValueError: broken"


def test_launch_blames_the_killed_rank_not_its_peers(tmp_path):
    with pytest.raises(RankError, match="killed by SIGKILL") as caught:
        launch(tmp_path, "killed_with_peer")
    assert (caught.value.rank, caught.value.exit_code) == (1, -9)


def test_launch_stops_deaf_ranks_after_the_time_limit(tmp_path):
    started = time.monotonic()
    with pytest.raises(RankError, match=r"expected the run to end within 4\.0 s"):
        launch(tmp_path, "wait_deaf", timeout_s=4.0)
    assert time.monotonic() - started < 15
    assert not any(is_running(pid) for pid in pids_of(tmp_path, within_s=1))


def test_launch_ends_the_tree_when_a_callback_raises(tmp_path):
    def refuse(_rank: int, _line: str) -> None:
        raise KeyboardInterrupt

    command = RankCommand(
        module="tests.support.plain_rank",
        arguments=("crash",),
        num_ranks=2,
        scratch=tmp_path,
        agent_module=PLAIN,
    )
    before = children_of(os.getpid())
    with pytest.raises(KeyboardInterrupt):
        run_ranks(command, on_line=refuse, on_metric=lambda _: None)
    assert children_of(os.getpid()) == before


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# Ctrl-C in a thread is missing: a pool waits for its threads, and the terminal tells the agent.
@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("main", signal.SIGKILL),
        ("main", signal.SIGTERM),
        ("main", signal.SIGINT),
        ("thread", signal.SIGKILL),
        ("thread", signal.SIGTERM),
    ],
)
def test_launch_leaves_no_rank_when_the_caller_is_signalled(tmp_path, where, number):
    caller = start_caller(tmp_path, "wait", where)
    pids = pids_of(tmp_path)
    caller.send_signal(number)
    assert seconds_until_gone(pids, limit_s=8) < 8
    caller.wait(timeout=10)


def saved(scratch: Path) -> list[str]:
    return sorted(path.name for path in scratch.glob("saved-*"))


@pytest.mark.parametrize("told", ["caller", "caller in a thread", "agent", "group"])
def test_launch_gives_ranks_time_to_save_whoever_is_told_to_stop(tmp_path, told):
    where = "thread" if told == "caller in a thread" else "main"
    caller = start_caller(tmp_path, "save_when_told", where)
    *ranks, agent = pids_of(tmp_path)
    if told == "agent" or where == "thread":
        # Nobody can raise in another thread; a terminal or a scheduler tells the agent as well.
        os.kill(agent, signal.SIGTERM)
    else:
        os.kill(caller.pid, signal.SIGTERM)
    if told == "group":
        os.kill(agent, signal.SIGTERM)
    assert seconds_until_gone([*ranks, agent], limit_s=8) >= 0.4
    assert saved(tmp_path) == ["saved-0", "saved-1"]
    assert caller.wait(timeout=10) == 1


def test_launch_names_a_run_that_was_told_to_stop_as_such(tmp_path):
    def tell() -> None:
        os.kill(pids_of(tmp_path)[2], signal.SIGTERM)

    teller = threading.Thread(target=tell)
    teller.start()
    with pytest.raises(
        StoppedError, match=r"rank [01]: told to stop: step 3 of 9 is saved"
    ) as caught:
        launch(tmp_path, "save_when_told")
    teller.join()
    assert (caught.value.rank, caught.value.exit_code) == (-1, -signal.SIGTERM)
    assert saved(tmp_path) == ["saved-0", "saved-1"]


def test_launch_reports_killed_agent_and_leaves_no_rank(tmp_path):
    agent_killed: list[float] = []

    def kill_agent() -> None:
        pids = pids_of(tmp_path)
        os.kill(pids[2], signal.SIGKILL)
        agent_killed.append(seconds_until_gone(pids[:2], limit_s=5))

    killer = threading.Thread(target=kill_agent)
    killer.start()
    with pytest.raises(RankError, match=r"killed by SIGKILL.*reported no failed rank") as caught:
        launch(tmp_path, "wait")
    killer.join()
    assert (caught.value.rank, caught.value.exit_code) == (-1, -9)
    assert len(agent_killed) == 1


def test_launch_with_torchrun_blames_killed_rank_and_leaves_no_process(tmp_path):
    seen: dict[str, float] = {}

    def kill_rank() -> None:
        seen["pids"] = pids_of(tmp_path)
        os.kill(seen["pids"][1], signal.SIGKILL)
        seen["killed"] = time.monotonic()

    killer = threading.Thread(target=kill_rank)
    killer.start()
    with pytest.raises(RankError, match="killed by SIGKILL") as caught:
        launch(tmp_path, "wait", agent=TORCHRUN)
    took = time.monotonic() - seen["killed"]
    killer.join()
    assert (caught.value.rank, caught.value.exit_code) == (1, -9)
    assert took < 10
    assert not any(is_running(pid) for pid in seen["pids"])


def test_launch_with_torchrun_leaves_no_rank_when_the_caller_is_killed(tmp_path):
    caller = start_caller(tmp_path, "wait", "thread", TORCHRUN)
    pids = pids_of(tmp_path)
    caller.kill()
    assert seconds_until_gone(pids, limit_s=5) < 5
    caller.wait(timeout=10)
