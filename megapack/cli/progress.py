"""Progress of long work: bars on a terminal, one line a stage elsewhere. Always on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from megapack.cli.terminal import note
from megapack.steps.prepare import OnDone, Watcher


class Lines(Watcher):
    """One line when a stage ends, for logs and pipes."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[OnDone]:
        """Note the last words of a stage, and how long it took."""
        del total
        words, begin = "", time.monotonic()

        def told(_done: int, said: str) -> None:
            nonlocal words
            words = said

        yield told
        note(f"{name:<9} {words} ({time.monotonic() - begin:.1f} s)")


class Bars(Lines):
    """A bar while a stage runs, and the same line when it ends."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[OnDone]:
        """Draw a bar."""
        # Loaded where there is a terminal to draw on.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn(f"{name:<9}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False),
        )
        console = Console(stderr=True)
        with (
            super().stage(name, total) as line,
            Progress(*columns, console=console, transient=True) as progress,
        ):
            task = progress.add_task("", total=total, words="")

            def told(done: int, words: str) -> None:
                line(done, words)
                progress.update(task, completed=done, words=words)

            yield told


def watcher() -> Watcher:
    """Bars where a person watches, lines elsewhere."""
    return Bars() if sys.stderr.isatty() else Lines()


def bars_only() -> Watcher:
    """Bars where a person watches, nothing elsewhere: for commands whose output says it all."""
    return Bars() if sys.stderr.isatty() else Watcher()
