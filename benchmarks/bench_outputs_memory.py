"""Peak memory of log-probs, loss and top-k over a vocabulary of 131k, at 4k and at 128k tokens.

Each measurement is a process of its own, whose high-water mark the kernel keeps. The logits of
128k tokens would take 64 GiB in float32; what may grow with the tokens are the hidden states, their
gradient, and some numbers a token. Hidden states are narrow, so that they do not hide the rest.
Takes about 15 minutes of CPU time, nearly all of it the products and exponentials at 128k tokens.
"""

import sys
from collections.abc import Callable

from benchmarks.own_peak import peak_of, tell_peak
from benchmarks.record import at_most, emit

TOKENS = (4 << 10, 128 << 10)
VOCABULARY = 128 << 10
HIDDEN = 32
TOP = 64
TOKENS_PER_CHUNK = 32
# Of a token, the most that may stay: eight values of eight bytes.
VALUES_BYTES = 64
_MB = 1 << 20
_CHUNK_MB = 4 * VOCABULARY * TOKENS_PER_CHUNK / _MB


def main() -> None:
    """Print a line for each size and a goal line for each kind of output."""
    kept = {
        "log-probs": HIDDEN * 4,
        "loss and its gradients": 2 * HIDDEN * 4,
        "top-k": HIDDEN * 4 + TOP * 12,
    }
    few, many = TOKENS
    for what, named in kept.items():
        found = {}
        for tokens in TOKENS:
            found[tokens] = peak_of("benchmarks.bench_outputs_memory", what, tokens)
            emit(f"memory of {what}", tokens=tokens, vocabulary=VOCABULARY, **found[tokens])
        # What a token must keep, twice for a copy on the way, and some values; and two chunks,
        # which the allocator may or may not have given back.
        allowed = 2 * (named + VALUES_BYTES) * (many - few) / _MB + 2 * _CHUNK_MB
        at_most(
            "P10",
            f"growth of memory of {what} from {few >> 10}k to {many >> 10}k tokens",
            found[many]["peak_mb"] - found[few]["peak_mb"],
            round(allowed, 1),
            unit="MB",
            peer="whole logits",
            whole_logits_mb=4 * VOCABULARY * (many - few) / _MB,
            peak_mb=found[many]["peak_mb"],
        )


def _measure(what: str, tokens: int) -> None:
    """In the child: do the work, print the peak."""
    work: dict[str, Callable[[int], None]] = {
        "log-probs": _logprobs,
        "loss and its gradients": _loss,
        "top-k": _topk,
    }
    tell_peak(lambda: work[what](tokens))


def _inputs(tokens: int):  # noqa: ANN202 - torch's types are imported in the child only
    import torch

    from megapack.parallel.context import ParallelContext
    from megapack.parallel.lm_head import LmHead
    from megapack.parallel.vocab import VocabShard

    draw = torch.Generator().manual_seed(0)
    hidden = torch.empty(tokens, HIDDEN).normal_(generator=draw)
    weight = torch.empty(VOCABULARY, HIDDEN).normal_(std=0.1, generator=draw)
    targets = torch.randint(VOCABULARY, (tokens,), generator=draw)
    shard = VocabShard.of(
        ParallelContext.single(),
        columns=VOCABULARY,
        vocab_size=VOCABULARY,
        tokens_per_chunk=TOKENS_PER_CHUNK,
    )
    return LmHead(hidden=hidden, weight=weight), targets, shard


def _logprobs(tokens: int) -> None:
    import torch

    from megapack.parallel.vocab import source_logprobs

    source, targets, shard = _inputs(tokens)
    with torch.no_grad():
        found = source_logprobs(source, targets, shard)
    _check(found.shape == (tokens,) and bool(found.isfinite().all()))


def _loss(tokens: int) -> None:
    from megapack.parallel.vocab import source_logprobs

    source, targets, shard = _inputs(tokens)
    source.hidden.requires_grad_()
    source.weight.requires_grad_()
    (-source_logprobs(source, targets, shard).mean()).backward()
    _check(bool(source.hidden.grad.isfinite().all() and source.weight.grad.any()))


def _topk(tokens: int) -> None:
    from megapack.parallel.vocab_topk import topk_of

    source, targets, shard = _inputs(tokens)
    found = topk_of(source, targets, shard, k=TOP)
    _check(found.ids.shape == (tokens, TOP))


def _check(good: bool) -> None:  # noqa: FBT001 - one question
    if not good:
        raise RuntimeError("expected outputs for every token, found others.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
