"""What every launcher agrees on: the command, the files of a run, the callbacks.

A launcher starts N copies of one module, relays what they print and measure, and returns when
all have ended well. Rank -1 stands for the launching agent itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

OnLine = Callable[[int, str], None]
"""Called with (rank, line) for each line a rank prints; rank -1 is the agent."""

OnMetric = Callable[[Mapping[str, Any]], None]
"""Called with each object that rank 0 writes to the metrics file."""

AGENT_RANK = -1

SCRATCH_VARIABLE = "MEGAPACK_RUN_SCRATCH"
"""Environment variable that tells a rank the scratch folder of its run."""

AGENT_VARIABLE = "MEGAPACK_AGENT_PID"
"""Environment variable with the process id of the agent, the parent of every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """What to start.

    Attributes:
        module: module that every rank runs as `python -m module`.
        arguments: arguments of the module.
        num_ranks: processes to start, >= 1.
        scratch: node-local folder of the run; its `ranks` folder is emptied at each start.
        environment: variables added to, or replaced in, those of this process.
        timeout_s: longest duration of the run in seconds, None for no limit.
        stop_within_s: seconds in which ranks that are told to stop have saved and ended, None for
            ranks that save nothing then.
        agent_module: module that starts the ranks; takes torchrun's flags.
    """

    module: str
    arguments: tuple[str, ...]
    num_ranks: int
    scratch: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    stop_within_s: float | None = None
    agent_module: str = "torch.distributed.run"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Where the parts of a run leave their files on this node.

    Attributes:
        scratch: node-local folder of the run.
    """

    scratch: Path

    @property
    def folder(self) -> Path:
        """Folder of all files below; fresh at each start."""
        return self.scratch / "ranks"

    @property
    def metrics(self) -> Path:
        """JSON lines, one object a line, written by rank 0."""
        return self.folder / "metrics.jsonl"

    def log(self, rank: int) -> Path:
        """Everything that a rank, or the agent, prints."""
        return self.folder / ("agent.log" if rank == AGENT_RANK else f"rank-{rank:05d}.log")

    def failure(self, rank: int) -> Path:
        """JSON description of the error that ended a rank."""
        return self.folder / f"rank-{rank:05d}.error.json"


class Launcher(Protocol):
    """Starts ranks and returns when all have ended well."""

    def __call__(self, command: RankCommand, *, on_line: OnLine, on_metric: OnMetric) -> None:
        """Run to the end.

        Args:
            command: what to start.
            on_line: receives log lines while the run is going on.
            on_metric: receives metrics while the run is going on.

        Raises:
                StoppedError: the ranks were told to stop and have saved.
            RankError: a rank died; carries rank, exit code and last lines.
            ConfigError, DataError, StoreError, ContractError: raised in a rank; raised again here.
        """
        ...
