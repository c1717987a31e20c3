"""Peak memory of distillation losses over a vocabulary of 131k, at 4k and at 64k tokens.

Forward and backward, student and teacher projected from hidden states. Each measurement is a
process of its own, whose high-water mark the kernel keeps. The logits of 64k tokens would take 32
GiB in float32, on either side; what may grow with the tokens are the hidden states, the student's
gradient and some numbers a token. Hidden states are narrow, so that they do not hide the rest.
Takes about half an hour of CPU time, nearly all of it the exponentials at 64k tokens.
"""

import sys

from benchmarks.own_peak import peak_of, tell_peak
from benchmarks.record import at_most, emit

TOKENS = (4 << 10, 64 << 10)
VOCABULARY = 128 << 10
HIDDEN = 32
TEACHER_HIDDEN = 48
TOP = 64
TOKENS_PER_CHUNK = 32
# Of a token, the most that may stay: eight values of eight bytes.
VALUES_BYTES = 64
_MB = 1 << 20
_CHUNK_MB = 4 * VOCABULARY * TOKENS_PER_CHUNK / _MB
# Bytes that a token must keep: the student's hidden state and its gradient, and what the teacher
# said: a hidden state in bf16, or K ids and log-probs beside the student's own.
KEPT = {
    "forward_kl": 2 * HIDDEN * 4 + TEACHER_HIDDEN * 2,
    "jensen_shannon": 2 * HIDDEN * 4 + TEACHER_HIDDEN * 2,
    "topk": 2 * HIDDEN * 4 + TOP * (8 + 4 + 8 + 4),
}


def main() -> None:
    """Print a line for each size and a goal line for each loss."""
    few, many = TOKENS
    for what, named in KEPT.items():
        found = {}
        for tokens in TOKENS:
            found[tokens] = peak_of("benchmarks.bench_distill_memory", what, tokens)
            emit(
                f"memory of distillation by {what}",
                tokens=tokens,
                vocabulary=VOCABULARY,
                **found[tokens],
            )
        # What a token must keep, twice for a copy on the way, and some values; and two chunks,
        # which the allocator may or may not have given back.
        allowed = 2 * (named + VALUES_BYTES) * (many - few) / _MB + 2 * _CHUNK_MB
        at_most(
            "P10",
            f"growth of memory of distillation by {what} from {few >> 10}k to {many >> 10}k tokens",
            found[many]["peak_mb"] - found[few]["peak_mb"],
            round(allowed, 1),
            unit="MB",
            peer="whole logits of the student",
            whole_logits_mb=4 * VOCABULARY * (many - few) / _MB,
            peak_mb=found[many]["peak_mb"],
        )


def _measure(what: str, tokens: int) -> None:
    """In the child."""
    tell_peak(lambda: _topk(tokens) if what == "topk" else _whole(what, tokens))


def _student(tokens: int):  # noqa: ANN202 - torch's types are imported in the child only
    import torch

    from megapack.parallel.lm_head import LmHead
    from megapack.parallel.vocab import VocabShard

    draw = torch.Generator().manual_seed(0)
    hidden = torch.empty(tokens, HIDDEN).normal_(generator=draw).requires_grad_()
    weight = torch.empty(VOCABULARY, HIDDEN).normal_(std=0.1, generator=draw).requires_grad_()
    shard = VocabShard(start=0, real=VOCABULARY, tokens_per_chunk=TOKENS_PER_CHUNK)
    return LmHead(hidden=hidden, weight=weight), shard


def _whole(what: str, tokens: int) -> None:
    import torch

    from megapack.jobs.distill import Divergence
    from megapack.parallel.teacher_columns import TeacherColumns, TeacherLogits
    from megapack.parallel.vocab_divergence import Compared, vocab_divergence

    source, shard = _student(tokens)
    draw = torch.Generator().manual_seed(1)
    weight = torch.empty(VOCABULARY, TEACHER_HIDDEN, dtype=torch.bfloat16).normal_(
        std=0.1, generator=draw
    )
    teacher = TeacherLogits(
        columns=TeacherColumns(column_of=torch.arange(VOCABULARY), weight=weight),
        rows=torch.arange(tokens),
        values=torch.empty(tokens, TEACHER_HIDDEN, dtype=torch.bfloat16).normal_(generator=draw),
    )
    how = Compared(divergence=Divergence(what))
    vocab_divergence(source, [teacher], shard, how).mean().backward()
    _check(source)


def _topk(tokens: int) -> None:
    import torch

    from megapack.jobs.distill import Divergence
    from megapack.outputs.outcomes import outcome_divergence
    from megapack.parallel.vocab_picked import picked_logprobs

    source, shard = _student(tokens)
    draw = torch.Generator().manual_seed(1)
    # Different ids of a token, without a permutation of the vocabulary for each.
    ids = torch.randint(VOCABULARY // TOP, (tokens, TOP), generator=draw)
    ids += torch.arange(TOP) * (VOCABULARY // TOP)
    teacher = torch.empty(tokens, TOP + 1).normal_(generator=draw).log_softmax(dim=-1)
    picked, rest = picked_logprobs(source, ids, shard)
    student = torch.cat((picked, rest[:, None]), dim=1)
    outcome_divergence(teacher, student, Divergence.FORWARD_KL).mean().backward()
    _check(source)


def _check(source) -> None:  # noqa: ANN001 - as above
    gradients = [tensor.grad for tensor in source.tensors]
    if not all(bool(one.isfinite().all()) and bool(one.any()) for one in gradients):
        raise RuntimeError("expected finite gradients for every token, found others.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
