"""`make demo-distill`: is a student better off with a teacher than with the labels alone?

A longer run of the demo's model is the teacher. Its hidden states and top-k of every document are
extracted, then a model of half its width and half its layers is trained twice on the same rows,
steps and seed: towards the teacher, and on the labels alone. Each is evaluated on held-out rows.
A second run finds everything done and prints the same table.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from infra.demo.topics import DemoError
from infra.demo_run import fields_of, parameters_of, run_and_sum_up, say, start_stack
from megapack.cli.deployments import PrefectServer
from megapack.errors import MegapackError

TEACHER_STEPS = 240
_MEASURED = ("nll", "divergence")
Row = tuple[str, dict[str, str]]


def main() -> int:
    """Run the command; returns its exit status."""
    begin = time.monotonic()
    try:
        server = start_stack()
        teacher, payload = teach(server)
        rows = [("teacher", teacher), *students(server, payload)]
    except (DemoError, MegapackError) as error:
        say(f"demo-distill: {error}")
        return 1
    for line in table(rows):
        say(line)
    say(f"done in {time.monotonic() - begin:.0f} s")
    return 0


def teach(server: PrefectServer) -> tuple[dict[str, str], str]:
    """The teacher's last evaluation, and the address of its payload."""
    training = parameters_of("flows.pack_and_train.pack_and_train")
    training["train"] |= {"steps": TEACHER_STEPS, "evaluate_every": 60, "checkpoint_every": 120}
    training["extract"] = None
    summary, _ = run_and_sum_up(server, "pack-and-train", training)
    checkpoint = fields_of(summary, "checkpoint")[-1]
    evaluation = fields_of(summary, "evaluation")[-1]
    extraction = parameters_of("flows.extract.extract_teacher")
    extraction |= {"teacher": checkpoint["uri"], "store": student()["store"]}
    said, _ = run_and_sum_up(server, "extract-teacher", extraction)
    address = next(one for one in fields_of(said, "payload") if "uri" in one)
    return {"steps": checkpoint["step"], "nll": evaluation["loss_after"]}, address["uri"]


def student() -> dict[str, Any]:
    """Parameters of the student, as the deployment says them."""
    return parameters_of("flows.distill.distill")


def students(server: PrefectServer, payload: str) -> list[Row]:
    """Both students' last evaluations, with a name each."""
    rows = []
    for name, weight in (("taught", None), ("labels alone", 1.0)):
        chosen = student()
        chosen["teachers"] = [{"payload": payload}]
        if weight is not None:
            chosen["distill"]["nll_weight"] = weight
        summary, _ = run_and_sum_up(server, "distill", chosen)
        last = fields_of(summary, "evaluation")[-1]
        rows.append((f"student, {name}", {"steps": last["step"], **last}))
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """Held-out numbers, one model a line; then what teaching changed, student against student.

    Args:
        rows: teacher, taught student, student of the labels alone.
    """
    head = f"{'':24}{'steps':>7}{'held-out NLL':>15}{'KL to teacher':>16}"
    lines = ["", head]
    for name, found in rows:
        shown = [f"{float(found[one]):.4f}" if one in found else "" for one in _MEASURED]
        lines.append(f"{name:24}{found['steps']:>7}{shown[0]:>15}{shown[1]:>16}")
    taught, alone = rows[-2][1], rows[-1][1]
    changes = [float(taught[one]) - float(alone[one]) for one in _MEASURED]
    lines.append(f"{'taught - labels alone':24}{'':>7}{changes[0]:>+15.4f}{changes[1]:>+16.4f}")
    lines.append("nats a target token; NLL of the labels, KL(teacher, student) over the vocabulary")
    return lines


if __name__ == "__main__":
    sys.exit(main())
