"""Addresses of training and extraction: digests of everything their result depends on.

A step's meaning has a number here, raised when the same settings come to mean something else;
package versions do not count.
"""

from collections.abc import Mapping
from typing import Any

from pydantic.main import IncEx

from megapack.jobs.distill import Distillation
from megapack.jobs.extract import ExtractJob
from megapack.jobs.train import TrainJob
from megapack.records.digest import digest_of, step_address

TRAIN_SEMANTICS = 2
EXTRACT_SEMANTICS = 2
_NOT_IN_ADDRESS: dict[str, IncEx | bool] = {
    "parallel": True,
    "backend": True,
    "outputs": True,
    "checkpoint_every": True,
    "keep_checkpoints": True,
    "saving": True,
    "stop_within_s": True,
    "collective_timeout_s": True,
    "straggler_timing": True,
    "model": {"recompute", "offload"},
}
_NOT_IN_EXTRACT_ADDRESS: IncEx = {"parallel", "backend", "max_bytes", "tokens_per_chunk"}
_MICROBATCHES = {"rows_per_microbatch", "dense_token_budget"}


def train_address(job: TrainJob) -> str:
    """Where the result of a job stands: a digest of what decides which steps are taken.

    Places do not belong to it, nor do layout and checkpoint intervals: a run that was interrupted
    goes on at another layout. Of a starting model and of payloads, the digest belongs to it.
    """
    return step_address("train", TRAIN_SEMANTICS, _train_inputs(job))


def train_address_fields(job: TrainJob) -> dict[str, Any]:
    """What `train_address` is a digest of, flat: value by field, such as `optimizer.lr`."""
    inputs = _train_inputs(job)
    learned = _flat(inputs.get("distill", {}), "distill.")
    return {"dataset.digest": inputs["dataset"], **_flat(inputs["settings"]), **learned}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def _train_inputs(job: TrainJob) -> dict[str, Any]:
    left_out = {**_NOT_IN_ADDRESS, "starting_model": True}
    settings = job.settings.model_dump(mode="json", exclude=left_out)
    if job.settings.draft is None:
        # As it was before there were drafts: the same runs stand at the same addresses.
        del settings["draft"]
    if not _microbatches_decide_numbers(job):
        settings = {name: value for name, value in settings.items() if name not in _MICROBATCHES}
    inputs = {"dataset": job.dataset.digest, "settings": settings}
    return inputs if job.distill is None else {**inputs, "distill": _distill_inputs(job.distill)}


def _distill_inputs(distill: Distillation) -> dict[str, Any]:
    """Teachers by content. The number of a teacher decides nothing, so their order is none."""
    teachers = [
        {
            "payload": teacher.payload.digest,
            "sources": None if teacher.sources is None else sorted(teacher.sources),
            "vocabulary": teacher.vocabulary_digest,
        }
        for teacher in distill.teachers
    ]
    teachers.sort(key=digest_of)
    return {"settings": distill.settings.model_dump(mode="json"), "teachers": teachers}


def _microbatches_decide_numbers(job: TrainJob) -> bool:
    """Whether it matters what shares a microbatch: to a load balancing loss, and to no other."""
    moe = job.settings.model.moe
    return moe is not None and moe.aux_loss_coefficient > 0


def extract_address(job: ExtractJob) -> str:
    """Where the result of a job stands: by content and settings, not by places, layout or limits.

    What is left out does not change which payload is made, but for rounding.
    """
    inputs = {
        "dataset": job.dataset.digest,
        "checkpoint": job.checkpoint.digest,
        "model": job.model.model_dump(mode="json", exclude={"recompute", "offload"}),
        "settings": job.settings.model_dump(mode="json", exclude=_NOT_IN_EXTRACT_ADDRESS),
    }
    return step_address("extract", EXTRACT_SEMANTICS, inputs)
