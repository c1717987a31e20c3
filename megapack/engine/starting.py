"""Weights that a run begins with when it does not go on from a checkpoint."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from megapack.jobs.addresses import train_address
from megapack.jobs.model import ModelJob
from megapack.jobs.train import TrainJob
from megapack.model.hf_weights import read_weights
from megapack.parallel.context import ParallelContext
from megapack.records.refs import FolderRef
from megapack.steps.hugging_face.folder import open_folder
from megapack.steps.hugging_face.resolve import check_model
from megapack.steps.tables import usable_version
from megapack.store.location import open_location


def start_from_folder(job: TrainJob, chunks: Sequence[Any], context: ParallelContext) -> None:
    """Collective over the world: read the job's starting weights, when it has any.

    A run that goes on from a checkpoint leaves the folder alone: it may be gone.

    Args:
        job: the training job; its folder's digest was checked before the ranks started.
        chunks: from `build_model`, not wrapped.
        context: this rank.

    Raises:
        ConfigError: the folder holds another model.
        DataError: the folder is damaged.
        StoreError: the folder cannot be read, or the store of the checkpoints failed.
    """
    ref = job.settings.starting_weights
    if ref is not None and not _checkpoint_stands(job):
        read_folder(ref, job.settings.model, chunks, context)


def read_folder(
    ref: FolderRef, model: ModelJob, chunks: Sequence[Any], context: ParallelContext
) -> None:
    """Fill a rank's model chunks from a Hugging Face folder. Raises as `start_from_folder` does."""
    folder = open_folder(ref.uri)
    check_model(model, folder)
    for chunk in chunks:
        read_weights(chunk, job=model, folder=folder, context=context)


def _checkpoint_stands(job: TrainJob) -> bool:
    """Collective over the world: rank 0 asks the store."""
    box = [False]
    if dist.get_rank() == 0:
        found = usable_version(open_location(job.output), train_address(job))
        box = [found is not None]
    dist.broadcast_object_list(box, src=0)
    return box[0]
