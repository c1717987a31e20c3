"""The metrics file of a run and its history.

Rank 0 writes one JSON object a line for whoever watches. A copy without what only this process
can say (durations) is the history, which a checkpoint carries: after a resume the file begins
with the history, so that a reader always sees the whole curve.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

MetricValue = str | int | float | None
MetricObject = Mapping[str, MetricValue]

_OF_THIS_PROCESS = (
    "step_s",
    "tokens_per_s",
    "tokens_per_s_per_rank",
    "flops_per_s",
    "mfu",
    "memory_bytes",
    "payload_wait_s",
    "straggler_",
)


class MetricLog:
    """Appends metric objects to a file and remembers them.

    Args:
        path: JSON lines file, None on ranks that do not write.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._history: list[dict[str, MetricValue]] = []

    def write(self, metric: MetricObject) -> None:
        """Append one object: one write, so that a reader never sees half of it."""
        self._history.append(
            {name: value for name, value in metric.items() if not name.startswith(_OF_THIS_PROCESS)}
        )
        self.announce(metric)

    def announce(self, metric: MetricObject) -> None:
        """Append one object for whoever watches; the history does not keep it."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(metric, allow_nan=False) + "\n")

    def replay(self, history: Iterable[MetricObject]) -> None:
        """Begin with the history of the run that this one continues."""
        for metric in history:
            self.write(metric)

    def text(self) -> str:
        """The history as JSON lines, for a checkpoint."""
        return "".join(json.dumps(metric, allow_nan=False) + "\n" for metric in self._history)

    @staticmethod
    def load(path: Path) -> list[dict[str, MetricValue]]:
        """Read what `save` wrote."""
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
