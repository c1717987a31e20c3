"""The draft: a small model that guesses what the policy says next, from its hidden states."""

from enum import StrEnum

from pydantic import Field

from megapack.jobs.base import Job
from megapack.jobs.model import BackendName, ModelJob
from megapack.layout.granularity import ParallelSizes


class DraftTraining(StrEnum):
    """What a run with a draft changes.

    BESIDE: policy and draft; the policy takes the steps that it would take without a draft.
    ALONE: the draft, of a policy that stays as it is.
    """

    BESIDE = "beside"
    ALONE = "alone"


class DraftJob(Job):
    """One decoder layer of the policy's own shape that predicts what the policy says next.

    At position t it reads the policy's hidden states there and the embedding of token t + 1, and is
    trained towards the policy's distribution of token t + 2. Embedding and LM head are the
    policy's, and neither they nor its hidden states get a gradient from it.

    Attributes:
        layers: policy layers (from 1) whose outputs the draft reads, joined by a projection, such
            as EAGLE-3's 2, L / 2 and L - 3. Empty for the hidden states before the LM head, as in
            EAGLE: what the draft gives has their place and size, so that it goes on from its own
            outputs after the first token without being trained to.
        depth: tokens that it guesses one after the other in training, each from its own output
            before. More than 1 teaches it to go on from itself, at the cost of one more pass each.
        lr: peak learning rate of its parameters; its schedule has the shape of the policy's. None
            takes the policy's.
        training: what the run changes.
    """

    layers: tuple[int, ...] = ()
    depth: int = Field(default=1, ge=1)
    lr: float | None = Field(default=None, gt=0)
    training: DraftTraining = DraftTraining.BESIDE


def draft_faults(
    draft: DraftJob, model: ModelJob, sizes: ParallelSizes, backend: BackendName
) -> list[str]:
    """Everything that keeps a draft from being trained in a run.

    Args:
        draft: the draft.
        model: the policy.
        sizes: layout of the run.
        backend: that the policy's layers are made of.

    Returns:
        One sentence a fault; empty when there is none.
    """
    faults = []
    wrong = [number for number in draft.layers if not 1 <= number <= model.num_layers]
    if wrong or len(set(draft.layers)) < len(draft.layers):
        faults.append(
            f"DraftJob.layers = {list(draft.layers)}, expected different numbers from 1 to "
            f"num_layers = {model.num_layers}."
        )
    if sizes.pp > 1:
        faults.append(
            f"DraftJob with pp = {sizes.pp}, expected 1: the draft stands behind the last layer "
            "and reads the embedding and layers, which other stages hold. Spread the policy with "
            "tp or cp."
        )
    if backend not in (BackendName.AUTO, BackendName.PORTABLE):
        faults.append(
            f"DraftJob with backend = {backend.value}, expected backend = portable: the draft is "
            "built like a multi-token prediction layer, from portable modules alone."
        )
    return faults
