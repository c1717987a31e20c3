"""Two made-up teachers of the tiny model: what they say of a document, and the loss by the book.

Imports torch: only functions that run on ranks, and unit tests, may import this module. Teacher 0
has the student's vocabulary and 10 more tokens, and says what it says about documents of even
number; teacher 1 has another width and a vocabulary of its own. Where no label counts, fields hold
garbage.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from megapack.batch.fields import RowFields, by_document
from megapack.batch.microbatch import MicroBatch
from megapack.jobs.distill import DistillSettings, Tail
from megapack.jobs.outputs import LossMean
from megapack.layout.token_fields import TokenField
from megapack.model.forward import ModelOutput, Need
from megapack.outputs import distill_fields
from megapack.outputs.head import HeadResult
from megapack.parallel.context import ParallelContext
from megapack.parallel.teacher_columns import TeacherColumns
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadKind
from tests.support.dense_distill import over_topk, over_vocabulary
from tests.support.rows import VOCAB

WIDTHS = (24, 17)
VOCABS = (VOCAB + 10, 90)
TOP_K = 6
# Student id -> teacher id. Of the second teacher's 90 tokens, the student has 60.
PAIRS = (
    {v: v for v in range(VOCAB)},
    dict(
        zip(
            sorted(np.random.default_rng(1).permutation(VOCAB)[:60].tolist()),
            np.random.default_rng(2).permutation(VOCABS[1])[:60].tolist(),
            strict=True,
        )
    ),
)
_SHAPES = {
    distill_fields.TEACHER: (np.int64, ()),
    distill_fields.TOPK_LOGPROBS: (np.float32, (TOP_K,)),
    distill_fields.TOPK_IDS: (np.int64, (TOP_K,)),
    distill_fields.TAIL_LOGPROBS: (np.float32, ()),
    distill_fields.HIDDEN: (np.float32, (max(WIDTHS),)),
    distill_fields.LOGITS: (np.float32, (max(VOCABS),)),
}
_GARBAGE = {np.int64: 10**6, np.float32: np.nan}


def teacher_of(document_id: str) -> int:
    """Number of a document's teacher."""
    return int(document_id, 16) % 2


@cache
def lm_head(teacher: int) -> torch.Tensor:
    """[V_t, H_t] float64, of values that bfloat16 holds."""
    draw = torch.Generator().manual_seed(teacher)
    weight = torch.randn(VOCABS[teacher], WIDTHS[teacher], dtype=torch.float64, generator=draw)
    return (weight / 2).bfloat16().double()


def columns_of(teacher: int, context: ParallelContext, columns: int) -> TeacherColumns:
    """In the order of this rank's columns; float64 weights."""
    first = context.tp_rank * columns
    column_of = torch.tensor([PAIRS[teacher].get(first + i, -1) for i in range(columns)])
    rows = torch.where(column_of[:, None] >= 0, lm_head(teacher)[column_of], torch.nan)
    return TeacherColumns(column_of=column_of, weight=rows)


@cache
def said(document_id: str, length: int) -> dict[str, np.ndarray]:
    """Fields of one document, [length, ...]."""
    teacher = teacher_of(document_id)
    draw = torch.Generator().manual_seed(int(document_id, 16) % 2**31)
    hidden = torch.randn(length, WIDTHS[teacher], generator=draw).bfloat16().double()
    logits = hidden @ lm_head(teacher).T
    ids, logprobs, tails = [], [], []
    to_student = {theirs: mine for mine, theirs in PAIRS[teacher].items()}
    for row in logits.log_softmax(-1).tolist():
        best = sorted(range(len(row)), key=lambda v, row=row: -row[v])[:TOP_K]
        known = [v for v in best if v in to_student]
        missing = TOP_K - len(known)
        ids.append([to_student[v] for v in known] + [-1] * missing)
        logprobs.append([row[v] for v in known] + [-np.inf] * missing)
        tails.append(np.log(sum(np.exp(row[v]) for v in range(len(row)) if v not in known)))
    return {
        distill_fields.TEACHER: np.full(length, teacher),
        distill_fields.TOPK_LOGPROBS: np.array(logprobs, np.float32),
        distill_fields.TOPK_IDS: np.array(ids, np.int64),
        distill_fields.TAIL_LOGPROBS: np.array(tails, np.float32),
        distill_fields.HIDDEN: _widened(hidden.numpy(), max(WIDTHS)),
        distill_fields.LOGITS: _widened(logits.numpy(), max(VOCABS)),
    }


def _widened(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, width - values.shape[1]))).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Says:
    """For AttachFields: what teachers say of a row's documents."""

    def __call__(self, row: PackedRow) -> RowFields:
        documents = {
            document_id: said(document_id, int(length))
            for document_id, length in zip(row.document_ids, row.layout.lengths, strict=True)
        }
        fields = {}
        for name, (dtype, trailing) in _SHAPES.items():
            spec = TokenField(name=name, dtype=dtype, pad=0, trailing=trailing)
            values = by_document(spec, {key: of[name] for key, of in documents.items()}, row)
            values[~row.loss_mask()] = _GARBAGE[dtype]
            fields[name] = values
        hidden = torch.from_numpy(fields[distill_fields.HIDDEN]).bfloat16()
        fields["bf16"] = hidden.view(torch.uint16).numpy()
        return RowFields(local=fields)


@dataclass(frozen=True, kw_only=True)
class AsBf16:
    """A stage: hidden states as their bit patterns."""

    def __call__(self, batch: MicroBatch) -> MicroBatch:
        return replace(batch, fields={**batch.fields, distill_fields.HIDDEN: batch.fields["bf16"]})


@dataclass(frozen=True, kw_only=True)
class BookHead:
    """The loss token by token, from whole logits, in one process; reads what `said` says."""

    settings: DistillSettings
    temperature: float
    mean: LossMean = LossMean.TOKEN_MEAN

    @property
    def needs(self) -> Need:
        return Need.LOGITS

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        row, share = microbatch.row, self.settings.nll_weight
        logits = output.logits[:, :VOCAB].double()
        total = logits.sum() * 0.0
        documents = 0
        for start, length, document_id in zip(
            row.layout.slot_starts.tolist(),
            row.layout.lengths.tolist(),
            row.document_ids,
            strict=True,
        ):
            spoken = said(document_id, length)
            counted = [p for p in range(length) if row.loss_mask()[start + p]]
            documents += bool(counted)
            for p in counted:
                own = logits[start + p]
                nll = -own.log_softmax(0)[int(row.labels()[start + p])]
                taught = self._taught(own, {name: value[p] for name, value in spoken.items()})
                loss = (1 - share) * self.temperature**2 * taught + share * nll
                weighs = 1 / len(counted) if self.mean is LossMean.SEQUENCE_MEAN else 1.0
                total = total + loss * weighs
        tokens = torch.tensor(row.num_target_tokens)
        divisor = torch.tensor(documents) if self.mean is LossMean.SEQUENCE_MEAN else tokens
        return HeadResult(loss_sum=total, num_target_tokens=tokens, divisor=divisor)

    def _taught(self, student: torch.Tensor, spoken: dict[str, Any]) -> torch.Tensor:
        how = (self.settings.divergence, self.temperature)
        number = int(spoken[distill_fields.TEACHER])
        if self.settings.kind is PayloadKind.TOPK:
            ids = spoken[distill_fields.TOPK_IDS].tolist()
            logprobs = spoken[distill_fields.TOPK_LOGPROBS].tolist()
            entries = {i: value for i, value in zip(ids, logprobs, strict=True) if i >= 0}
            tail = float(spoken[distill_fields.TAIL_LOGPROBS])
            return over_topk(
                student, entries, tail if self.settings.tail is Tail.BUCKET else None, *how
            )
        hidden = torch.from_numpy(spoken[distill_fields.HIDDEN])[: WIDTHS[number]].double()
        logits = lm_head(number) @ hidden
        if self.settings.kind is PayloadKind.LOGITS:
            logits = torch.from_numpy(spoken[distill_fields.LOGITS])[: VOCABS[number]].double()
        return over_vocabulary(student, logits, PAIRS[number], *how)
