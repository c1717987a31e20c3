"""The tiny MoE model with MTP in plain torch: one document at a time, expert by expert.

Shares nothing with megapack or megatron-core but the parameters' names. float64, except the
routers' scores, which megatron-core computes in float32. Imports torch: for use on ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from megapack.jobs.model import ModelJob
from megapack.records.packed_row import PackedRow

Parameters = dict[str, torch.Tensor]


@dataclass(kw_only=True)
class RouterSums:
    """What the routers of one row have seen, by layer."""

    counts: dict[str, torch.Tensor] = field(default_factory=dict)
    scores: dict[str, torch.Tensor] = field(default_factory=dict)
    squares: dict[str, torch.Tensor] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def add(self, layer: str, logits: torch.Tensor, real: torch.Tensor, top_k: int) -> None:
        scores = torch.softmax(logits.float(), -1)[real].double()
        chosen = F.one_hot(logits[real].topk(top_k).indices, logits.shape[1]).sum(1).double()
        for sums, value in (
            (self.counts, chosen.sum(0)),
            (self.scores, scores.sum(0)),
            (self.squares, logits[real].logsumexp(-1).square().sum()),
        ):
            sums[layer] = sums[layer] + value if layer in sums else value
        self.tokens[layer] = self.tokens.get(layer, 0) + int(real.sum())

    def losses(self, job: ModelJob) -> torch.Tensor:
        """[2]: balance and z-loss of each layer times its tokens, summed over layers."""
        total = torch.zeros(2, dtype=torch.float64)
        for layer, tokens in self.tokens.items():
            share = self.counts[layer] / (job.moe.experts_per_token * tokens)
            mean = self.scores[layer] / tokens
            balance = job.moe.num_experts * (share * mean).sum()
            total = total + torch.stack((balance * tokens, self.squares[layer]))
        return total


def plain_gradients(
    values: dict[str, np.ndarray], rows: Sequence[PackedRow], job: ModelJob
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Gradients of the step's loss; mean loss of the decoder, each MTP layer, and the routers."""
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    losses, counts, routers, real = [0.0] * (1 + job.mtp_num_layers), {}, 0.0, 0
    for row in rows:
        sums = RouterSums()
        mask, labels = row.loss_mask(), row.labels()
        for start, length in zip(row.layout.slot_starts, row.layout.lengths, strict=True):
            one = slice(start, start + length)
            tokens = torch.from_numpy(row.tokens[one].astype(np.int64))
            goal = torch.from_numpy(np.where(mask[one], labels[one], -100))
            for depth, (loss, count) in enumerate(_document(weights, tokens, goal, job, sums)):
                losses[depth] = losses[depth] + loss
                counts[depth] = counts.get(depth, 0) + count
            real += int(length)
        routers = routers + sums.losses(job)
    means = [loss / counts[depth] for depth, loss in enumerate(losses)]
    moe, depths = job.moe, job.mtp_num_layers
    routers = routers / real
    total = means[0] + routers[0] * moe.aux_loss_coefficient + routers[1] * moe.z_loss_coefficient
    if depths:
        total = total + job.mtp_loss_scale * sum(means[1:]) / depths
    total.backward()
    means = [*means, *(routers / (job.num_layers - moe.num_dense_layers + depths))]
    return {n: w.grad.numpy() for n, w in weights.items()}, [float(mean) for mean in means]


def _document(
    w: Parameters, tokens: torch.Tensor, labels: torch.Tensor, job: ModelJob, sums: RouterSums
) -> list[tuple[torch.Tensor, int]]:
    """Loss sum and count of the decoder, then of each MTP layer."""
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    x = w["embedding.word_embeddings.weight"][tokens]
    for layer in range(job.num_layers):
        x = _layer(w, f"decoder.layers.{layer}.", x, everywhere, job, sums)
    x = _norm(x, w["decoder.final_layernorm.weight"], job)
    found = [_loss(w, x, labels)]
    for depth in range(job.mtp_num_layers):
        name = f"mtp.layers.{depth}."
        tokens = torch.cat((tokens[1:], tokens.new_zeros(1)))
        labels = torch.cat((labels[1:], labels.new_full((1,), -100)))
        everywhere = torch.cat((everywhere[1:], everywhere.new_zeros(1)))
        ahead = w["embedding.word_embeddings.weight"][tokens]
        both = (
            _norm(ahead, w[name + "enorm.weight"], job),
            _norm(x, w[name + "hnorm.weight"], job),
        )
        x = torch.cat(both, -1) @ w[name + "eh_proj.weight"].T
        x = _layer(w, name + "mtp_model_layer.", x, everywhere, job, sums)
        x = _norm(x, w[name + "final_layernorm.weight"], job)
        found.append(_loss(w, x, labels))
    return found


def _loss(w: Parameters, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
    head = w.get("output_layer.weight", w["embedding.word_embeddings.weight"])
    return F.cross_entropy(x @ head.T, labels, reduction="sum"), int((labels >= 0).sum())


def _layer(
    w: Parameters,
    name: str,
    x: torch.Tensor,
    real: torch.Tensor,
    job: ModelJob,
    sums: RouterSums,
) -> torch.Tensor:
    x = x + _attention(w, name, _norm(x, w[name + "input_layernorm.weight"], job), job)
    h = _norm(x, w[name + "pre_mlp_layernorm.weight"], job)
    if name + "mlp.router.weight" not in w:
        return x + _mlp(w, name + "mlp.", h)
    logits = h @ w[name + "mlp.router.weight"].T
    sums.add(name, logits, real, job.moe.experts_per_token)
    best = logits.topk(job.moe.experts_per_token)
    chosen = torch.softmax(best.values.float(), -1).double()
    out = torch.zeros_like(h)
    for expert in range(job.moe.num_experts):
        weight = (chosen * (best.indices == expert)).sum(-1, keepdim=True)
        out = out + weight * _mlp(w, f"{name}mlp.experts.{expert}.", h)
    if name + "mlp.shared_experts.linear_fc1.weight" in w:
        out = out + _mlp(w, name + "mlp.shared_experts.", h)
    return x + out


def _mlp(w: Parameters, name: str, x: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ w[name + "linear_fc1.weight"].T).chunk(2, -1)
    return (F.silu(gate) * up) @ w[name + "linear_fc2.weight"].T


def _norm(x: torch.Tensor, weight: torch.Tensor, job: ModelJob) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + job.norm_epsilon).rsqrt() * weight


def _attention(w: Parameters, name: str, x: torch.Tensor, job: ModelJob) -> torch.Tensor:
    size, groups = job.hidden_size // job.num_attention_heads, job.num_query_groups
    heads = job.num_attention_heads // groups
    mixed = x @ w[name + "self_attention.linear_qkv.weight"].T
    mixed = mixed.view(len(x), groups, heads + 2, size)
    q = _rotate(mixed[:, :, :heads], job).flatten(1, 2)
    k = _rotate(mixed[:, :, heads : heads + 1], job).expand(-1, -1, heads, -1).flatten(1, 2)
    v = mixed[:, :, heads + 1 :].expand(-1, -1, heads, -1).flatten(1, 2)
    scores = torch.einsum("qhd,khd->hqk", q, k) / size**0.5
    future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    shares = scores.masked_fill(future, -torch.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
    return out @ w[name + "self_attention.linear_proj.weight"].T


def _rotate(x: torch.Tensor, job: ModelJob) -> torch.Tensor:
    """x: [t, groups, heads, d]. Angles in float32, as megatron-core computes them."""
    size = x.shape[-1]
    inverse = 1.0 / job.rotary_base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(len(x), dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), -1)[:, None, None]
    first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return x * angles.cos().double() + turned * angles.sin().double()
