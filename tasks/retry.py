"""When Prefect may try a task again, and how a reused result looks in the UI."""

import signal
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from megapack.errors import RankError, StoreError
from megapack.records.refs import Ref

_TOLD_TO_STOP = {(-1, -signal.SIGTERM), (-1, -signal.SIGINT)}
RETRIES = 2
RETRY_DELAYS_S = [2.0, 15.0]


def store_or_rank_failed(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """True when a second try can help: object storage or a process failed, not the job or data.

    Args:
        task: the task that failed; not looked at.
        task_run: its run; not looked at.
        state: the failed state.

    Returns:
        Whether the error was a `StoreError`, or a `RankError` other than the launching agent's
        end by a signal that a person or a cancel sent.
    """
    error = state.result(raise_on_failure=False)
    if isinstance(error, RankError):
        return (error.rank, error.exit_code) not in _TOLD_TO_STOP
    return isinstance(error, StoreError)


def reused_or_done[AnyRef: Ref](ref: AnyRef) -> AnyRef | State[AnyRef]:
    """The task's return value: the reference, as a state named `Reused` when nothing was made."""
    if not ref.reused:
        return ref
    return Completed(name="Reused", message=f"{ref.uri} version {ref.version}", data=ref)
