"""Reading files while other processes write them: whole lines, each once, in order."""

import json
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megapack.steps.launch.protocol import AGENT_RANK, OnLine, OnMetric, RunFiles

KEPT_LINES = 50
"""Last lines of each rank that an error carries."""

_LONGEST_LINE_BYTES = 1 << 16
_LINE_END = re.compile(rb"\r\n|\n|\r")


class LineTail:
    """New lines of a growing file. An unfinished last line waits until it is finished."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self, *, last: str = "wait") -> list[str]:
        """Lines that were finished since the last call.

        Args:
            last: "wait" leaves an unfinished last line for the next call, "flush" returns it too.

        Returns:
            Lines without their ends; bytes that are not UTF-8 become U+FFFD.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            new = b""
        self._offset += len(new)
        data = self._rest + new
        # A lone "\r" at the end may be the first half of "\r\n": it waits too.
        held = b"\r" if data.endswith(b"\r") and last == "wait" else b""
        *lines, rest = _LINE_END.split(data.removesuffix(held))
        if (rest and last == "flush") or len(rest) > _LONGEST_LINE_BYTES:
            lines.append(rest)
            rest = b""
        self._rest = rest + held
        return [line.decode("utf-8", "replace") for line in lines]


class Relay:
    """Moves log lines and metrics of a run to the caller's callbacks, in the calling thread."""

    def __init__(
        self, files: RunFiles, num_ranks: int, *, on_line: OnLine, on_metric: OnMetric
    ) -> None:
        self._on_line = on_line
        self._on_metric = on_metric
        self._logs = {rank: LineTail(files.log(rank)) for rank in (AGENT_RANK, *range(num_ranks))}
        self._metrics = LineTail(files.metrics)
        self._kept: dict[int, deque[str]] = {rank: deque(maxlen=KEPT_LINES) for rank in self._logs}

    def pump(self, *, last: str = "wait") -> None:
        """Hand over what is new.

        Args:
            last: "flush" at the end of the run, to hand over unfinished last lines.
        """
        for rank, log in self._logs.items():
            for line in log.read(last=last):
                self._kept[rank].append(line)
                self._on_line(rank, line)
        for line in self._metrics.read():
            self._on_metric(_parse(line))

    def tail(self, rank: int) -> tuple[str, ...]:
        """Last lines of a rank, oldest first."""
        return tuple(self._kept.get(rank, ()))


def _parse(line: str) -> Mapping[str, Any]:
    parsed: Mapping[str, Any] = json.loads(line)
    return parsed
