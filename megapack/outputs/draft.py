"""The loss of the draft: how far its guesses are from what the policy itself then says.

At each distance the mean divergence over *its* targets of the whole step, counted like those of the
main loss one or more positions later; the mean over the distances is added. Nothing of it reaches
the policy. Letters: n = local positions.
"""

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.batch.successors import Successors
from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.model.forward import ModelOutput
from megapack.outputs.head import Metric, Reduce, needed
from megapack.outputs.mtp import MtpLoss, MtpWeights
from megapack.parallel.context import ParallelContext
from megapack.parallel.vocab_match import Pair, match
from megapack.parallel.vocab_shard import VocabShard


def draft_loss(
    output: ModelOutput, microbatch: MicroBatch, weights: MtpWeights, context: ParallelContext
) -> MtpLoss:
    """Collective over tp_group and cp_group: divergence of all guesses of one microbatch.

    Args:
        output: with `draft`.
        microbatch: what went in.
        weights: of the step; a layer is a distance.
        context: this rank.

    Returns:
        The loss, and for the first distance the metrics `draft_loss` (nats) and
        `draft_top1_agreement`, the share of targets where draft and policy find the same token
        likeliest; for distance k `draft_<k>_loss` and `draft_<k>_top1_agreement`.
    """
    draft = needed(output.draft, "draft")
    shard = VocabShard.of(
        context,
        columns=draft.policy.columns,
        vocab_size=output.vocab_size,
        tokens_per_chunk=weights.tokens_per_chunk,
    )
    ahead = Successors.of(microbatch, context)
    truth, metrics = draft.policy.hidden, {}
    total = torch.zeros((), device=context.device, dtype=torch.float64)
    for distance, (guess, labels) in enumerate(zip(draft.guesses, draft.labels, strict=True)):
        truth = ahead(truth)
        kl, agrees = match(Pair(guess=guess, truth=truth, weight=draft.policy.weight), shard)
        counted = labels != IGNORE_INDEX
        loss_sum = torch.where(counted, kl, 0.0).sum()
        total = total + loss_sum * weights.per_label(distance)
        name = f"draft_{distance + 1}" if distance else "draft"
        for what, value in (("loss", loss_sum.detach()), ("top1_agreement", agrees & counted)):
            metrics[f"{name}_{what}"] = Metric(
                value=value.sum(), reduce=Reduce.MEAN, count=counted.sum()
            )
    return MtpLoss(loss_sum=total * (weights.scale / len(draft.guesses)), metrics=metrics)
