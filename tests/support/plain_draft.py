"""Policy and draft in plain torch, float64: one document at a time. For use on ranks.

The draft's arithmetic is written out here; the policy's layers are those of `plain_moe`.
"""

from collections.abc import Sequence

import numpy as np
import torch

from megapack.jobs.draft import DraftJob
from megapack.jobs.model import ModelJob
from megapack.records.packed_row import PackedRow
from tests.support.plain_moe import Parameters, RouterSums, _layer, _loss, _norm


def plain_draft(
    values: dict[str, np.ndarray], rows: Sequence[PackedRow], job: ModelJob, draft: DraftJob
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Gradients of the step's loss and its metrics."""
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    nll, targets = torch.zeros((), dtype=torch.float64), 0
    kl, agree, counts = [nll] * draft.depth, [0] * draft.depth, [0] * draft.depth
    for row in rows:
        mask, labels = row.loss_mask(), row.labels()
        for start, length in zip(row.layout.slot_starts, row.layout.lengths, strict=True):
            one = slice(start, start + length)
            tokens = torch.from_numpy(row.tokens[one].astype(np.int64))
            goal = torch.from_numpy(np.where(mask[one], labels[one], -100))
            hidden, outputs = _policy(weights, tokens, job)
            loss, count = _loss(weights, hidden, goal)
            nll, targets = nll + loss, targets + count
            guesses = _guesses(weights, tokens, (hidden.detach(), outputs), job, draft)
            for depth, guess in enumerate(guesses):
                # Position t guesses what the policy gives at t + 1, t + 2, ...
                for t in range(int(length) - depth - 1):
                    if goal[t + depth + 1] < 0:
                        continue
                    p, q = (
                        (_head(weights).detach() @ states).log_softmax(-1)
                        for states in (hidden[t + depth + 1].detach(), guess[t])
                    )
                    kl[depth] = kl[depth] + (p.exp() * (p - q)).sum()
                    agree[depth] += int(p.argmax() == q.argmax())
                    counts[depth] += 1
    means = [one / count for one, count in zip(kl, counts, strict=True)]
    (nll / targets + sum(means) / draft.depth).backward()
    metrics = {"loss": float(nll) / targets}
    for depth, mean in enumerate(means):
        name = f"draft_{depth + 1}" if depth else "draft"
        metrics[f"{name}_loss"] = float(mean)
        metrics[f"{name}_top1_agreement"] = agree[depth] / counts[depth]
    return {name: weight.grad.numpy() for name, weight in weights.items()}, metrics


def _head(w: Parameters) -> torch.Tensor:
    return w.get("output_layer.weight", w["embedding.word_embeddings.weight"])


def _policy(
    w: Parameters, tokens: torch.Tensor, job: ModelJob
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Hidden states before the LM head, and each layer's output."""
    x, outputs = w["embedding.word_embeddings.weight"][tokens], []
    real = torch.ones_like(tokens, dtype=torch.bool)
    for layer in range(job.num_layers):
        x = _layer(w, f"decoder.layers.{layer}.", x, real, job, RouterSums())
        outputs.append(x.detach())
    return _norm(x, w["decoder.final_layernorm.weight"], job), outputs


def _guesses(
    w: Parameters,
    tokens: torch.Tensor,
    states: tuple[torch.Tensor, list[torch.Tensor]],
    job: ModelJob,
    draft: DraftJob,
) -> list[torch.Tensor]:
    hidden, outputs = states
    if draft.layers:
        read = torch.cat([outputs[number - 1] for number in draft.layers], -1)
        hidden = read @ w["draft.join.weight"].T
    real, found = torch.ones_like(tokens, dtype=torch.bool), []
    for _ in range(draft.depth):
        tokens = torch.cat((tokens[1:], tokens.new_zeros(1)))
        ahead = w["embedding.word_embeddings.weight"][tokens].detach()
        name = "draft.layer."
        both = (
            _norm(ahead, w[name + "enorm.weight"], job),
            _norm(hidden, w[name + "hnorm.weight"], job),
        )
        x = torch.cat(both, -1) @ w[name + "eh_proj.weight"].T
        x = _layer(w, name + "mtp_model_layer.", x, real, job, RouterSums())
        hidden = _norm(x, w[name + "final_layernorm.weight"], job)
        found.append(hidden)
    return found
