"""`python -m benchmarks.equivalence`: every layout against one process; writes the page.

Exit status 1 when a layout does not give the numbers of one process, or did not run.
"""

import argparse
import datetime
import secrets
import sys
import time
from collections.abc import Sequence

from benchmarks import machine
from benchmarks.equivalence_page import Head, renewed, tables
from benchmarks.runner import ROOT
from tests.support.equivalence import Equivalence, Measured
from tests.support.layout_table import Case, cases, refusals
from tests.support.ranks import RankServer

PAGE = ROOT / "docs" / "parallel-equivalence.md"
_PACKAGES = ("torch", "megatron-core", "numpy")


def main() -> int:
    """Measure, print a line a layout, keep the page of a whole run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equivalence", description=__doc__)
    parser.add_argument("only", nargs="*", help="layouts whose name holds one of these words")
    parser.add_argument("--seed", type=int, help="of the documents; drawn when not given")
    asked = parser.parse_args()
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    chosen = [case for case in cases() if not asked.only or _named(case, asked.only)]
    if not chosen:
        parser.error(f"expected a part of the name of a layout, found {asked.only}")
    sys.stdout.write(f"seed {seed}, {len(chosen)} layouts\n")
    started = time.monotonic()
    measured = _measure(chosen, seed)
    seconds = time.monotonic() - started
    failed = [one.case.name for one in measured if not one.stands]
    sys.stdout.write(f"{len(measured) - len(failed)} stand, {len(failed)} do not: {failed}\n")
    if not asked.only:
        found = tables(measured, refusals(), _head(seed, seconds))
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
        sys.stdout.write(f"written: {PAGE.relative_to(ROOT)}\n")
    return int(bool(failed))


def _named(case: Case, words: Sequence[str]) -> bool:
    return any(word in case.name for word in words)


def _measure(chosen: Sequence[Case], seed: int) -> list[Measured]:
    measured = []
    with RankServer() as server:
        equivalence = Equivalence.on_random_rows(server, seed)
        for case in chosen:
            one = equivalence.measure(case)
            measured.append(one)
            sys.stdout.write(_line(one))
            sys.stdout.flush()
    return measured


def _line(one: Measured) -> str:
    figures = "  ".join(
        f"{figure.dtype} {figure.what} {figure.error:.1e}{'' if figure.stands else ' !'}"
        for figure in one.figures
    )
    verdict = "stands" if one.stands else "FAILS "
    text = f"{verdict}  {one.case.name:<44}{one.seconds:6.1f} s  {figures}\n"
    return text + (f"{one.failure[-2000:]}\n" if one.failure else "")


def _head(seed: int, seconds: float) -> Head:
    described = machine.describe()
    described["versions"] = ", ".join(f"{name} {machine.version_of(name)}" for name in _PACKAGES)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return Head(date=today, seed=seed, seconds=seconds, machine=described)


if __name__ == "__main__":
    sys.exit(main())
