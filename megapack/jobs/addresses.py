"""Addresses of training and extraction: digests of everything their result depends on.

A step's meaning has a number here, raised when the same settings come to mean something else;
package versions do not count.
"""

from pydantic.main import IncEx

from megapack.jobs.extract import ExtractJob
from megapack.jobs.train import TrainJob
from megapack.records.digest import step_address

TRAIN_SEMANTICS = 2
EXTRACT_SEMANTICS = 1
_NOT_IN_ADDRESS: dict[str, IncEx | bool] = {
    "parallel": True,
    "backend": True,
    "outputs": True,
    "checkpoint_every": True,
    "keep_checkpoints": True,
    "saving": True,
    "stop_within_s": True,
    "collective_timeout_s": True,
    "model": {"recompute"},
}
_MICROBATCHES = {"rows_per_microbatch", "dense_token_budget"}


def train_address(job: TrainJob) -> str:
    """Where the result of a job stands: a digest of what decides which steps are taken.

    Places do not belong to it, nor do layout and checkpoint intervals: a run that was interrupted
    goes on at another layout.
    """
    settings = job.settings.model_dump(mode="json", exclude=_NOT_IN_ADDRESS)
    if not _microbatches_decide_numbers(job):
        settings = {name: value for name, value in settings.items() if name not in _MICROBATCHES}
    inputs = {"dataset": job.dataset.digest, "settings": settings}
    return step_address("train", TRAIN_SEMANTICS, inputs)


def _microbatches_decide_numbers(job: TrainJob) -> bool:
    """Whether it matters what shares a microbatch: to a load balancing loss, and to no other."""
    moe = job.settings.model.moe
    return moe is not None and moe.aux_loss_coefficient > 0


def extract_address(job: ExtractJob) -> str:
    """Where the result of a job stands: by content and settings, not by places or layout."""
    inputs = {
        "dataset": job.dataset.digest,
        "checkpoint": job.checkpoint.digest,
        "model": job.model.model_dump(mode="json", exclude={"recompute"}),
        "settings": job.settings.model_dump(mode="json", exclude={"parallel", "backend"}),
    }
    return step_address("extract", EXTRACT_SEMANTICS, inputs)
