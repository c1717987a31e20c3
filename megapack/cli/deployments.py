"""Start a deployment over Prefect's HTTP API, follow its log, and say how it ended.

`megapack run FLOW` and `make demo` come here. Prefect's own client is not loaded: it would cost
five seconds before anything happens. The parameters that megapack knows are checked first, so a
wrong job is refused at once instead of in a queued run.
"""

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from megapack.errors import ConfigError, StoreError
from megapack.jobs.base import Job
from megapack.jobs.distill import DistillSettings
from megapack.jobs.explain import explain
from megapack.jobs.extract import ExtractSettings
from megapack.jobs.multimodal import PackMultimodalJob
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.refresh import RefreshSettings
from megapack.jobs.train import TrainRequest

DEFAULT_API = "http://127.0.0.1:4200/api"
KNOWN: Mapping[str, type[Job]] = {
    "prepare": PrepareJob,
    "refresh": RefreshSettings,
    "train": TrainRequest,
    "extract": ExtractSettings,
    "distill": DistillSettings,
    "pack": PackMultimodalJob,
}
"""Parameters that are jobs, by name."""

_POLL_S = 1.0
_LAST_LINES_POLLS = 3
_BUSY = 503
_NOT_FOUND = 404
_BUSY_TRIES = 30
_LOG_PAGE = 200
_ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_QUIET = ("Finished in state", "Beginning flow run", "[rank ", "View at ", "Opening process")
_INFO_LEVEL = 20
_WARNING_LEVEL = 30

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefectServer:
    """A Prefect server, by the address of its API."""

    api: str

    @classmethod
    def from_environment(cls) -> "PrefectServer":
        """The server of `PREFECT_API_URL`, or the usual local one."""
        return cls(api=(os.environ.get("PREFECT_API_URL") or DEFAULT_API).rstrip("/"))

    def page(self, run_id: str) -> str:
        """Address of a run in the UI."""
        return f"{self.api.removesuffix('/api')}/runs/flow-run/{run_id}"

    def call(self, path: str, body: object = None) -> Any:  # noqa: ANN401 - decoded JSON
        """GET a path, or POST a body to it.

        Raises:
            ConfigError: there is no server, or it refused what was asked.
            StoreError: it stayed too busy to answer.
        """
        for _ in range(_BUSY_TRIES):
            try:
                return self._ask(path, body)
            except urllib.error.HTTPError as error:
                if error.code != _BUSY:
                    raise ConfigError(_refusal(error)) from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise ConfigError(
                    f"expected a Prefect API at {self.api} (PREFECT_API_URL), found none: {error}. "
                    'Start the local stack with `make up`, then `eval "$(make -s env)"`.'
                ) from error
            # SQLite is locked while another request writes.
            time.sleep(_POLL_S)
        raise StoreError(f"{self.api}/{path}: the server stayed busy. Try again.")

    def _ask(self, path: str, body: object) -> Any:  # noqa: ANN401 - decoded JSON
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.api}/{path}", data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def deployment(server: PrefectServer, flow: str, name: str) -> dict[str, Any]:
    """A deployment with its own parameters.

    Raises:
        ConfigError: the server has none of this name, or there is no server.
    """
    try:
        quoted = "/".join(urllib.parse.quote(part, safe="") for part in (flow, name))
        found = server.call(f"deployments/name/{quoted}")
    except UnicodeEncodeError as error:
        raise ConfigError(f"expected the name of a flow, found {flow!r}. Check it.") from error
    except ConfigError as error:
        if not isinstance(error.__cause__, urllib.error.HTTPError):
            raise
        there = _deployments(server) if error.__cause__.code == _NOT_FOUND else []
        if there:
            raise ConfigError(
                f"expected a deployment {flow}/{name} on {server.api}, found: {', '.join(there)}. "
                "Name one of them (--deployment says what follows the stroke)."
            ) from error
        raise ConfigError(
            f"expected a deployment {flow}/{name} on {server.api}: {str(error).rstrip('.')}. Start "
            "the local stack with `make up`, or deploy with `prefect --no-prompt deploy --all`."
        ) from error
    if not isinstance(found, dict) or not {"id", "parameters"} <= found.keys():
        raise ConfigError(
            f"expected a Prefect API at {server.api} (PREFECT_API_URL), found something else that "
            "answers there. Check the address."
        )
    return found


def _deployments(server: PrefectServer) -> list[str]:
    """Names of the deployments on a server, as `flow/deployment`; none where it does not say."""
    try:
        flows = {one["id"]: one["name"] for one in server.call("flows/filter", {})}
        found = server.call("deployments/filter", {})
        return sorted(f"{flows[one['flow_id']]}/{one['name']}" for one in found)
    except (ConfigError, LookupError, TypeError):
        return []


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Check the parameters that are jobs, before a run is created.

    Raises:
        ConfigError: a field is wrong; each fault on its own line.
    """
    for name, job in KNOWN.items():
        if parameters.get(name) is None:
            continue
        try:
            job.model_validate(parameters[name])
        except ValidationError as error:
            raise ConfigError(f"parameter {name} is wrong:\n{explain(error, job)}") from error


def run_to_end(
    server: PrefectServer, target: Mapping[str, Any], parameters: Mapping[str, Any], *, say: Say
) -> dict[str, Any] | None:
    """Create a run of a deployment and follow it to its end.

    Args:
        server: where.
        target: the deployment.
        parameters: all of them.
        say: takes the lines of the run's log, without those of single ranks.

    Returns:
        The run when it completed; None when it ended otherwise, which `say` was told.

    Raises:
        ConfigError: a parameter is wrong, or the server refused the run.
    """
    check_parameters(parameters)
    created = server.call(f"deployments/{target['id']}/create_flow_run", {"parameters": parameters})
    page = server.page(created["id"])
    say(f"run {created['name']}: {page}")
    try:
        run = _follow(server, created["id"], say)
    except KeyboardInterrupt:
        say(f"stopped watching; the run goes on: {page} (cancel it there, or end all: make down)")
        return None
    if run["state_type"] == "COMPLETED":
        return run
    message = (run.get("state") or {}).get("message") or "no message"
    say(f"run {run['name']} ended as {run['state_name']}: {message}")
    say(f"look at it: {page}")
    return None


def artifact(server: PrefectServer, run_id: str, key: str) -> str | None:
    """Text of a run's artifact, None when it left none."""
    wanted = {"flow_run_id": {"any_": [run_id]}, "key": {"any_": [key]}}
    found = server.call("artifacts/filter", {"artifacts": wanted, "sort": "CREATED_DESC"})
    return str(found[0]["data"]) if found else None


def _follow(server: PrefectServer, run_id: str, say: Say) -> dict[str, Any]:
    shown, waiting = 0, ""
    while True:
        run: dict[str, Any] = server.call(f"flow_runs/{run_id}")
        if run["state_name"] != waiting and run["state_type"] in ("SCHEDULED", "PENDING"):
            waiting = run["state_name"]
            say(f"{waiting.lower()}: one run of a deployment goes at a time; waiting for a worker")
        shown = _show_log(server, run_id, shown, say)
        if run["state_type"] in _ENDED:
            # A run sends its last lines a moment after its last state.
            time.sleep(_LAST_LINES_POLLS * _POLL_S)
            _show_log(server, run_id, shown, say)
            return run
        time.sleep(_POLL_S)


def _show_log(server: PrefectServer, run_id: str, shown: int, say: Say) -> int:
    """Say the log lines after the first `shown`; the number of lines seen so far."""
    query = {
        "logs": {"flow_run_id": {"any_": [run_id]}, "level": {"ge_": _INFO_LEVEL}},
        "sort": "TIMESTAMP_ASC",
        "limit": _LOG_PAGE,
    }
    while True:
        lines = server.call("logs/filter", query | {"offset": shown})
        for line in lines:
            message: str = line["message"]
            if line["level"] >= _WARNING_LEVEL or not message.startswith(_QUIET):
                say(f"  {message.splitlines()[0] if message else ''}")
        shown += len(lines)
        if len(lines) < _LOG_PAGE:
            return shown


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        detail = json.loads(error.read()).get("detail")
    except ValueError:
        detail = None
    return str(detail or f"HTTP {error.code} {error.reason}")
