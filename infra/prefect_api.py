"""The few calls of the Prefect server's HTTP API that the stack needs.

Importing Prefect's own client costs 3 to 6 seconds; these calls cost none of that.
"""

import datetime
import json
from typing import Any

from infra import http
from infra.environment import prefect_api
from infra.failures import StackError

_TIMEOUT_SECONDS = 10.0
_CREATED = 201
_PAGE = 200
_UNFINISHED = ("RUNNING", "PENDING", "CANCELLING")


class PrefectApi:
    """Calls to one server on loopback."""

    def __init__(self, *, port: int) -> None:
        self._base = prefect_api(port)

    def problem(self) -> str | None:
        """None if the server is up and reaches its database, else why not."""
        try:
            answers = [
                http.call(f"{self._base}/{path}", timeout=5.0) for path in ("health", "ready")
            ]
        except http.UnreachableError as error:
            return str(error)
        bad = [str(answer.status) for answer in answers if answer.status != http.OK]
        return f"its health check got HTTP {', '.join(bad)}" if bad else None

    def has_pool(self, pool: str) -> bool:
        """Tell whether the work pool exists."""
        answer = http.call(f"{self._base}/work_pools/{pool}", timeout=_TIMEOUT_SECONDS)
        if answer.status not in (http.OK, http.NOT_FOUND):
            raise StackError(f"Reading work pool {pool} got HTTP {answer.status}.")
        return answer.status == http.OK

    def last_heartbeat(self, *, pool: str, worker: str) -> datetime.datetime | None:
        """When the worker last reported to its pool (UTC); None if never."""
        try:
            if not self.has_pool(pool):
                return None
            workers = self._post(f"work_pools/{pool}/workers/filter", {})
        except http.UnreachableError:
            return None
        times = [one["last_heartbeat_time"] for one in workers if one["name"] == worker]
        if not times or times[0] is None:
            return None
        return datetime.datetime.fromisoformat(times[0])

    def count_deployments(self) -> int:
        """Number of deployments the server knows."""
        return int(self._post("deployments/count", {}))

    def crash_unfinished(self, *, pool: str, message: str) -> list[str]:
        """Force the unfinished runs of a pool, and the runs they started, to Crashed.

        A run whose worker is gone stays Running for ever otherwise, and holds a slot of the pool.

        Args:
            pool: the work pool; no worker may be at work on it.
            message: what the run's state shall say.

        Returns:
            The names of the runs that were changed.
        """
        of_pool = {"work_pools": {"name": {"any_": [pool]}}}
        runs = self._runs(of_pool)
        done: dict[str, str] = {}
        while runs:
            for run in runs:
                self._crash(run["id"], message=message)
                done[run["id"]] = run["name"]
            parents = {"parent_flow_run_id": {"any_": [run["id"] for run in runs]}}
            found = [*self._runs(of_pool), *self._runs({}, flow_runs=parents)]
            runs = [run for run in found if run["id"] not in done]
        return list(done.values())

    def _runs(self, query: dict[str, Any], *, flow_runs: dict[str, Any] | None = None) -> list[Any]:
        states = {"state": {"type": {"any_": list(_UNFINISHED)}}}
        body = {**query, "flow_runs": {**states, **(flow_runs or {})}, "limit": _PAGE}
        return list(self._post("flow_runs/filter", body))

    def _crash(self, run_id: str, *, message: str) -> None:
        state = {"type": "CRASHED", "name": "Crashed", "message": message}
        self._post(f"flow_runs/{run_id}/set_state", {"state": state, "force": True})

    def _post(self, path: str, body: object) -> Any:  # noqa: ANN401 -- decoded JSON
        answer = http.call(
            f"{self._base}/{path}",
            method="POST",
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            timeout=_TIMEOUT_SECONDS,
        )
        if answer.status not in (http.OK, _CREATED):
            text = answer.body[:200].decode(errors="replace")
            raise StackError(f"POST {self._base}/{path} got HTTP {answer.status}: {text}")
        return answer.json()


def age_seconds(moment: datetime.datetime) -> float:
    """Seconds since a moment."""
    return (datetime.datetime.now(tz=datetime.UTC) - moment).total_seconds()
