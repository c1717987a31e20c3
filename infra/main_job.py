"""`make demo`: bring the local stack up, run the main job to its end, print what came of it.

Without `--data` the job reads the demo's own conversations. With it, a person's: any file, folder,
glob, prefix or `s3://` address that the split step reads, under `--format`.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from infra.demo.build import build_demo
from infra.demo.topics import DemoError
from megapack.cli.deployments import PrefectServer, artifact, deployment, run_to_end
from megapack.errors import MegapackError

ROOT = Path(__file__).resolve().parent.parent
FLOW, DEPLOYMENT = "pack-and-train", "local"
SUMMARY_KEY = "summary"
_OWN_DATA = {
    "prepare": {"pack": {"row_length": 8192}},
    "train": {
        "steps": 20,
        "global_batch_rows": 2,
        "evaluate_every": 10,
        "evaluation_rows": 2,
        "checkpoint_every": 10,
    },
    "extract": {"max_rows": 4},
}
"""What changes for a person's own data: longer rows and fewer steps, to end in minutes."""


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", help="conversations of your own")
    parser.add_argument("--format", help="prompt format (default: chat_template)")
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        demo = build_demo(ROOT / ".local" / "demo")
    except DemoError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    _say(f"demo content {demo.outcome.value}: {demo.folder.relative_to(ROOT)}")
    up = subprocess.run([sys.executable, "-m", "infra.local", "up"], cwd=ROOT, check=False)
    if up.returncode != 0:
        return up.returncode
    code = _run(parameters(options.data, options.format), _api())
    _say(f"{'done' if code == 0 else 'failed'} in {time.monotonic() - begin:.0f} s")
    return code


def parameters(data: str | None, prompt_format: str | None) -> dict[str, Any]:
    """Parameters of the run: the deployment's own, with a person's data and format laid over."""
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    entry = next(one for one in deployments if FLOW.replace("-", "_") in one["entrypoint"])
    chosen: dict[str, Any] = json.loads(json.dumps(entry["parameters"]))
    if data is not None:
        for part, changes in _OWN_DATA.items():
            for key, value in changes.items():
                old = chosen[part].get(key)
                chosen[part][key] = {**old, **value} if isinstance(old, dict) else value
        uri = data if "://" in data else str(Path(data).expanduser().resolve())
        chosen["prepare"]["sources"] = [{"uri": uri, "name": Path(data).name}]
        chosen["prepare"]["name"] = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(data).name).lstrip("._-")
    if prompt_format is not None:
        chosen["prepare"]["tokenize"]["format"] = prompt_format
        chosen["prepare"]["name"] += f"-{re.sub(r'[^A-Za-z0-9.-]+', '-', prompt_format)}"
    return chosen


def _api() -> str:
    """Address of the running stack's Prefect API."""
    printed = subprocess.run(
        [sys.executable, "-m", "infra.local", "env"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    words = (word.partition("=") for word in shlex.split(printed, comments=True))
    return {name: value for name, equals, value in words if equals}["PREFECT_API_URL"]


def _run(chosen: dict[str, Any], api: str) -> int:
    """Start the deployment, follow its log, print its summary; returns the exit status."""
    server = PrefectServer(api=api)
    try:
        target = deployment(server, FLOW, DEPLOYMENT)
        _say(f"starting {FLOW}/{DEPLOYMENT}, as `megapack run {FLOW}` does")
        run = run_to_end(server, target, chosen, say=_say)
    except MegapackError as error:
        _say(f"{FLOW}: {error}")
        return 2
    if run is None:
        return 1
    summary = artifact(server, run["id"], SUMMARY_KEY) or "the run left no summary"
    _say(summary.replace("```", "").strip())
    _say(f"UI: {server.page(run['id'])}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
