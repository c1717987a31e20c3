"""`make demo-multimodal`: pictures and texts to packed rows in the store, and a model learns them.

Shapes are drawn with captions, questions, videos and edits; the deployment `pack-multimodal` packs
them into the local store; pictures of packed rows are written; a small mixture-of-transformers is
trained from the stored rows, answers questions about pictures it never saw and paints captions.
Both losses must fall. A second run finds shapes, rows and weights as they stand.
"""

import os
import sys
import time
from collections.abc import Sequence

import torch

from infra.demo.topics import DemoError
from infra.demo_run import (
    ROOT,
    RunFailed,
    parameters_of,
    run_and_sum_up,
    say,
    stack_variables,
    start_stack,
)
from infra.shapes.build import build_shapes
from infra.shapes.learning import Lesson, Measured, learn
from infra.shapes.scenes import COLOURS
from infra.shapes.showing import Answered, answer_held_out, paint_captions
from megapack.cli.deployments import PrefectServer
from megapack.errors import MegapackError
from megapack.model.multimodal_sampling import Euler
from megapack.steps.multimodal.pictures import save_pictures
from megapack.steps.multimodal.stored import open_multimodal

SHAPES = ROOT / ".local" / "shapes"
SHOWN = ROOT / ".local" / "multimodal"

# Shares of the losses before that the losses after have to stay below.
_CROSS_ENTROPY_SHARE = 0.5
_SQUARED_ERROR_SHARE = 0.7


def main() -> int:
    """Run the command; returns its exit status."""
    begin = time.monotonic()
    # The matrices are small: a second thread waits more than it works, most on a busy machine.
    torch.set_num_threads(1)
    try:
        server = start_stack()
        os.environ.update(stack_variables())
        say(f"shapes {build_shapes(SHAPES).value}: {SHAPES.relative_to(ROOT)}")
        uri = pack(server)
        measured = teach(uri)
    except RunFailed as failed:
        say(f"demo-multimodal: {failed}")
        return failed.code
    except (DemoError, MegapackError) as error:
        say(f"demo-multimodal: {error}")
        return 1
    fell = losses_fell(measured)
    verdict = "done" if fell else "failed: a loss did not fall clearly"
    say(f"{verdict} in {time.monotonic() - begin:.0f} s")
    return 0 if fell else 1


def pack(server: PrefectServer) -> str:
    """Pack the shapes as the deployment says; returns the dataset's address."""
    chosen = parameters_of("flows.pack_multimodal.pack_multimodal")
    _, page = run_and_sum_up(server, "pack-multimodal", chosen)
    uri = f"{chosen['pack']['store']}/datasets/{chosen['pack']['name']}"
    rows = open_multimodal(uri)
    for path in save_pictures(rows.ref, SHOWN / "rows"):
        say(f"picture of a packed row: {path.relative_to(ROOT)}")
    say(f"UI: {page}")
    return uri


def teach(uri: str, lesson: Lesson | None = None) -> list[Measured]:
    """Train from the stored rows, and show what was learnt; returns the losses."""
    model, measured = learn(uri, SHOWN / "model.pt", lesson or Lesson(), say=say)
    rules = open_multimodal(uri).rules
    answered = answer_held_out(model, SHAPES, rules)
    for one in answered[:6]:
        say(f"asked: {one.question}  said: {one.said}  true: {one.truth}")
    for line in marks(answered):
        say(line)
    painted = SHOWN / "painted.png"
    paint_captions(model, SHAPES, rules, file=painted, euler=Euler(steps=20, guidance=2.0))
    say(f"captions painted: {painted.relative_to(ROOT)}")
    say("after so few steps backgrounds are painted as the captions say, shapes are not yet")
    for line in table(measured):
        say(line)
    return measured


def marks(answered: Sequence[Answered]) -> list[str]:
    """How many answers are right, what guessing would give, and what to think of it."""
    right, asked = sum(one.said == one.truth for one in answered), len(answered)
    guessed = asked / len(COLOURS)
    lines = [
        f"right answers about pictures it never saw: {right} of {asked} "
        f"(guessing one of {len(COLOURS)} colours: about {guessed:.0f})"
    ]
    if right < asked / 2:
        lines.append(
            "too few steps to answer by the pictures; see Lesson in infra/shapes/learning.py"
        )
    return lines


def table(measured: Sequence[Measured]) -> list[str]:
    """Losses over the rows held back, before and after."""
    lines = ["", f"{'':16}{'step':>6}{'cross-entropy':>16}{'squared error':>16}"]
    for name, one in (("before", measured[0]), ("after", measured[-1])):
        lines.append(f"{name:16}{one.step:>6}{one.cross_entropy:>16.4f}{one.squared_error:>16.4f}")
    return lines


def losses_fell(measured: Sequence[Measured]) -> bool:
    """Whether both losses fell clearly, which a few lucky steps do not do."""
    before, after = measured[0], measured[-1]
    return (
        after.cross_entropy < _CROSS_ENTROPY_SHARE * before.cross_entropy
        and after.squared_error < _SQUARED_ERROR_SHARE * before.squared_error
    )


if __name__ == "__main__":
    sys.exit(main())
