"""The Prefect server, its worker and the deployments of prefect.yaml.

Every Prefect command costs 3 to 7 seconds of import, so there are three only: the server, the
worker (which makes its work pool itself) and one `deploy --all`, run when its input changed.
"""

import hashlib
import importlib.util
import sys
import time

from infra import environment, processes
from infra.addresses import Addresses
from infra.failures import PrerequisiteError, StackError
from infra.ports import LOOPBACK
from infra.prefect_api import PrefectApi, age_seconds
from infra.s3_credentials import Credentials
from infra.state import Layout
from infra.waiting import last_line

POOL = "megapack-local"
WORKER = "megapack-local-worker"
SERVER_TITLE = "The Prefect server"
WORKER_TITLE = "The Prefect worker"

_PREFECT = (sys.executable, "-m", "prefect")
_HEARTBEAT_SECONDS = 5
_STALE_SECONDS = 6 * _HEARTBEAT_SECONDS
_DEPLOY_SECONDS = 240.0
# What a deployment records: its own entry, the flow's source and the schema of its parameters.
_DEPLOYED_SOURCES = ("prefect.yaml", "flows/**/*.py", "tasks/**/*.py", "megapack/jobs/**/*.py")


def require(layout: Layout) -> None:
    """Check that Prefect is installed and that there is something to deploy.

    Raises:
        PrerequisiteError: one of them is missing.
    """
    if importlib.util.find_spec("prefect") is None:
        raise PrerequisiteError(
            f"The local stack needs the package prefect; {sys.executable} does not have it. "
            "Install this project's requirements into its virtual environment and use its Python."
        )
    if not (layout.root / "prefect.yaml").is_file():
        raise PrerequisiteError(
            f"The project root must hold prefect.yaml; {layout.root} does not. "
            "Run from the project root or pass --root."
        )


def server_launch(layout: Layout, *, port: int, mark: str) -> processes.Launch:
    """Say how to start the server with its UI on `port`; it keeps its state in PREFECT_HOME."""
    inherited = environment.inherited()
    environ = {
        **inherited,
        **environment.code_variables(layout, inherited),
        **environment.client_variables(layout, prefect_port=port),
        "PREFECT_SERVER_API_HOST": LOOPBACK,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_ENABLED": "true",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    }
    return processes.Launch(
        args=[*_PREFECT, "server", "start", "--host", LOOPBACK, "--port", str(port)],
        environ=environ,
        folder=layout.root,
        log=layout.log("server"),
        mark=mark,
    )


def worker_launch(layout: Layout, *, environ: dict[str, str], mark: str) -> processes.Launch:
    """Say how to start the worker; runs inherit its environment, the store's keys included.

    Args:
        layout: where the project is; the worker's folder is its root.
        environ: environment of a run.
        mark: mark of the worker and of all its runs.
    """
    return processes.Launch(
        args=[
            *_PREFECT,
            *("worker", "start", "--pool", POOL, "--name", WORKER),
            *("--type", "process", "--install-policy", "never"),
        ],
        environ={
            **environ,
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_WORKER_HEARTBEAT_SECONDS": str(_HEARTBEAT_SECONDS),
        },
        folder=layout.root,
        log=layout.log("worker"),
        mark=mark,
    )


def run_environ(
    layout: Layout, *, addresses: Addresses, credentials: Credentials
) -> dict[str, str]:
    """The whole environment of a run: cleaned, with the code, the API and the store reachable."""
    inherited = environment.inherited()
    return {
        **inherited,
        **environment.code_variables(layout, inherited),
        **environment.client_variables(layout, prefect_port=addresses.server),
        **environment.store_variables(credentials, s3_port=addresses.s3.s3),
    }


def worker_problem(api: PrefectApi, *, since: float | None) -> str | None:
    """None if the worker reports to its pool, else why not.

    Args:
        api: the server.
        since: time.time() of its start, which the report must follow; None for a worker that was
            running before: its last report must then be recent.
    """
    heartbeat = api.last_heartbeat(pool=POOL, worker=WORKER)
    if heartbeat is None:
        return f"worker {WORKER} is not known to pool {POOL}"
    age = age_seconds(heartbeat)
    limit = _STALE_SECONDS if since is None else time.time() - since
    return None if age <= limit else f"worker {WORKER} last reported {age:.0f} s ago"


def digest(layout: Layout) -> str:
    """Digest of everything that `deploy` reads, as hex: when it is unchanged, so are they."""
    total = hashlib.sha256()
    for pattern in _DEPLOYED_SOURCES:
        for path in sorted(layout.root.glob(pattern)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(layout.root)}\0{content}\n".encode())
    return total.hexdigest()


def deploy(layout: Layout, *, environ: dict[str, str], mark: str) -> None:
    """Apply every deployment of prefect.yaml.

    Args:
        layout: where the project and the log are.
        environ: environment of a run: the flows are imported to read their parameters.
        mark: mark of the process.

    Raises:
        StackError: Prefect refused, or took longer than the bound.
    """
    log = layout.log("deploy")
    record = processes.start(
        processes.Launch(
            args=[*_PREFECT, "--no-prompt", "deploy", "--all"],
            environ={**environ, "PREFECT_CLI_PROMPT": "false", "PREFECT_CLI_COLORS": "false"},
            folder=layout.root,
            log=log,
            mark=mark,
        )
    )
    status = processes.exit_status(record, seconds=_DEPLOY_SECONDS)
    if status is None:
        processes.stop(record, mark=mark, seconds=1.0)
        raise StackError(f"`prefect deploy --all` must end in {_DEPLOY_SECONDS:.0f} s. Read {log}.")
    if status != 0:
        raise StackError(
            f"`prefect deploy --all` must succeed for {layout.root / 'prefect.yaml'}; it ended "
            f"with status {status} ({last_line(log)}). Read {log}."
        )
