"""`make demo`: bring the local stack up, run the main job to its end, print what came of it.

Without `--data` the job reads the demo's own conversations. With it, a person's: any file, folder,
glob, prefix or `s3://` address that the split step reads, under `--format`.
"""

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

from infra.demo.topics import DemoError
from infra.demo_run import (
    RunFailed,
    parameters_of,
    run_and_sum_up,
    say,
    start_stack,
)
from megapack.cli.deployments import PrefectServer
from megapack.errors import MegapackError

FLOW, ENTRYPOINT = "pack-and-train", "flows.pack_and_train.pack_and_train"
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
        server = start_stack()
    except DemoError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except RunFailed as failed:
        return failed.code
    code = _run(parameters(options.data, options.format), server)
    say(f"{'done' if code == 0 else 'failed'} in {time.monotonic() - begin:.0f} s")
    return code


def parameters(data: str | None, prompt_format: str | None) -> dict[str, Any]:
    """Parameters of the run: the deployment's own, with a person's data and format laid over."""
    chosen = parameters_of(ENTRYPOINT)
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


def _run(chosen: dict[str, Any], server: PrefectServer) -> int:
    """Start the deployment, follow its log, print its summary; returns the exit status."""
    try:
        summary, page = run_and_sum_up(server, FLOW, chosen)
    except RunFailed:
        return 1
    except MegapackError as error:
        say(f"{FLOW}: {error}")
        return 2
    say(summary or "the run left no summary")
    say(f"UI: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
