"""Divergence of a student from its teachers over a vocabulary that is split over ranks.

Both distributions are at one temperature and conditioned on the columns that student and teacher
share. By chunks of tokens: the student's and one teacher's logits of a chunk exist, forward and
again in backward, and nothing of the size [n, V] beyond the source's own tensors and gradients.
With p of the teacher, q of the student, m their mean, and T, gradients of the student's logits:

    forward KL      (q - p) / T
    reverse KL      q (log q/p - KL(q|p)) / T
    Jensen-Shannon  q (log q/m - KL(q|m)) / 2T

Letters: n tokens of the source, c of a chunk, s shared columns of this rank.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from megapack.jobs.distill import Divergence
from megapack.parallel.collectives import all_reduce
from megapack.parallel.context import Group
from megapack.parallel.lm_head import LogitChunks, LogitGradients, wide
from megapack.parallel.teacher_columns import TeacherLogits
from megapack.parallel.vocab_shard import VocabShard

_LOG_2 = math.log(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How two distributions are compared.

    Attributes:
        divergence: which.
        temperature: logits of both are divided by it.
    """

    divergence: Divergence
    temperature: float = 1.0


def vocab_divergence(
    source: LogitChunks, teachers: Sequence[TeacherLogits], shard: VocabShard, how: Compared
) -> torch.Tensor:
    """Collective over the tensor parallel group: each token's divergence from its teacher.

    Differentiable with respect to the source's tensors; teachers have no gradient. All logits
    are expected to be finite.

    Args:
        source: the student's logits, or hidden states with the LM head's weight.
        teachers: each with its own tokens; a token has at most one. One without tokens costs
            nothing; the rows are the same on all ranks of the group.
        shard: columns of this rank.
        how: divergence and temperature.

    Returns:
        [n], nats, float64 for float64 logits, else float32; equal on all ranks of the group; an
        exact 0, without gradient, where no teacher has a token.
    """
    result: torch.Tensor = _VocabDivergence.apply(
        type(source), tuple(teachers), shard, how, *source.tensors
    )
    return result


class _VocabDivergence(torch.autograd.Function):
    """Saves the source's tensors as they are and three values a token; backward recomputes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's protocol
        kind: type[LogitChunks],
        teachers: tuple[TeacherLogits, ...],
        shard: VocabShard,
        how: Compared,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        source, tokens = kind.of(tensors), tensors[0].shape[0]
        like = torch.zeros((), dtype=wide(tensors[0].dtype), device=tensors[0].device)
        log_sums, sums = like.new_zeros((2, tokens)), like.new_zeros((2, tokens))
        for chunk in _chunks(source, teachers, shard, how):
            student, teacher = chunk.logits()
            found = _log_sums(student, teacher, shard.group)
            log_sums[:, chunk.rows] = found
            student.sub_(found[0, :, None])
            teacher.sub_(found[1, :, None])
            sums[:, chunk.rows] = _SUMS[how.divergence](student, teacher)
        value, centre = all_reduce(sums, shard.group).unbind()
        ctx.save_for_backward(log_sums, centre, *tensors)
        ctx.kind, ctx.teachers, ctx.shard, ctx.how = kind, teachers, shard, how
        return value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - torch's protocol
        log_sums, centre, *tensors = ctx.saved_tensors
        source: LogitChunks = ctx.kind.of(tuple(tensors))
        gradients = source.gradients()
        scale = grad / ctx.how.temperature
        for chunk in _chunks(source, ctx.teachers, ctx.shard, ctx.how):
            rows = chunk.rows
            student, teacher = chunk.logits()
            student.sub_(log_sums[0, rows, None])
            teacher.sub_(log_sums[1, rows, None])
            share = _GRADIENTS[ctx.how.divergence](student, teacher, centre[rows, None])
            chunk.give(share.mul_(scale[rows, None]), gradients)
        return None, None, None, None, *gradients.result()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chunk:
    """Some tokens of one teacher."""

    source: LogitChunks
    teacher: TeacherLogits
    shard: VocabShard
    temperature: float
    part: slice

    @property
    def rows(self) -> torch.Tensor:
        """int64 [c], among the n."""
        return self.teacher.rows[self.part]

    def logits(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[c, s] of the student and of the teacher, over the temperature, to be written to."""
        # Read by rows, not by a slice: the logits are a copy.
        student = self.shard.scaled(self.source.read(self.rows), self.temperature)
        teacher = self.teacher.read(self.part, student.dtype)
        if self.temperature != 1.0:
            teacher.div_(self.temperature)
        return student[:, self.teacher.columns.shared], teacher

    def give(self, share: torch.Tensor, gradients: LogitGradients) -> None:
        """Add the gradient of the shared columns, [c, s]."""
        shared = self.teacher.columns.shared
        if not isinstance(shared, slice):
            whole = share.new_zeros((share.shape[0], self.shard.real))
            whole[:, shared] = share
            share = whole
        gradients.add(self.rows, share)


def _chunks(
    source: LogitChunks, teachers: Sequence[TeacherLogits], shard: VocabShard, how: Compared
) -> list[_Chunk]:
    """All chunks of all teachers, the same on all ranks of the group."""
    return [
        _Chunk(source=source, teacher=teacher, shard=shard, temperature=how.temperature, part=part)
        for teacher in teachers
        for part in shard.chunks(teacher.rows.shape[0], columns=source.columns)
    ]


def _log_sums(student: torch.Tensor, teacher: torch.Tensor, group: Group | None) -> torch.Tensor:
    """Collective over `group`: [2, c], log-sum-exp over the shared columns of all ranks."""
    own = torch.stack((student.logsumexp(dim=-1), teacher.logsumexp(dim=-1)))
    top = all_reduce(own, group, op=dist.ReduceOp.MAX)
    total = all_reduce((own - top).exp_(), group)
    return top + total.log_()


# Of log q and log p [c, s], which may be written to: [2, c], this rank's share of the divergence
# and of what the gradient is centred on.


def _forward_sums(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    value = (log_p - log_q).mul_(log_p.exp_()).sum(dim=-1)
    return torch.stack((value, torch.zeros_like(value)))


def _reverse_sums(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    value = (log_q - log_p).mul_(log_q.exp_()).sum(dim=-1)
    return torch.stack((value, value))


def _middle_sums(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    log_m = _log_mean(log_q, log_p)
    of_p = (log_p - log_m).mul_(log_p.exp_()).sum(dim=-1)
    of_q = log_m.neg_().add_(log_q).mul_(log_q.exp_()).sum(dim=-1)
    return torch.stack(((of_p + of_q) / 2, of_q))


# Of the same and the centre [c, 1]: [c, s], the gradient of the logits over the temperature.


def _forward_gradient(
    log_q: torch.Tensor, log_p: torch.Tensor, centre: torch.Tensor
) -> torch.Tensor:
    del centre
    return log_q.exp_().sub_(log_p.exp_())


def _reverse_gradient(
    log_q: torch.Tensor, log_p: torch.Tensor, centre: torch.Tensor
) -> torch.Tensor:
    return (log_q - log_p).sub_(centre).mul_(log_q.exp_())


def _middle_gradient(
    log_q: torch.Tensor, log_p: torch.Tensor, centre: torch.Tensor
) -> torch.Tensor:
    surplus = _log_mean(log_q, log_p).neg_().add_(log_q).sub_(centre)
    return surplus.mul_(log_q.exp_()).div_(2)


def _log_mean(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(log_q, log_p).sub_(_LOG_2)


_SUMS: dict[Divergence, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Divergence.FORWARD_KL: _forward_sums,
    Divergence.REVERSE_KL: _reverse_sums,
    Divergence.JENSEN_SHANNON: _middle_sums,
}

_GRADIENTS: dict[Divergence, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Divergence.FORWARD_KL: _forward_gradient,
    Divergence.REVERSE_KL: _reverse_gradient,
    Divergence.JENSEN_SHANNON: _middle_gradient,
}
