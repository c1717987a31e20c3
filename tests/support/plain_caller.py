"""A process that calls the launcher, to be stopped or killed by a test.

python -m tests.support.plain_caller SCRATCH MODE main|thread AGENT
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from megapack.steps.launch.local import run_ranks
from megapack.steps.launch.protocol import RankCommand

if __name__ == "__main__":
    scratch, mode, where, agent = sys.argv[1:]
    command = RankCommand(
        module="tests.support.plain_rank",
        arguments=(mode,),
        num_ranks=2,
        scratch=Path(scratch),
        agent_module=agent,
        stop_within_s=8.0 if mode == "save_when_told" else None,
    )
    relay = {"on_line": lambda rank, line: None, "on_metric": lambda metric: None}
    if where == "main":
        run_ranks(command, **relay)
    else:
        with ThreadPoolExecutor() as pool:
            pool.submit(run_ranks, command, **relay).result()
