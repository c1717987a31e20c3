"""Choice of loopback ports.

All ports lie below 32768, where Linux starts to hand out ports for outgoing connections, so that
a stack that was stopped finds its ports free again. Between the choice and the bind another
program may take a port; the component then fails to start and the error names its log.
"""

import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from infra.failures import PrerequisiteError

LOOPBACK = "127.0.0.1"
LOWEST = 10_240
HIGHEST = 32_000
LAST_PORT = 65_535

# Weed's internal worker looks for the admin server's gRPC at the HTTP port plus this, whatever
# -admin.port.grpc says (seaweedfs 4.48, observed).
ADMIN_GRPC_OFFSET = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Ports:
    """Every port that `weed mini` opens; gRPC of admin is `admin + ADMIN_GRPC_OFFSET`."""

    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int
    admin: int

    @property
    def admin_grpc(self) -> int:
        """The gRPC port of the admin server."""
        return self.admin + ADMIN_GRPC_OFFSET

    def all(self) -> tuple[int, ...]:
        """Every port, in no particular order."""
        return (*asdict(self).values(), self.admin_grpc)


def is_free(port: int) -> bool:
    """Tell whether a server could bind `port` on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def requested(variable: str, *, environ: Mapping[str, str] | None = None) -> int | None:
    """Read a port that the user asked for.

    Args:
        variable: name of the environment variable.
        environ: environment to read; this process's own if None.

    Returns:
        The port, or None if the variable is unset or empty.

    Raises:
        PrerequisiteError: the value is not a port number.
    """
    text = (os.environ if environ is None else environ).get(variable, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= LAST_PORT:
        raise PrerequisiteError(
            f"{variable} must be a port number from 1 to {LAST_PORT}; found {text!r}. "
            "Set another value or unset it."
        )
    return int(text)


def choose_server_port(*, wanted: int | None, last: int | None, avoid: Iterable[int]) -> int:
    """Choose one port: the wanted one, else the last one used, else any free one.

    Args:
        wanted: port the user asked for (MEGAPACK_PREFECT_PORT).
        last: port of the previous start.
        avoid: ports chosen for something else.

    Raises:
        PrerequisiteError: the wanted port is taken, or no port is free.
    """
    if wanted is not None:
        return _claim(wanted, variable="MEGAPACK_PREFECT_PORT")
    taken = set(avoid)
    if last is not None and last not in taken and is_free(last):
        return last
    return _pick(taken)


def choose_s3_ports(*, wanted: int | None, last: S3Ports | None, avoid: Iterable[int]) -> S3Ports:
    """Choose the store's ports: the last ones where all are free, else new ones.

    Args:
        wanted: port of the S3 endpoint that the user asked for (MEGAPACK_S3_PORT).
        last: ports of the previous start.
        avoid: ports chosen for something else.

    Raises:
        PrerequisiteError: the wanted port is taken, or too few ports are free.
    """
    if wanted is not None:
        _claim(wanted, variable="MEGAPACK_S3_PORT")
    if last is not None and wanted in (None, last.s3) and all(map(is_free, last.all())):
        return last
    taken = set(avoid)

    def pick() -> int:
        port = _pick(taken)
        taken.add(port)
        return port

    if wanted is not None:
        taken.add(wanted)
    admin = _pick(taken, accept=lambda port: is_free(port + ADMIN_GRPC_OFFSET))
    taken |= {admin, admin + ADMIN_GRPC_OFFSET}
    return S3Ports(
        s3=pick() if wanted is None else wanted,
        s3_grpc=pick(),
        master=pick(),
        master_grpc=pick(),
        volume=pick(),
        volume_grpc=pick(),
        filer=pick(),
        filer_grpc=pick(),
        admin=admin,
    )


def _claim(port: int, *, variable: str) -> int:
    if not is_free(port):
        raise PrerequisiteError(
            f"{variable}={port} asks for a port that another program already uses on {LOOPBACK}. "
            f"Stop that program, set another port, or unset {variable} to have a free one chosen."
        )
    return port


def _pick(taken: set[int], *, accept: Callable[[int], bool] | None = None) -> int:
    # Which ports are used is no part of any artefact, so ambient randomness is welcome here: it
    # keeps two stacks that start at once apart.
    for port in random.sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST):
        if port not in taken and is_free(port) and (accept is None or accept(port)):
            return port
    raise PrerequisiteError(
        f"A free port between {LOWEST} and {HIGHEST} on {LOOPBACK} is needed; found none. "
        "Stop programs that listen there."
    )
