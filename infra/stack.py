"""Bring the stack up, take it down, look at it.

`up` keeps what is alive and healthy and starts the rest; whatever it started is stopped again if
it does not reach the end. Order of start: store and server side by side, then the worker, then the
deployments. Order of stop: worker and runs, then server and store.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from infra import addresses, prefect_stack, processes, s3_store, signals, state, waiting
from infra.addresses import Addresses
from infra.failures import StackError
from infra.prefect_api import PrefectApi
from infra.s3_credentials import Credentials, load_or_create
from infra.state import Layout, StackState

S3 = "s3"
SERVER = "server"
WORKER = "worker"
DEPLOY = "deploy"

_START_SECONDS = {S3: 60.0, SERVER: 180.0, WORKER: 120.0}
_REUSE_SECONDS = 60.0
_STOP_SECONDS = {S3: 15.0, SERVER: 15.0, WORKER: 15.0, DEPLOY: 2.0}
_TITLES = {
    S3: s3_store.TITLE,
    SERVER: prefect_stack.SERVER_TITLE,
    WORKER: prefect_stack.WORKER_TITLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """What `status` shows of one component; `problem` is None if it is healthy."""

    name: str
    pid: int | None
    problem: str | None
    resident_bytes: int


class Stack:
    """One local stack; all methods but `statuses` need the lock of `state.exclusive`.

    Args:
        layout: where its files are; the folders must exist.
        say: takes each line for the user.
    """

    def __init__(self, layout: Layout, *, say: Callable[[str], None]) -> None:
        self.layout = layout
        self._say = say
        self._state = state.load(layout) or state.fresh()
        self._credentials: Credentials | None = None
        self._started: list[str] = []

    @property
    def current(self) -> StackState:
        """The state as last written."""
        return self._state

    @property
    def credentials(self) -> Credentials:
        """The store's keys, made at the first start."""
        if self._credentials is None:
            self._credentials = load_or_create(self.layout.s3_home / "credentials.json")
        return self._credentials

    @property
    def addresses(self) -> Addresses:
        """The chosen ports."""
        return addresses.chosen(self._state)

    def up(self) -> None:
        """Bring everything up, or leave nothing of what this call started.

        Raises:
            PrerequisiteError: a requested port is taken.
            StackError: a component does not become healthy.
        """
        self._started = []
        try:
            self._bring_up()
        except BaseException:
            with signals.ignored():
                self.stop(*reversed(self._started))
            raise

    def stop(self, *components: str) -> None:
        """Stop the given components, their children and leftovers; settle the runs they leave."""
        for name in components:
            record = self._state.processes.get(name)
            processes.stop(record, mark=self._state.mark(name), seconds=_STOP_SECONDS[name])
            if name == WORKER:
                self._settle_runs("The worker of the local stack ended before this run did.")
            if name == S3:
                s3_store.remove_sockets(self._state.s3_ports)
            self._forget(name)

    def down(self) -> None:
        """Stop everything; data, ports and deployments stay for the next `up`."""
        self.stop(DEPLOY, WORKER, SERVER, S3)

    def is_running(self, component: str) -> bool:
        """Tell whether a component's process lives."""
        return processes.is_alive(self._state.processes.get(component))

    def statuses(self) -> list[ComponentStatus]:
        """Look at every component now."""
        found = []
        for name in (S3, SERVER, WORKER):
            record = self._state.processes.get(name)
            if record is None or not processes.is_alive(record):
                status = ComponentStatus(name=name, pid=None, problem="down", resident_bytes=0)
            else:
                status = ComponentStatus(
                    name=name,
                    pid=record.pid,
                    problem=self._check(name)(),
                    resident_bytes=processes.resident_bytes(record.pid),
                )
            found.append(status)
        return found

    def _bring_up(self) -> None:
        self._drop_unhealthy(S3, SERVER)
        running = {name for name in (S3, SERVER) if self.is_running(name)}
        placed = addresses.choose(self._state, running=running, server=SERVER, s3=S3)
        if (placed.prefect_port, placed.s3_ports) != (
            self._state.prefect_port,
            self._state.s3_ports,
        ):
            # A worker that still runs, and its runs, know the old addresses.
            self.stop(WORKER)
        self._remember(placed)
        starting = [name for name in (S3, SERVER) if not self.is_running(name)]
        for name in starting:
            self._start(name)
        for name in starting:
            self._wait(name)
        s3_store.check_refusals(self.credentials, ports=self.addresses.s3)
        self._drop_unhealthy(WORKER)
        if not self.is_running(WORKER):
            self._start_worker()
        self._deploy()

    def _start_worker(self) -> None:
        started = time.time()
        self._start(WORKER)
        self._wait(WORKER, since=started)

    def _drop_unhealthy(self, *components: str) -> None:
        for name in components:
            record = self._state.processes.get(name)
            if record is None or not processes.is_alive(record):
                # What it left behind would hold its ports.
                self.stop(name)
                continue
            patience = waiting.Patience(
                what=_TITLES[name], seconds=_REUSE_SECONDS, log=self.layout.log(name)
            )
            try:
                waiting.until_healthy(self._check(name), record=record, patience=patience)
            except StackError as error:
                self._say(f"restarting {name}: {error}")
                self.stop(name)

    def _start(self, name: str) -> None:
        self._say(f"starting {name}")
        # Before the start, so that a signal in the middle of it still finds the child by its mark.
        self._started.append(name)
        record = processes.start(self._launch(name))
        self._remember(replace(self._state, processes={**self._state.processes, name: record}))

    def _wait(self, name: str, *, since: float | None = None) -> None:
        waiting.until_healthy(
            self._check(name, since=since),
            record=self._state.processes[name],
            patience=waiting.Patience(
                what=_TITLES[name], seconds=_START_SECONDS[name], log=self.layout.log(name)
            ),
        )

    def _launch(self, name: str) -> processes.Launch:
        at = self.addresses
        mark = self._state.mark(name)
        if name == SERVER:
            return prefect_stack.server_launch(self.layout, port=at.server, mark=mark)
        if name == S3:
            return s3_store.launch(
                self.layout, ports=at.s3, credentials=self.credentials, mark=mark
            )
        return prefect_stack.worker_launch(self.layout, environ=self._run_environ(), mark=mark)

    def _run_environ(self) -> dict[str, str]:
        return prefect_stack.run_environ(
            self.layout, addresses=self.addresses, credentials=self.credentials
        )

    def _check(self, name: str, *, since: float | None = None) -> Callable[[], str | None]:
        at = self.addresses
        api = PrefectApi(port=at.server)
        if name == SERVER:
            return api.problem
        if name == S3:
            return lambda: s3_store.problem(self.credentials, port=at.s3.s3)
        return lambda: prefect_stack.worker_problem(api, since=since)

    def _settle_runs(self, message: str) -> None:
        port = self._state.prefect_port
        if port is None or not self.is_running(SERVER):
            return
        api = PrefectApi(port=port)
        if api.problem() is not None:
            return
        names = api.crash_unfinished(pool=prefect_stack.POOL, message=message)
        if names:
            self._say(f"marked as crashed: {', '.join(names)}")

    def _deploy(self) -> None:
        wanted = prefect_stack.digest(self.layout)
        # The server forgets its deployments when somebody removes its database.
        known = PrefectApi(port=self.addresses.server).count_deployments()
        if known and wanted == self._state.deployed:
            return
        self._say("applying prefect.yaml")
        self._started.append(DEPLOY)
        prefect_stack.deploy(
            self.layout,
            environ=self._run_environ(),
            mark=self._state.mark(DEPLOY),
        )
        self._remember(replace(self._state, deployed=wanted))

    def _forget(self, name: str) -> None:
        kept = {key: one for key, one in self._state.processes.items() if key != name}
        if kept != self._state.processes:
            self._remember(replace(self._state, processes=kept))

    def _remember(self, new: StackState) -> None:
        self._state = new
        state.save(new, layout=self.layout)


def require(layout: Layout) -> None:
    """Check, before anything is written, that this machine and project can have a stack.

    Raises:
        PrerequisiteError: a program, a package or prefect.yaml is missing.
    """
    prefect_stack.require(layout)
    s3_store.binary()
