"""Runs of deployments on the local stack, for the demos: started, followed, their summary read."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.demo.build import build_demo
from megapack.cli.deployments import PrefectServer, artifact, deployment, run_to_end
from megapack.errors import MegapackError

ROOT = Path(__file__).resolve().parent.parent
DEPLOYMENT = "local"
SUMMARY_KEY = "summary"


class RunFailed(MegapackError):  # noqa: N818 - reads as what happened
    """Stack or run did not come to its end; it said why.

    Args:
        message: which.
        code: exit status to end with.
    """

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def say(line: str) -> None:
    """One line to whoever watches."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def start_stack() -> PrefectServer:
    """The demo's content and the local stack; made or started where they are missing.

    Raises:
        DemoError: the content cannot be made.
        RunFailed: the stack did not start; it said why.
    """
    demo = build_demo(ROOT / ".local" / "demo")
    say(f"demo content {demo.outcome.value}: {demo.folder.relative_to(ROOT)}")
    up = subprocess.run([sys.executable, "-m", "infra.local", "up"], cwd=ROOT, check=False)
    if up.returncode:
        raise RunFailed("the local stack did not start", code=up.returncode)
    return PrefectServer(api=stack_variables()["PREFECT_API_URL"])


def stack_variables() -> dict[str, str]:
    """Environment in which this machine's stack is reached: Prefect's address, the store's keys."""
    printed = subprocess.run(
        [sys.executable, "-m", "infra.local", "env"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    words = (word.partition("=") for word in shlex.split(printed, comments=True))
    return {name: value for name, equals, value in words if equals}


def parameters_of(entrypoint: str) -> dict[str, Any]:
    """A deployment's own parameters, as `prefect.yaml` says them; free to change."""
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    entry = next(one for one in deployments if one["entrypoint"] == entrypoint)
    chosen: dict[str, Any] = json.loads(json.dumps(entry["parameters"]))
    return chosen


def run_and_sum_up(
    server: PrefectServer, flow: str, parameters: Mapping[str, Any]
) -> tuple[str, str]:
    """Run a deployment to its end.

    Returns:
        Its summary, "" when it left none, and the address of its page.

    Raises:
        RunFailed: it did not complete.
        ConfigError: there is no such deployment, or a parameter is wrong.
    """
    target = deployment(server, flow, DEPLOYMENT)
    say(f"starting {flow}/{DEPLOYMENT}, as `megapack run {flow}` does")
    run = run_to_end(server, target, parameters, say=say)
    if run is None:
        raise RunFailed(f"{flow}: the run did not complete")
    summary = artifact(server, run["id"], SUMMARY_KEY) or ""
    return summary.replace("```", "").strip(), server.page(run["id"])


def fields_of(summary: str, kind: str) -> list[dict[str, str]]:
    """`name=value` fields of the lines of a summary that begin with a word."""
    lines = [line for line in summary.splitlines() if line.startswith(f"{kind} ")]
    return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]
