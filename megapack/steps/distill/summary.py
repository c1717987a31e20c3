"""What a distillation made, in the lines a person wants at its end."""

from collections.abc import Mapping
from typing import Any

from megapack.jobs.train import TrainJob
from megapack.records.refs import CheckpointRef
from megapack.steps.summary import metrics_of

_TOLD = ("loss", "divergence", "nll")


def distillation_lines(job: TrainJob, checkpoint: CheckpointRef) -> list[str]:
    """Held-out loss, divergence and NLL before and after, what was learned from, and where it is.

    Raises:
        StoreError: the checkpoint cannot be read.
    """
    lines = []
    evaluations = [
        one
        for one in metrics_of(checkpoint)
        if one["kind"] == "evaluation" and one["loss"] is not None
    ]
    if evaluations:
        for one in (evaluations[0], evaluations[-1]):
            told = " ".join(_told(one))
            lines.append(
                f"evaluation step={one['step']} {told} target_tokens={one['num_target_tokens']}"
            )
    if job.distill is not None:
        loss = job.distill.settings
        lines.append(
            f"loss kind={loss.kind.value} divergence={loss.divergence.value} "
            f"nll_weight={loss.nll_weight:g}"
        )
        lines += [
            f"teacher documents={teacher.payload.num_documents} uri={teacher.payload.uri} "
            f"version={teacher.payload.version}"
            for teacher in job.distill.teachers
        ]
    lines.append(
        f"checkpoint step={checkpoint.step} uri={checkpoint.uri} version={checkpoint.version}"
    )
    lines.append(f"reused {'checkpoint' if checkpoint.reused else 'nothing'}")
    return lines


def _told(evaluation: Mapping[str, Any]) -> list[str]:
    return [f"{name}={evaluation[name]:.4f}" for name in _TOLD if evaluation.get(name) is not None]
