"""The loss curve as an artifact that is drawn: a PNG inside the markdown, so nothing serves it.

Prefect's image artifact draws a data URL too, but prints all of it below the picture.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from prefect.artifacts import create_markdown_artifact

KINDS = ("train", "evaluation")


def publish_loss_curve(metrics: Sequence[Mapping[str, Any]]) -> None:
    """Draw training and evaluation loss over steps; nothing is published without any loss.

    Args:
        metrics: metric objects of a run, in order.
    """
    curves = {
        kind: [
            (one["step"], one["loss"])
            for one in metrics
            if one["kind"] == kind and one["loss"] is not None
        ]
        for kind in KINDS
    }
    if not any(curves.values()):
        return
    encoded = base64.b64encode(draw(curves)).decode()
    create_markdown_artifact(
        f"![loss over optimizer steps](data:image/png;base64,{encoded})\n\n{_table(curves)}",
        key="loss-curve",
        description="Loss in nats a target token",
    )


def draw(curves: Mapping[str, Sequence[tuple[int, float]]]) -> bytes:
    """PNG of curves over optimizer steps.

    Args:
        curves: points (step, loss) by name.
    """
    # Imported when there is something to draw: it costs a second that a flow need not wait for.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for kind, points in curves.items():
        steps, losses = [step for step, _ in points], [loss for _, loss in points]
        axes.plot(steps, losses, marker="o" if kind == "evaluation" else None, label=kind)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats per target token)")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _table(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """The evaluations as a markdown table."""
    lines = ["| step | evaluation loss |", "| --- | --- |"]
    lines += [f"| {step} | {loss:.4f} |" for step, loss in curves["evaluation"]]
    return "\n".join(lines)
