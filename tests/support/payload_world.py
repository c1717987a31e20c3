"""Payloads of several kinds from one world of ranks, and what they are held against.

The LM head has equal rows on both sides of the border of two shards, each with one weight that is
not zero: their logits are equal to the bit in any product, so top-k meets true ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from tests.support.rows import VOCAB

TIED_IDS = (2, 17, 40, 55, 63, 64, 70, 71, 90, 100)
"""Two of them on the border of 64 columns a rank."""

Kinds = tuple[tuple[PayloadKind, PayloadDtype], ...]
Given = dict[PayloadKind, dict[str, TeacherPayload]]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A payload head and the rows it is run on."""

    rows: Sequence[PackedRow]
    kinds: Kinds
    top_k: int | None = None
    temperature: float = 1.0
    tokens_per_chunk: int | None = None
    rows_per_microbatch: int = 1


@dataclass(frozen=True, kw_only=True)
class World:
    """What one rank gave.

    Attributes:
        payloads: by name of what was asked, by kind and document.
        kept: by name, at each call of the head: outputs of earlier microbatches still alive.
        lm_head: blocks of rows, of untied and of tied embeddings.
        logprobs: by temperature and document, from LogprobHead.
    """

    payloads: dict[str, Given] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)
    lm_head: dict[str, list[Any]] = field(default_factory=dict)
    logprobs: dict[float, dict[str, Any]] = field(default_factory=dict)


def payload_world(
    *,
    sizes: ParallelSizes,
    asked: dict[str, Asked],
    rows: Sequence[PackedRow],
    rows_at_once: int,
) -> World:
    """Run on ranks: every head asked for in one model, log-probs of rows, and LM heads."""
    from megapack.outputs.lm_head_rows import lm_head_rows

    context, chunks = _start(sizes)
    world = World()
    for name, one in asked.items():
        world.payloads[name], world.kept[name] = _payloads(chunks, one, context)
    for temperature in (1.0, 2.0):
        world.logprobs[temperature] = _logprobs(chunks, rows, temperature, context)
    for name, tied in (("untied", False), ("tied", True)):
        chunk = _model(context, dtype="float32", tied=tied)[0]
        if context.is_last_stage:
            world.lm_head[name] = list(lm_head_rows(chunk, context, rows_at_once))
    context.destroy()
    return world


def dense_outputs(*, documents: Sequence[PackedRow]) -> dict[str, Any]:
    """Run on one rank: float64 logits [m, V] and hidden states [m, H] of each document alone.

    And the whole LM heads, float32 [V, H], under `untied` and `tied`.
    """
    from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
    from megapack.model.forward import Need
    from megapack.outputs.head import nothing_to_learn
    from tests.support.tiny_training import packed_step

    found: dict[str, Any] = {}

    class Dense:
        needs = Need.LOGITS | Need.HIDDEN

        def __call__(self, output: Any, microbatch: Any, context: Any) -> Any:
            logits, hidden = output.logits[:, :VOCAB].numpy(), output.hidden.numpy()
            found[microbatch.document_ids[0]] = logits, hidden
            return nothing_to_learn(context)

    context, chunks = _start(ParallelSizes())
    for document in documents:
        step = packed_step([document], context)
        plan = SchedulePlan(step=step, head=Dense(), phase=Phase.FORWARD_ONLY)
        run_schedule(chunks, plan, context)
    untied, tied = (_model(context, dtype="float32", tied=tied)[0] for tied in (False, True))
    found["untied"] = untied.output_layer.weight.detach()[:VOCAB].numpy()
    found["tied"] = tied.embedding.word_embeddings.weight.detach()[:VOCAB].numpy()
    context.destroy()
    return found


def _start(sizes: ParallelSizes) -> tuple[Any, list[Any]]:
    from megapack.parallel.context import ParallelContext

    context = ParallelContext.initialize(sizes, seed=7)
    chunks = _model(context, dtype="float64", tied=False)
    if context.is_last_stage:
        weight = chunks[0].output_layer.weight.data
        own = [one - context.tp_rank * weight.shape[0] for one in TIED_IDS]
        for column in own:
            if 0 <= column < weight.shape[0]:
                weight[column] = 0.0
                weight[column, 0] = 4.0
    return context, chunks


def _model(context: Any, *, dtype: str, tied: bool) -> list[Any]:
    import torch

    from megapack.model.build import build_model
    from tests.support.tiny_training import JOB

    return build_model(
        JOB.model_copy(update={"tie_embeddings": tied}),
        context=context,
        vocab_size=VOCAB,
        seed=11,
        params_dtype=getattr(torch, dtype),
    )


def _payloads(chunks: list[Any], asked: Asked, context: Any) -> tuple[Given, list[int]]:
    import weakref
    from dataclasses import replace

    from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
    from megapack.outputs.source import BY_CHUNKS
    from megapack.outputs.teacher import PayloadHead
    from tests.support.tiny_training import packed_step

    head = PayloadHead(
        kinds=asked.kinds,
        top_k=asked.top_k,
        temperature=asked.temperature,
        reading=replace(BY_CHUNKS, tokens_per_chunk=asked.tokens_per_chunk),
    )
    before: list[Any] = []
    kept: list[int] = []

    class Watching:
        needs = head.needs

        def __call__(self, output: Any, microbatch: Any, context: Any) -> Any:
            kept.append(sum(reference() is not None for reference in before))
            result = head(output, microbatch, context)
            before.append(weakref.ref(output.lm_head.hidden))
            return result

    given: Given = {kind: {} for kind, _ in asked.kinds}

    def sink(records: Any) -> None:
        for record in records:
            assert record.document_id not in given[record.kind], "one rank writes a document once"
            given[record.kind][record.document_id] = record

    step = packed_step(list(asked.rows), context, rows_per_microbatch=asked.rows_per_microbatch)
    plan = SchedulePlan(step=step, head=Watching(), phase=Phase.FORWARD_ONLY, sink=sink)
    run_schedule(chunks, plan, context)
    return given, kept


def _logprobs(
    chunks: list[Any], rows: Sequence[PackedRow], temperature: float, context: Any
) -> dict[str, Any]:
    from megapack.engine.schedule import Phase, SchedulePlan, run_schedule
    from megapack.outputs.logprobs import LogprobHead
    from megapack.parallel.sampling import Sampling
    from tests.support.tiny_training import packed_step

    records: list[Any] = []
    plan = SchedulePlan(
        step=packed_step(list(rows), context),
        head=LogprobHead(sampling=Sampling(temperature=temperature)),
        phase=Phase.FORWARD_ONLY,
        sink=records.extend,
    )
    run_schedule(chunks, plan, context)
    return {record.document_id: record.target_logprobs.numpy() for record in records}


def log_softmax(logits: Any) -> Any:
    """By the book, of float64 [m, V]."""
    return logits - _log_sum(logits)[:, None]


def dense_topk(logits: Any, k: int) -> tuple[Any, Any, Any]:
    """By the book, from float64 [m, V] logits over the temperature.

    Returns:
        Log-probs [m, K], ids [m, K] and the log-probability of the others [m].
    """
    others = log_softmax(logits)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(others, ids, axis=1)
    np.put_along_axis(others, ids, -np.inf, axis=1)
    return best, ids, _log_sum(others)


def _log_sum(values: Any) -> Any:
    high = values.max(axis=1)
    base = np.where(np.isfinite(high), high, 0.0)
    with np.errstate(divide="ignore"):
        return base + np.log(np.exp(values - base[:, None]).sum(axis=1))


def is_rounded(payload: TeacherPayload, reference: Any, *, name: str = "values") -> bool:
    """Whether each stored number is the rounding of a number within 1e-12 of the reference.

    Relative to the largest of the reference, as law 3 counts.
    """
    stored = getattr(payload, name)
    finite = np.isfinite(reference)
    slack = 1e-12 * np.abs(reference[finite]).max(initial=0.0)
    low, high = (reference + way * slack for way in (-1, 1))
    if name == "values" and payload.dtype is PayloadDtype.BF16:
        stored, low, high = widened(stored), nearest_bf16(low), nearest_bf16(high)
    else:
        # torch rounds float64 to float16 by way of float32.
        low, high = (value.astype(np.float32).astype(stored.dtype) for value in (low, high))
    return bool(((low <= stored) & (stored <= high))[finite].all()) and np.array_equal(
        stored[~finite], reference[~finite].astype(stored.dtype), equal_nan=True
    )


def widened(bits: Any) -> Any:
    """bfloat16's bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def nearest_bf16(values: Any) -> Any:
    """float32 [...]: the bfloat16 next to each value, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return widened(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
