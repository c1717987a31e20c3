"""Which ports a start uses: those of running parts, the requested, the last, or free ones."""

from dataclasses import dataclass, replace

from infra import ports
from infra.failures import PrerequisiteError
from infra.ports import S3Ports
from infra.state import StackState

PREFECT_VARIABLE = "MEGAPACK_PREFECT_PORT"
S3_VARIABLE = "MEGAPACK_S3_PORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Chosen ports: the Prefect server's and all of the store's."""

    server: int
    s3: S3Ports


def chosen(state: StackState) -> Addresses:
    """The ports that an earlier `choose` put into the state.

    Raises:
        RuntimeError: none were chosen yet (a bug of the caller).
    """
    if state.prefect_port is None or state.s3_ports is None:
        raise RuntimeError("The ports must be chosen before they are used.")
    return Addresses(server=state.prefect_port, s3=state.s3_ports)


def choose(state: StackState, *, running: set[str], server: str, s3: str) -> StackState:
    """Choose the ports of the parts that do not run.

    Args:
        state: the state; its ports are kept where they can be.
        running: names of the components that run.
        server: name of the Prefect server among them.
        s3: name of the store among them.

    Returns:
        The state with ports.

    Raises:
        PrerequisiteError: a requested port is taken, or differs from that of a running part.
    """
    wanted_server = ports.requested(PREFECT_VARIABLE)
    wanted_s3 = ports.requested(S3_VARIABLE)
    server_port, s3_ports = state.prefect_port, state.s3_ports
    if s3 in running and s3_ports is not None:
        _refuse_move(S3_VARIABLE, wanted=wanted_s3, running=s3_ports.s3)
    else:
        avoid = [] if server_port is None else [server_port]
        if wanted_server is not None:
            avoid.append(wanted_server)
        s3_ports = ports.choose_s3_ports(wanted=wanted_s3, last=s3_ports, avoid=avoid)
    if server in running and server_port is not None:
        _refuse_move(PREFECT_VARIABLE, wanted=wanted_server, running=server_port)
    else:
        server_port = ports.choose_server_port(
            wanted=wanted_server, last=server_port, avoid=s3_ports.all()
        )
    return replace(state, prefect_port=server_port, s3_ports=s3_ports)


def _refuse_move(variable: str, *, wanted: int | None, running: int) -> None:
    if wanted not in (None, running):
        raise PrerequisiteError(
            f"{variable}={wanted} differs from port {running} on which this stack already runs. "
            f"Run `python -m infra.local down` first, or unset {variable}."
        )
