"""How much an extraction stores, and what follows from it: shards, and the refusal of too much.

Bytes of a position, before compression: 4 for its label's log-prob; top-k: K values, K ids of 4
bytes and 4 for the tail; hidden states: H values; logits: V values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megapack.errors import ConfigError
from megapack.jobs.extract import ExtractJob, ExtractSettings, PayloadChoice
from megapack.jobs.model import ModelJob, TrainPrecision
from megapack.records.payload import PayloadKind
from megapack.steps.extraction.chosen_rows import ChosenRows
from megapack.steps.extraction.stored_bytes import index_bytes, kind_bytes
from megapack.steps.wording import byte_size, counted
from megapack.store.schema import KindInfo, PackedInfo, PayloadInfo

_FLOAT = _ID = 4
_SHARD_BYTES = 128 << 20
_SHARD_POSITIONS = 1 << 20
_WEIGHT_BYTES = {TrainPrecision.FP32: 4, TrainPrecision.BF16: 2}
_TOKEN_BYTES = 6
"""Of one token of the vocabulary, compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSize:
    """What an extraction stores.

    Attributes:
        kinds: bytes of each kind.
        guessed: kinds of which no earlier payload of this teacher tells.
        index: bytes of the index of the documents.
        lm_head: bytes of the LM head, 0 where none is published.
        vocabulary: bytes of the token-to-id map.
    """

    kinds: tuple[tuple[KindInfo, int], ...]
    guessed: tuple[KindInfo, ...]
    index: int
    lm_head: int
    vocabulary: int

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(size for _, size in self.kinds) + self.index + self.beside

    @property
    def beside(self) -> int:
        """Bytes of LM head and vocabulary."""
        return self.lm_head + self.vocabulary


def kinds_of(choice: PayloadChoice, model: ModelJob, vocab_size: int) -> tuple[KindInfo, ...]:
    """What is stored of each document.

    Args:
        choice: what a person asks for.
        model: the teacher.
        vocab_size: its real vocabulary.

    Raises:
        ConfigError: more top tokens are asked for than there are.
    """
    if choice.top_k is not None and choice.top_k > vocab_size:
        raise ConfigError(
            f"PayloadChoice.top_k = {choice.top_k}, expected at most the teacher's vocabulary of "
            f"{vocab_size}. Lower it, or store logits, which are the whole distribution."
        )
    widths = {
        PayloadKind.LOGPROBS: 0,
        PayloadKind.TOPK: choice.top_k or 0,
        PayloadKind.HIDDEN: model.hidden_size,
        PayloadKind.LOGITS: vocab_size,
    }
    return tuple(
        KindInfo(kind=kind, dtype=dtype, width=widths[kind]) for kind, dtype in choice.dtypes()
    )


def payload_info(job: ExtractJob, packed: PackedInfo) -> PayloadInfo:
    """What all payloads of a job share.

    Raises:
        ConfigError: the teacher's vocabulary is smaller than the dataset's, or than top_k.
    """
    vocab_size = job.model.vocabulary(packed.vocab_size)
    return PayloadInfo(
        kinds=kinds_of(job.settings.payload, job.model, vocab_size),
        temperature=job.settings.temperature,
        vocab_size=vocab_size,
        tokenizer_digest=packed.tokenizer_digest,
        teachers=(job.checkpoint.digest,),
    )


def position_bytes(kind: KindInfo) -> int:
    """Bytes of one position of a kind, before compression."""
    own = kind.width * kind.dtype.numpy.itemsize + _FLOAT
    return own + (kind.width * _ID + _FLOAT if kind.kind is PayloadKind.TOPK else 0)


def payload_size(
    settings: ExtractSettings,
    model: ModelJob,
    packed: PackedInfo,
    chosen: ChosenRows,
    *,
    seen: Mapping[KindInfo, float],
) -> PayloadSize:
    """Bytes that an extraction stores, about.

    Args:
        settings: the extraction.
        model: the teacher.
        packed: what the dataset's rows share.
        chosen: documents and positions.
        seen: bytes that a position of a kind took with this teacher before, where that is known.

    Raises:
        ConfigError: the teacher's vocabulary is smaller than the dataset's, or than top_k.
    """
    vocab_size = model.vocabulary(packed.vocab_size)
    kinds = kinds_of(settings.payload, model, vocab_size)
    shards = num_shards(settings, kinds, chosen, row_length=packed.row_length)
    head = vocab_size * model.hidden_size * _WEIGHT_BYTES[model.precision]
    return PayloadSize(
        kinds=tuple(
            (
                kind,
                round(chosen.num_positions * seen[kind])
                if kind in seen
                else kind_bytes(
                    kind,
                    vocab_size=vocab_size,
                    positions=chosen.num_positions,
                    documents=chosen.num_documents,
                    shards=shards,
                ),
            )
            for kind in kinds
        ),
        guessed=tuple(kind for kind in kinds if kind not in seen),
        index=index_bytes(documents=chosen.num_documents, shards=shards),
        lm_head=head if any(kind.kind is PayloadKind.HIDDEN for kind in kinds) else 0,
        vocabulary=vocab_size * _TOKEN_BYTES,
    )


def num_shards(
    settings: ExtractSettings,
    kinds: Sequence[KindInfo],
    chosen: ChosenRows,
    *,
    row_length: int,
) -> int:
    """Shards of an extraction."""
    return -(-chosen.num_rows // shard_rows(settings, kinds, row_length=row_length))


def shard_rows(settings: ExtractSettings, kinds: Sequence[KindInfo], *, row_length: int) -> int:
    """Rows of one shard: the same at every layout, so that a stopped run goes on at another one.

    Args:
        settings: may say the number itself.
        kinds: what is stored.
        row_length: positions of a row.
    """
    if settings.shard_rows is not None:
        return settings.shard_rows
    row_bytes = row_length * sum(position_bytes(kind) for kind in kinds)
    return max(1, min(_SHARD_BYTES // row_bytes, _SHARD_POSITIONS // row_length))


def check_budget(size: PayloadSize, max_bytes: int | None) -> None:
    """Refuse an extraction that would store more than its limit.

    Raises:
        ConfigError: it would; says of which kind how much, and what to change.
    """
    if max_bytes is None or size.total <= max_bytes:
        return
    parts = [f"{kind.kind.value} {byte_size(own)}" for kind, own in size.kinds]
    parts += [f"LM head {byte_size(size.lm_head)}"] if size.lm_head else []
    raise ConfigError(
        f"ExtractSettings.max_bytes = {counted(max_bytes, 'byte')}, expected at least the "
        f"{size.total:,} or so that the payload takes ({', '.join(parts)}). Raise it; or lower "
        "payload.top_k, take a narrower dtype, leave a kind out, or take fewer rows (max_rows, "
        "sources)."
    )
