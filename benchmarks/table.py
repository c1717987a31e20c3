"""Verdicts as a table: aligned text for the terminal, Markdown for the results folder."""

import json
from collections.abc import Mapping, Sequence

from benchmarks.runner import Run
from benchmarks.verdict import Verdict


def as_text(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> str:
    """Lines under each goal, then how long each benchmark took."""
    width = max((len(line.what) for v in verdicts for line in v.lines), default=0)
    out = []
    for verdict in verdicts:
        goal = verdict.goal
        out.append(f"{goal.id}  {verdict.status:<8}{goal.work}: {goal.goal}")
        out += [
            f"    {line.status:<8}{line.what:<{width}}  {line.measured}" for line in verdict.lines
        ]
    out.append("")
    out += [f"{run.benchmark.module:<16}{run.seconds:7.1f} s  {run.ending}" for run in runs]
    for run in runs:
        if run.log:
            out += ["", f"{run.benchmark.module}, end of its log:", run.log]
    return "\n".join(out) + "\n"


def information(runs: Sequence[Run]) -> str:
    """What benchmarks printed besides goals, as JSON lines."""
    lines = [json.dumps(dict(line)) for run in runs for line in run.lines if "goal" not in line]
    return "".join(f"{line}\n" for line in lines)


def as_markdown(
    verdicts: Sequence[Verdict], runs: Sequence[Run], *, head: Mapping[str, str]
) -> str:
    """The same as Markdown, with the machine before it and every JSON line after it.

    Args:
        verdicts: one a goal.
        runs: one a benchmark.
        head: what to say of the machine and the versions.
    """
    out = ["# Benchmarks", ""]
    out += [f"- {name}: {value}" for name, value in head.items()]
    out += ["", "| goal | work | must hold | result |", "| --- | --- | --- | --- |"]
    out += [f"| {v.goal.id} | {v.goal.work} | {v.goal.goal} | {v.status} |" for v in verdicts]
    out += ["", "| goal | comparison | measured (bound) | result |", "| --- | --- | --- | --- |"]
    out += [
        f"| {v.goal.id} | {_cell(line.what)} | {_cell(line.measured)} | {line.status} |"
        for v in verdicts
        for line in v.lines
    ]
    out += ["", "| benchmark | seconds | end |", "| --- | --- | --- |"]
    out += [f"| {run.benchmark.module} | {run.seconds:.0f} | {run.ending} |" for run in runs]
    out += ["", "Every line as printed:", "", "```"]
    out += [json.dumps(dict(line)) for run in runs for line in run.lines]
    return "\n".join([*out, "```"]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
