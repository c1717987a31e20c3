"""The local stack from the command line: `python -m infra.local up|down|status|env|...`.

Exit status: 0 done; 1 failed, or something is down; 2 a prerequisite is missing or the request
cannot be met; 130 interrupted. Errors are one line on stderr.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infra import environment, signals, state
from infra.failures import ExitCode, PrerequisiteError, StackError
from infra.prefect_stack import POOL
from infra.signals import Interrupted
from infra.stack import S3, SERVER, WORKER, Stack, require
from infra.state import Layout

_WATCH_SECONDS = 1.0
_MIB = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program name; sys.argv if None.

    Returns:
        The exit status.
    """
    arguments = _parser().parse_args(argv)
    layout = Layout(root=Path(arguments.root).resolve())
    command: Callable[[Layout], ExitCode] = _COMMANDS[arguments.command]
    signals.catch()
    try:
        if sys.platform != "linux":
            raise PrerequisiteError(f"The local stack runs on Linux only; found {sys.platform}.")
        return command(layout)
    except StackError as error:
        _complain(str(error))
        return error.exit_code
    except Interrupted as error:
        _complain(f"{error}; what this command had started was stopped")
        return ExitCode.INTERRUPTED


def up(layout: Layout) -> ExitCode:
    """Start what is not running and print the addresses."""
    started = time.monotonic()
    require(layout)
    layout.create()
    with state.exclusive(layout):
        stack = Stack(layout, say=_say)
        stack.up()
    with signals.ignored():
        _summary(stack, seconds=time.monotonic() - started)
    return ExitCode.OK


def down(layout: Layout) -> ExitCode:
    """Stop everything; data and ports are kept."""
    if not layout.local.is_dir():
        _say(f"nothing to stop: {layout.local} does not exist")
        return ExitCode.OK
    with state.exclusive(layout), signals.ignored():
        Stack(layout, say=_say).down()
    _say("stopped")
    return ExitCode.OK


def run_in_foreground(layout: Layout) -> ExitCode:
    """Bring the stack up and stop it when interrupted, or when a part of it ends."""
    try:
        up(layout)
        _say("press Ctrl-C to stop")
        while True:
            time.sleep(_WATCH_SECONDS)
            stack = Stack(layout, say=_say)
            missing = [name for name in (S3, SERVER, WORKER) if not stack.is_running(name)]
            if missing:
                break
    except Interrupted:
        down(layout)
        return ExitCode.OK
    if not stack.current.processes:
        _say("stopped by another command")
        return ExitCode.OK
    down(layout)
    logs = ", ".join(str(layout.log(name)) for name in missing)
    raise StackError(f"{', '.join(missing)} must keep running but ended. Read {logs}.")


def status(layout: Layout) -> ExitCode:
    """Show each component; the exit status is 0 only if all are healthy."""
    if state.load(layout) is None:
        _say(f"never started: {layout.state_file} does not exist")
        return ExitCode.FAILED
    stack = Stack(layout, say=_say)
    statuses = stack.statuses()
    for one in statuses:
        text = "healthy" if one.problem is None else one.problem
        where = "" if one.pid is None else f" pid={one.pid}"
        memory = f" memory_mib={one.resident_bytes // _MIB}" if one.pid is not None else ""
        _say(f"{one.name}: {text}{where}{memory} log={layout.log(one.name)}")
    if any(one.problem for one in statuses):
        return ExitCode.FAILED
    _addresses(stack)
    return ExitCode.OK


def env(layout: Layout) -> ExitCode:
    """Print shell lines that let prefect and megapack talk to the stack."""
    if state.load(layout) is None:
        raise StackError(
            f"The stack must have been started; {layout.state_file} does not exist. "
            "Run `python -m infra.local up` first."
        )
    stack = Stack(layout, say=_say)
    at = stack.addresses
    variables = {
        **environment.client_variables(layout, prefect_port=at.server),
        **environment.store_variables(stack.credentials, s3_port=at.s3.s3),
        **environment.no_proxy(os.environ),
    }
    for name, value in variables.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    # The commands `megapack` and `prefect` live where this interpreter does.
    programs = shlex.quote(str(Path(sys.executable).parent))
    sys.stdout.write(f'export PATH={programs}:"$PATH"\n')
    return ExitCode.OK


_COMMANDS: dict[str, Callable[[Layout], ExitCode]] = {
    "up": up,
    "down": down,
    "status": status,
    "env": env,
    "run-in-foreground": run_in_foreground,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m infra.local",
        description="An S3 store, a Prefect server and a worker on this machine.",
        epilog="MEGAPACK_PREFECT_PORT and MEGAPACK_S3_PORT ask for ports; otherwise free ones are "
        "chosen and kept.",
    )
    parser.add_argument("command", choices=sorted(_COMMANDS))
    parser.add_argument(
        "--root",
        default=Path(__file__).parent.parent,
        help="folder of prefect.yaml and flows; its .local holds all state (default: this project)",
    )
    return parser


def _summary(stack: Stack, *, seconds: float) -> None:
    _say(f"ready after {seconds:.1f} s")
    _addresses(stack)


def _addresses(stack: Stack) -> None:
    at = stack.addresses
    ui = environment.prefect_api(at.server).removesuffix("/api")
    _say(f"Prefect UI   {ui}")
    _say(f"S3 endpoint  {environment.store_endpoint(at.s3.s3)}  (bucket {environment.BUCKET})")
    _say(f"work pool    {POOL}")
    _say(f"logs         {stack.layout.logs}")
    _say('shell        eval "$(make -s env)"')


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _complain(line: str) -> None:
    sys.stderr.write(f"infra.local: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
