"""What the stack remembers between two commands, and the lock that keeps commands apart.

`.local/state.json` is replaced whole, so that a reader or a crash never meets half a file.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.failures import PrerequisiteError, StackError
from infra.ports import S3Ports
from infra.processes import ProcessRecord

VERSION = 1
PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things lie. `root` holds prefect.yaml and flows; all else is under `root/.local`."""

    root: Path

    @property
    def local(self) -> Path:
        """Folder of everything the stack writes."""
        return self.root / ".local"

    @property
    def logs(self) -> Path:
        """Folder of the log files."""
        return self.local / "logs"

    @property
    def prefect_home(self) -> Path:
        """PREFECT_HOME: database, local results, profiles."""
        return self.local / "prefect"

    @property
    def s3_home(self) -> Path:
        """Folder of the store: credentials and data."""
        return self.local / "s3"

    @property
    def s3_data(self) -> Path:
        """Folder of the store's volumes."""
        return self.s3_home / "data"

    @property
    def state_file(self) -> Path:
        """The state file."""
        return self.local / "state.json"

    def log(self, name: str) -> Path:
        """Log file of a component or command."""
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Make the folders, readable by their owner only.

        Raises:
            PrerequisiteError: a folder cannot be made or written.
        """
        for folder in (self.local, self.logs, self.prefect_home, self.s3_home, self.s3_data):
            try:
                folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                probe = folder / f".write-{os.getpid()}"
                probe.touch()
                probe.unlink()
            except OSError as error:
                raise PrerequisiteError(
                    f"The local stack must be able to write {folder}; {error.strerror}. "
                    "Give yourself write access or pass another --root."
                ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """The stack's memory.

    Attributes:
        stack_id: random name of this stack; marks its processes.
        prefect_port: port of the Prefect server, kept over `down`.
        s3_ports: ports of the store, kept over `down`.
        processes: component name -> record of its last start.
        deployed: digest of what was deployed last, or "".
    """

    stack_id: str
    prefect_port: int | None = None
    s3_ports: S3Ports | None = None
    processes: Mapping[str, ProcessRecord] = field(default_factory=dict)
    deployed: str = ""

    def mark(self, component: str) -> str:
        """The environment mark of a component's processes."""
        return f"{self.stack_id}:{component}"


def fresh() -> StackState:
    """The state of a stack that was never started."""
    return StackState(stack_id=secrets.token_hex(12))


def load(layout: Layout) -> StackState | None:
    """Read the state file; None if there is none.

    Raises:
        StackError: the file is not one of ours.
    """
    try:
        text = layout.state_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PrerequisiteError(f"{layout.state_file} must be readable: {error}.") from error
    try:
        return _decode(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StackError(
            f"{layout.state_file} must be a state file of version {VERSION}; found "
            f"{type(error).__name__}: {error}. Stop the listed pids by hand, then remove the file."
        ) from error


def save(state: StackState, *, layout: Layout) -> None:
    """Replace the state file."""
    text = json.dumps({"version": VERSION, **asdict(state)}, indent=2, sort_keys=True)
    write_private(layout.state_file, text=text + "\n")


def write_private(path: Path, *, text: str) -> None:
    """Replace a file by one that only its owner may read."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@contextlib.contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Hold the stack's lock; it ends with the process, so a crash leaves none behind.

    Raises:
        StackError: another command is at work on this stack.
    """
    path = layout.local / "lock"
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise StackError(
                f"Only one command may change the stack in {layout.local} at a time; "
                f"pid {file.read().strip() or 'unknown'} is at work. Wait for it or stop it."
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _decode(data: dict[str, Any]) -> StackState:
    if data["version"] != VERSION:
        raise ValueError(f"version {data['version']}")
    ports = data["s3_ports"]
    return StackState(
        stack_id=data["stack_id"],
        prefect_port=data["prefect_port"],
        s3_ports=None if ports is None else S3Ports(**ports),
        processes={name: ProcessRecord(**one) for name, one in data["processes"].items()},
        deployed=data["deployed"],
    )
