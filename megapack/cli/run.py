"""`megapack run FLOW`: the short form of `prefect deployment run FLOW/local --watch`.

With the deployment's parameters as defaults, `--set` for single fields, and the run's log to watch.
"""

import argparse
from pathlib import Path
from typing import Any

from megapack.cli.commands import FAILED, Lesson, add_command
from megapack.cli.deployments import PrefectServer, deployment, run_to_end
from megapack.cli.settings import merged, parse_setting, read_json
from megapack.cli.terminal import write

LESSON = Lesson(
    sentence="start a Prefect deployment and watch its run to the end",
    more="Ctrl-C stops the watching, not the run. Parameters are checked before a run is created.",
    examples=(
        "megapack run pack-and-train",
        "megapack run pack-and-train --set prepare.pack.row_length=2048 --set train.steps=200",
    ),
    failed="the run did not complete",
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "run", LESSON, _run)
    parser.add_argument("flow", help="flow name, such as pack-and-train")
    parser.add_argument("--deployment", default="local", help="deployment name (default: local)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one parameter, such as prepare.pack.row_length=2048; VALUE is JSON or text",
    )
    parser.add_argument("--params", type=Path, help="JSON file with parameters to change")


def _run(options: argparse.Namespace) -> int:
    server = PrefectServer.from_environment()
    target = deployment(server, options.flow, options.deployment)
    parameters: dict[str, Any] = target["parameters"]
    if options.params is not None:
        parameters = merged(parameters, read_json(options.params))
    for setting in options.set:
        parameters = merged(parameters, parse_setting(setting))
    run = run_to_end(server, target, parameters, say=lambda line: write([line]))
    return 0 if run is not None else FAILED
