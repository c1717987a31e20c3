"""`PayloadHead`: what a teacher knows about each document, of several kinds at once, to the host.

One walk over chunks of positions: a chunk's logits are projected once, all kinds are taken from
them, tensor, sequence and context parallelism are undone, and the chunk leaves the device before
the next one is projected. So neither logits nor outputs of a whole row exist on the device, and a
payload does not depend on how the teacher was packed or split.
"""

from dataclasses import dataclass, replace

from megapack.batch.microbatch import MicroBatch
from megapack.errors import ConfigError
from megapack.model.forward import ModelOutput, Need
from megapack.outputs.head import HeadResult, needed, nothing_to_learn
from megapack.outputs.host_documents import HostDocuments
from megapack.outputs.payload_columns import PayloadColumns, PositionChunk
from megapack.outputs.payload_records import PayloadRecords
from megapack.outputs.source import BY_CHUNKS, LogitReading
from megapack.parallel.context import ParallelContext
from megapack.parallel.sampling import Sampling
from megapack.records.payload import PayloadDtype, PayloadKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadHead:
    """Emits a TeacherPayload for each document and kind, on the writing rank.

    By document, then in the order of `kinds`.

    Attributes:
        kinds: what is stored, and how; each kind once.
        top_k: tokens a position, at most the real vocabulary; for TOPK, and for no other.
        teacher: stable index of the teacher.
        temperature: of log-probs, the top-k's included; hidden states and logits are stored as
            the model gives them.
        reading: form of the logits; its chunk is what leaves the device at once.
    """

    kinds: tuple[tuple[PayloadKind, PayloadDtype], ...]
    top_k: int | None = None
    teacher: int = 0
    temperature: float = 1.0
    reading: LogitReading = BY_CHUNKS

    def __post_init__(self) -> None:
        named = [kind for kind, _ in self.kinds]
        if not named or len(set(named)) < len(named):
            raise ConfigError(
                f"PayloadHead.kinds: expected each kind once and at least one, found "
                f"{[kind.value for kind in named]}."
            )
        if (PayloadKind.TOPK in named) != (self.top_k is not None):
            raise ConfigError(
                f"PayloadHead.top_k = {self.top_k}, expected a number for kind topk, and None "
                f"without it; kinds are {[kind.value for kind in named]}."
            )
        Sampling(temperature=self.temperature)

    @property
    def needs(self) -> Need:
        """Logits in some form; hidden states come with the LM head."""
        return self.reading.needs | (Need.LM_HEAD if self._wants_hidden else Need.NOTHING)

    @property
    def _wants_hidden(self) -> bool:
        return any(kind is PayloadKind.HIDDEN for kind, _ in self.kinds)

    def __call__(
        self, output: ModelOutput, microbatch: MicroBatch, context: ParallelContext
    ) -> HeadResult:
        """Collective over tp_group and cp_group.

        Raises:
            DataError: on the writing rank: a value is NaN, or does not fit its dtype.
            ConfigError: top_k exceeds the vocabulary.
        """
        source, shard = self.reading.source(output), self.reading.shard(output, context)
        hidden = needed(output.lm_head, "lm_head").hidden if self._wants_hidden else None
        labels = microbatch.labels.reshape(-1)
        columns = PayloadColumns(
            kinds=self.kinds,
            top_k=self.top_k,
            temperature=self.temperature,
            vocab_size=output.vocab_size,
        )
        host = HostDocuments.of(microbatch.attention.layout, context)
        for part in shard.chunks(labels.numel(), columns=source.columns):
            chunk = PositionChunk(
                logits=source.read(part).detach(),
                labels=labels[part],
                hidden=None if hidden is None else hidden[part],
            )
            host.add(part, columns.of(chunk, shard, context))
        nothing = nothing_to_learn(context)
        if not context.is_writer:
            return nothing
        records = PayloadRecords(kinds=self.kinds, teacher=self.teacher)
        return replace(nothing, records=tuple(records.of(microbatch.row, host)))
