"""`make demo`: bring the local stack up, run the main job to its end, print what came of it.

Without `--data` the job reads the demo's own conversations. With it, a person's: any file, folder,
glob, prefix or `s3://` address that the split step reads, under `--format`.
"""

import argparse
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from infra import http
from infra.demo.build import build_demo
from infra.demo.topics import DemoError

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
    code = _run(parameters(options.data, options.format), _stack_environment())
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


def _stack_environment() -> dict[str, str]:
    """This environment with the variables of the running stack."""
    printed = subprocess.run(
        [sys.executable, "-m", "infra.local", "env"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = dict(os.environ)
    for word in shlex.split(printed, comments=True):
        name, equals, value = word.partition("=")
        if equals:
            found[name] = value
    return found


def _run(chosen: dict[str, Any], environ: dict[str, str]) -> int:
    """Start the deployment, watch it, print its summary; returns the exit status."""
    api = environ["PREFECT_API_URL"].rstrip("/")
    name = f"{chosen['prepare']['name']}-{secrets.token_hex(3)}"
    _say(f"prefect deployment run {FLOW}/{DEPLOYMENT} --watch   (run {name})")
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deployment", "run"]
    command += [f"{FLOW}/{DEPLOYMENT}", "--watch", "--watch-interval", "2"]
    command += ["--flow-run-name", name, "--params", json.dumps(chosen)]
    watched = subprocess.run(command, cwd=ROOT, env=environ, check=False)
    run = _find_run(api, name)
    if run is None:
        return watched.returncode or 1
    ui = api.removesuffix("/api")
    if run["state_type"] != "COMPLETED":
        _say(f"run {name} ended as {run['state_name']}: {_reason(run)}")
        _say(f"look at it: {ui}/runs/flow-run/{run['id']}")
        return 1
    _say(_summary(api, run["id"]))
    _say(f"UI: {ui}/runs/flow-run/{run['id']}")
    return 0


def _find_run(api: str, name: str) -> dict[str, Any] | None:
    found = _post(api, "flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})
    run: dict[str, Any] | None = found[0] if found else None
    return run


def _reason(run: dict[str, Any]) -> str:
    message: str = (run.get("state") or {}).get("message") or "no message"
    return message


def _summary(api: str, run_id: str) -> str:
    wanted = {"flow_run_id": {"any_": [run_id]}, "key": {"any_": [SUMMARY_KEY]}}
    found = _post(api, "artifacts/filter", {"artifacts": wanted, "sort": "CREATED_DESC"})
    if not found:
        return "the run left no summary"
    text: str = found[0]["data"]
    return text.replace("```", "").strip()


def _post(api: str, path: str, body: object) -> Any:  # noqa: ANN401 -- decoded JSON
    answer = http.call(
        f"{api}/{path}",
        method="POST",
        body=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        timeout=30.0,
    )
    return answer.json()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
