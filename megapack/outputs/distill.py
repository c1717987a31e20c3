"""`DistillHead`: the student's loss against its teachers, mixed with that of the labels.

    loss of a token = (1 - w) T^2 divergence(teacher, student) + w NLL of its label

Divergence at temperature T, NLL at temperature 1; both only where the label counts, averaged like
any training loss. `docs/distillation.md` has the formulas.
"""

import math
from dataclasses import dataclass, replace

import torch

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ConfigError, ContractError
from megapack.jobs.distill import DistillSettings, Tail
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.distill_fields import (
    TAIL_LOGPROBS,
    TOPK_IDS,
    TOPK_LOGPROBS,
    counted_tokens,
    field_of,
    teacher_logits,
)
from megapack.outputs.head import HeadResult, Metric
from megapack.outputs.loss import BY_TOKENS, Averaging
from megapack.outputs.outcomes import outcome_divergence
from megapack.outputs.source import AS_THEY_ARE, LogitReading, label_logprobs
from megapack.parallel.context import ParallelContext
from megapack.parallel.teacher_columns import TeacherColumns
from megapack.parallel.vocab_divergence import Compared, vocab_divergence
from megapack.parallel.vocab_picked import picked_logprobs
from megapack.records.payload import PayloadDtype, PayloadKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistillHead:
    """Distillation loss from the teacher fields of a microbatch (`outputs.distill_fields`).

    Metrics: `loss`, `divergence` (nats, without T^2) and `nll`, each over the same tokens with
    the same weights. A part with weight 0 is computed without gradient.

    Attributes:
        settings: payload kind, divergence, tail, share of the NLL.
        temperature: T; that of the settings, or the payload's.
        teachers: by number, for kinds hidden and logits; empty for kind topk.
        dtype: of the payload.
        averaging: what the loss is a mean over, and metrics by source.
        reading: form of the student's logits.
    """

    settings: DistillSettings
    temperature: float = 1.0
    teachers: tuple[TeacherColumns, ...] = ()
    dtype: PayloadDtype = PayloadDtype.FP32
    averaging: Averaging = BY_TOKENS
    reading: LogitReading = AS_THEY_ARE

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(
                f"DistillHead.temperature = {self.temperature}, expected a finite number above 0."
            )
        kind = self.settings.kind
        if (kind is PayloadKind.TOPK) != (not self.teachers):
            raise ContractError(
                f"DistillHead.teachers: expected none for kind topk, one at least for others, "
                f"found {len(self.teachers)} for {kind.value}."
            )
        bare = sum(teacher.weight is None for teacher in self.teachers)
        if bare != (len(self.teachers) if kind is PayloadKind.LOGITS else 0):
            raise ContractError(
                "DistillHead.teachers: expected the weight of each teacher's LM head for kind "
                f"hidden, and of none for logits, found {len(self.teachers) - bare} of "
                f"{len(self.teachers)} for {kind.value}."
            )

    @property
    def needs(self) -> Need:
        """Logits in some form."""
        return self.reading.needs

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group.

        Raises:
            ContractError: a field is missing or does not fit, or a token that counts has no
                teacher.
        """
        share = self.settings.nll_weight
        with torch.set_grad_enabled(torch.is_grad_enabled() and share < 1):
            divergence = self._divergence(output, microbatch, context)
        with torch.set_grad_enabled(torch.is_grad_enabled() and share > 0):
            nll = -label_logprobs(output, microbatch, context, reading=self.reading)
        result = self.averaging(self._mixed(divergence, nll), microbatch, context)
        parts = {"divergence": divergence, "nll": nll}
        means = {name: self._mean(part, microbatch, context) for name, part in parts.items()}
        return replace(result, metrics={**result.metrics, **means})

    def _mixed(self, divergence: torch.Tensor, nll: torch.Tensor) -> torch.Tensor:
        """[n]; a part with weight 0 takes no part, even where it is infinite."""
        share = self.settings.nll_weight
        if share == 1:
            return nll
        taught = divergence * ((1 - share) * self.temperature**2)
        return taught if share == 0 else taught + nll * share

    def _mean(
        self, values: torch.Tensor, microbatch: MicroBatch, context: ParallelContext
    ) -> Metric:
        whole = replace(self.averaging, sources=())
        return whole(values.detach(), microbatch, context).metrics["loss"]

    def _divergence(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> torch.Tensor:
        """Collective over tp_group: [n], 0 where no label counts."""
        counted = counted_tokens(microbatch)
        if self.settings.kind is PayloadKind.TOPK:
            rows = counted.rows.to(microbatch.labels.device)
            return self._over_topk(output, microbatch, context, rows)
        shard = self.reading.shard(output, context)
        source = self.reading.source(output)
        for number, teacher in enumerate(self.teachers):
            _check_columns(teacher, number, columns=source.columns, real=shard.real)
        return vocab_divergence(
            source,
            teacher_logits(microbatch, counted, self.teachers, self.dtype),
            shard,
            Compared(divergence=self.settings.divergence, temperature=self.temperature),
        )

    def _over_topk(
        self,
        output: ModelOutput,
        microbatch: MicroBatch,
        context: ParallelContext,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        picked, rest = picked_logprobs(
            self.reading.source(output),
            field_of(microbatch, TOPK_IDS)[rows],
            self.reading.shard(output, context),
            temperature=self.temperature,
            rows=rows,
        )
        student, teacher = [picked], [field_of(microbatch, TOPK_LOGPROBS)[rows]]
        if self.settings.tail is Tail.BUCKET:
            student.append(rest[:, None])
            teacher.append(field_of(microbatch, TAIL_LOGPROBS)[rows, None])
        found = outcome_divergence(
            torch.cat(teacher, dim=1).to(picked.dtype),
            torch.cat(student, dim=1),
            self.settings.divergence,
        )
        zeros = found.new_zeros(microbatch.labels.numel())
        return zeros.index_copy(0, rows, found)


def _check_columns(teacher: TeacherColumns, number: int, *, columns: int, real: int) -> None:
    found = teacher.column_of.shape[0]
    if found != columns or teacher.last_shared >= real:
        raise ContractError(
            f"DistillHead.teachers[{number}]: expected column_of for {columns} columns with -1 "
            f"from {real} on, found {found} columns, the last shared one {teacher.last_shared}."
        )
