"""The `megapack` command: start deployments by their short name, report on and audit datasets.

`megapack run FLOW` is the short form of `prefect deployment run FLOW/local --watch`, with the
deployment's parameters as defaults, `--set` for single fields, and the run's log to watch.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from megapack.cli import export, foreign
from megapack.cli.run import PrefectServer, deployment, run_to_end
from megapack.errors import ConfigError, MegapackError
from megapack.records.refs import DatasetRef
from megapack.steps.audit import audit
from megapack.steps.foreign.audit import is_dataset
from megapack.steps.report import packing_report
from megapack.steps.resolve import resolve_dataset
from megapack.steps.tables import committed, parts
from megapack.store.document_frames import frame_to_drops
from megapack.store.manifest import PartKind


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        Exit code: 0 done, 1 the run or the audit failed, 2 the command was wrong.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except MegapackError as error:
        sys.stderr.write(f"megapack: {error}\n")
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="megapack", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="start a deployment and watch it to its end")
    run.add_argument("flow", help="flow name, such as pack-and-train")
    run.add_argument("--deployment", default="local", help="deployment name (default: local)")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one parameter, such as prepare.pack.row_length=2048; VALUE is JSON or text",
    )
    run.add_argument("--params", type=Path, help="JSON file with parameters to change")
    run.set_defaults(command=_run)

    for name, command, text in (
        ("report", _report, "what a dataset holds, and what was dropped and why"),
        ("audit", _audit, "check the laws on a dataset; exits with 1 when one is broken"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.add_argument("uri", help="dataset folder or s3:// prefix")
        sub.add_argument("--version", type=int, help="version number (default: the newest)")
        if name == "report":
            sub.add_argument(
                "--drops", action="store_true", help="list every dropped record instead"
            )
        if name == "audit":
            foreign.add_options(sub)
        sub.set_defaults(command=command)
    export.add(commands)
    return parser


def _report(options: argparse.Namespace) -> int:
    if options.drops:
        _write(_drops(options))
    else:
        _write(packing_report(_dataset(options)).lines())
    return 0


def _audit(options: argparse.Namespace) -> int:
    if not is_dataset(options.uri):
        found = foreign.audit_of(options)
        _write(found.lines())
        return 1 if found.counts else 0
    report = audit(_dataset(options))
    summary = (
        f"audit rows={report.num_rows} checks={report.num_checks} "
        f"violations={len(report.violations)}"
    )
    _write([*report.violations, summary])
    return 1 if report.violations else 0


def _dataset(options: argparse.Namespace) -> DatasetRef:
    try:
        return resolve_dataset(options.uri, version=options.version)
    except ConfigError as error:
        if options.uri in str(error):
            raise
        raise ConfigError(f"{options.uri}: {error}") from error


def _write(lines: Iterable[str]) -> None:
    """Print lines; whoever reads them may stop early, as `head` does."""
    try:
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must not fail once more when the interpreter exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _drops(options: argparse.Namespace) -> Iterator[str]:
    """One line a dropped record: file, line as editors count it, reason, what was found."""
    for _, frame in parts(committed(_dataset(options)), PartKind.DROPS):
        for drop in frame_to_drops(frame):
            yield f"{drop.uri}:{drop.line + 1}: {drop.reason.value}: {drop.detail}"


def _run(options: argparse.Namespace) -> int:
    server = PrefectServer.from_environment()
    target = deployment(server, options.flow, options.deployment)
    parameters: dict[str, Any] = target["parameters"]
    if options.params is not None:
        parameters = merged(parameters, _read_parameters(options.params))
    for setting in options.set:
        parameters = merged(parameters, parse_setting(setting))
    run = run_to_end(server, target, parameters, say=lambda line: _write([line]))
    return 0 if run is not None else 1


def _read_parameters(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected JSON parameters in {path}: {error}.") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"expected a JSON object in {path}, found {type(loaded).__name__}.")
    return loaded


def parse_setting(setting: str) -> dict[str, Any]:
    """`a.b=value` as nested dictionaries; the value is JSON, or text when it is no JSON.

    >>> parse_setting("prepare.pack.row_length=2048")
    {'prepare': {'pack': {'row_length': 2048}}}
    >>> parse_setting("prepare.store=s3://bucket/x")
    {'prepare': {'store': 's3://bucket/x'}}

    Raises:
        ConfigError: there is no `=`.
    """
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise ConfigError(f"expected --set PATH=VALUE, found {setting!r}.")
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text
    for key in reversed(path.split(".")):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`base` with `change` laid over it; dictionaries are merged, all else is replaced.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    result = dict(base)
    for key, value in change.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result
