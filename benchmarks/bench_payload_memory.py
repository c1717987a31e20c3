"""Peak memory of extraction over a vocabulary of 131k: rows of 4k to 64k, and 1 to 8 microbatches.

Log-probs, top-k with the tail's mass and hidden states come from one forward, through the head
that extraction uses. What may grow with the row are the hidden states that the model gave, and the
result: the payloads on the host. With the number of microbatches nothing may grow, since each one's
payloads leave before the next. Hidden states are narrow, so that they do not hide the rest.
Takes about 10 minutes of CPU time, nearly all of it the products and exponentials.
"""

import sys

from benchmarks.own_peak import peak_of, tell_peak
from benchmarks.record import at_most, emit

TOKENS = (4 << 10, 16 << 10, 64 << 10)
MICROBATCHES = 8
VOCABULARY = 128 << 10
HIDDEN = 32
TOP = 64
TOKENS_PER_CHUNK = 32
DOCUMENT = 700
# Of a token of the row, besides hidden states and result: labels, masks, places.
VALUES_BYTES = 128
_MB = 1 << 20
_CHUNK_MB = 4 * VOCABULARY * TOKENS_PER_CHUNK / _MB
_MODULE = "benchmarks.bench_payload_memory"


def main() -> None:
    """Print a line for each size and two goal lines."""
    found = {}
    for tokens, count in [*((tokens, 1) for tokens in TOKENS), (TOKENS[0], MICROBATCHES)]:
        found[tokens, count] = peak_of(_MODULE, tokens, count)
        emit(
            "memory of extraction",
            tokens=tokens,
            microbatches=count,
            vocabulary=VOCABULARY,
            **found[tokens, count],
        )
    few, many = found[TOKENS[0], 1], found[TOKENS[-1], 1]
    more = TOKENS[-1] - TOKENS[0]
    named = (HIDDEN * 4 + VALUES_BYTES) * more / _MB + many["result_mb"] - few["result_mb"]
    at_most(
        "P10",
        f"growth of memory of extraction, rows of {TOKENS[0] >> 10}k to {TOKENS[-1] >> 10}k",
        many["peak_mb"] - few["peak_mb"],
        # Twice for a copy on the way; and two chunks, which the allocator may not have given back.
        round(2 * named + 2 * _CHUNK_MB, 1),
        unit="MB",
        peer="whole logits",
        whole_logits_mb=4 * VOCABULARY * more / _MB,
        peak_mb=many["peak_mb"],
    )
    at_most(
        "P10",
        f"growth of memory of extraction, 1 to {MICROBATCHES} microbatches",
        found[TOKENS[0], MICROBATCHES]["peak_mb"] - few["peak_mb"],
        # Half of what the payloads of the further microbatches take.
        round(0.5 * (MICROBATCHES - 1) * few["result_mb"], 1),
        unit="MB",
        peer="payloads of all microbatches",
        all_payloads_mb=MICROBATCHES * few["result_mb"],
        peak_mb=found[TOKENS[0], MICROBATCHES]["peak_mb"],
    )


def _extract(tokens: int, count: int) -> dict[str, float]:
    """In the child: the head over microbatches; megabytes of the largest one's payloads."""
    import torch

    from megapack.jobs.outputs import LogitsForm
    from megapack.model.forward import ModelOutput
    from megapack.outputs.source import LogitReading
    from megapack.outputs.teacher import PayloadHead
    from megapack.parallel.context import ParallelContext
    from megapack.parallel.lm_head import LmHead
    from megapack.records.payload import PayloadDtype, PayloadKind

    head = PayloadHead(
        kinds=((PayloadKind.TOPK, PayloadDtype.FP16), (PayloadKind.HIDDEN, PayloadDtype.BF16)),
        top_k=TOP,
        reading=LogitReading(form=LogitsForm.BY_CHUNKS, tokens_per_chunk=TOKENS_PER_CHUNK),
    )
    draw = torch.Generator().manual_seed(0)
    weight = torch.empty(VOCABULARY, HIDDEN).normal_(std=0.1, generator=draw)
    largest = 0.0
    for _ in range(count):
        hidden = torch.empty(tokens, HIDDEN).normal_(generator=draw)
        output = ModelOutput(
            logits=None,
            hidden=None,
            vocab_size=VOCABULARY,
            lm_head=LmHead(hidden=hidden, weight=weight),
        )
        records = head(output, _microbatch(tokens), ParallelContext.single()).records
        result = sum(_bytes(one) for one in records) / _MB
        if sum(one.num_positions for one in records) != 2 * (tokens - tokens % DOCUMENT):
            raise RuntimeError("expected two payloads for every token, found others.")
        largest = max(largest, result)
    return {"result_mb": round(largest, 1)}


def _microbatch(tokens: int):  # noqa: ANN202 - torch's types are imported in the child only
    import numpy as np

    from megapack.batch.iterate import step_batch
    from megapack.layout.granularity import Granularity
    from megapack.layout.pack_layout import PackLayout
    from megapack.parallel.context import ParallelContext
    from megapack.records.packed_row import PackedRow

    one = Granularity(segment=1, row=1)
    documents = tokens // DOCUMENT
    layout = PackLayout(
        row_length=tokens, lengths=np.full(documents, DOCUMENT, np.int32), granularity=one
    )
    starts = np.arange(documents, dtype=np.int32) * DOCUMENT
    row = PackedRow(
        tokens=np.random.default_rng(0).integers(0, VOCABULARY, tokens).astype(np.int32),
        target_runs=np.stack((starts, starts + DOCUMENT - 1), axis=1).reshape(-1),
        layout=layout,
        document_ids=tuple(f"{i:032x}" for i in range(documents)),
    )
    context = ParallelContext.single()
    step = step_batch([row], context=context, row_length=tokens, granularity=one)
    return next(step.microbatches)


def _bytes(payload) -> int:  # noqa: ANN001 - imported in the child only
    arrays = (payload.values, payload.indices, payload.tail_logprobs, payload.target_logprobs)
    return sum(array.nbytes for array in arrays if array is not None)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        tell_peak(lambda: _extract(int(sys.argv[1]), int(sys.argv[2])))
    else:
        main()
