"""Distillation losses by the book: one token after another, over whole distributions, in float64.

Imports torch, and nothing of megapack but the names of what is computed.
"""

from collections.abc import Mapping

import torch

from megapack.jobs.distill import Divergence


def divergence_of(p: torch.Tensor, q: torch.Tensor, divergence: Divergence) -> torch.Tensor:
    """Of two lists of probabilities above 0, which add up to 1."""
    m = (p + q) / 2
    return {
        Divergence.FORWARD_KL: lambda: kl(p, q),
        Divergence.REVERSE_KL: lambda: kl(q, p),
        Divergence.JENSEN_SHANNON: lambda: (kl(p, m) + kl(q, m)) / 2,
    }[divergence]()


def kl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """sum a log a/b."""
    return (a * (a / b).log()).sum()


def over_vocabulary(
    student: torch.Tensor,
    teacher: torch.Tensor,
    pairs: Mapping[int, int],
    divergence: Divergence,
    temperature: float,
) -> torch.Tensor:
    """One token: logits [V] and [V_t] of two models; student id -> teacher id of shared tokens."""
    q = (student[list(pairs)] / temperature).softmax(0)
    p = (teacher[list(pairs.values())] / temperature).softmax(0)
    return divergence_of(p, q, divergence)


def over_topk(
    student: torch.Tensor,
    entries: Mapping[int, float],
    tail: float | None,
    divergence: Divergence,
    temperature: float,
) -> torch.Tensor:
    """One token: logits [V] of the student; id -> log-prob of the teacher; log-prob of the others.

    Without a tail, both are conditioned on the entries.
    """
    whole = (student / temperature).softmax(0)
    q = [whole[id_] for id_ in entries]
    p = [torch.tensor(logprob, dtype=student.dtype).exp() for logprob in entries.values()]
    rest = [id_ for id_ in range(len(whole)) if id_ not in entries]
    if tail is not None and tail > -torch.inf and rest:
        q.append(whole[rest].sum())
        p.append(torch.tensor(tail, dtype=student.dtype).exp())
    theirs, ours = torch.stack(p), torch.stack(q)
    return divergence_of(theirs / theirs.sum(), ours / ours.sum(), divergence)
