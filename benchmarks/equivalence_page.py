"""What was measured as the tables of `docs/parallel-equivalence.md`, whose prose stays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.equivalence import Measured
from tests.support.layout_table import EXACT, Dtype, Refusal

BEGIN = "<!-- measured by make equivalence: do not edit -->\n"
END = "<!-- end of what was measured -->\n"


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a result must be read with.

    Attributes:
        date: of the run.
        seed: of the documents.
        seconds: of the run.
        machine: names and values.
    """

    date: str
    seed: int
    seconds: float
    machine: Mapping[str, str]


def renewed(page: str, measured: str) -> str:
    """The page with another measured part.

    Raises:
        ValueError: the page has lost its marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the marks {BEGIN!r} and {END!r} in the page, found none.")
    return f"{before}{BEGIN}\n{measured}\n{END}{after}"


def tables(measured: Sequence[Measured], refused: Sequence[Refusal], head: Head) -> str:
    """The measured part of the page.

    Args:
        measured: rows in order.
        refused: layouts that are not run, with the reason as a job gives it.
        head: when and where.
    """
    exact = [one for one in measured if one.case.dtypes == EXACT]
    others = [one for one in measured if one.case.dtypes != EXACT]
    standing = sum(one.stands for one in measured)
    facts = {
        "date": head.date,
        **head.machine,
        "seed": f"{head.seed} (`python -m benchmarks.equivalence --seed {head.seed}` repeats it)",
        "result": f"{standing} of {len(measured)} layouts stand, {head.seconds:.0f} s",
    }
    parts = [
        "## The run",
        "",
        *[f"- {name}: {value}" for name, value in facts.items()],
        "",
        "## Loss and gradients",
        "",
        *_exact_table(exact),
        "",
        "## bf16, and updates of the distributed optimizer",
        "",
        *_other_table(others),
        "",
        "## Layouts that are refused",
        "",
        "Before any data is read, in these words:",
        "",
        *_refused_table(refused),
    ]
    return "\n".join(parts) + "\n"


def _exact_table(rows: Sequence[Measured]) -> list[str]:
    out = [
        "| layout | processes | float64 loss | float64 gradients | float32 loss (at most) "
        "| float32 gradients (at most) | result |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in rows:
        cells = [
            _figure(one, "loss", Dtype.FLOAT64),
            _figure(one, "gradients", Dtype.FLOAT64),
            _figure(one, "loss", Dtype.FLOAT32, tolerance=" ({:.1e})"),
            _figure(one, "gradients", Dtype.FLOAT32, tolerance=" ({:.1e})"),
        ]
        out.append(_row(one, cells))
    return out


def _other_table(rows: Sequence[Measured]) -> list[str]:
    out = [
        "| layout | processes | loss (at most) | tensors (at most) | norm (at most) | result |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in rows:
        cells = [
            f"{figure.what} {figure.error:.1e} ({figure.tolerance:.1e})" for figure in one.figures
        ]
        out.append(_row(one, cells or [""] * 3))
    return out


def _refused_table(refused: Sequence[Refusal]) -> list[str]:
    out = ["| layout | why |", "| --- | --- |"]
    return out + [f"| {one.name} | {one.reason} |" for one in refused]


def _row(one: Measured, cells: Sequence[str]) -> str:
    verdict = "equal" if one.stands else "**not equal**" if one.figures else "**did not run**"
    world = one.case.sizes.world_size
    return f"| {one.case.name} | {world} | {' | '.join(cells)} | {verdict} |"


def _figure(one: Measured, what: str, dtype: Dtype, *, tolerance: str = "") -> str:
    for figure in one.figures:
        if (figure.what, figure.dtype) == (what, dtype):
            return f"{figure.error:.1e}" + tolerance.format(figure.tolerance)
    return ""
