"""`MultimodalDataset`: a stream of packed multimodal rows for torch's data loaders.

Each data worker of each rank reads a part of its own; `state_dict` describes what was handed out,
whatever was made ahead. Ranks get unlike numbers of rows from groups that end: how many samples fit
a row depends on the samples. Stop all ranks at the shortest, or let groups repeat.
"""

from collections.abc import Iterator, Mapping
from typing import Self

import torch
from torch.utils.data import IterableDataset, get_worker_info

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.batch.multimodal_tensors import to_batch
from megapack.batch.prefetch import Prefetched
from megapack.errors import ConfigError
from megapack.jobs.multimodal import MultimodalJob
from megapack.multimodal.assemble import assemble
from megapack.multimodal.config import MaskForm
from megapack.records.shard import Shard
from megapack.steps.multimodal.open_job import open_job
from megapack.steps.multimodal.stream import MultimodalStream
from megapack.steps.multimodal.stream_state import World, check_world

STATE_VERSION = 1
_UNSET = -1

_Made = tuple[MultimodalBatch, dict[str, object]]
"""A batch and the state of the stream after it."""


class MultimodalDataset(IterableDataset[MultimodalBatch]):
    """Rows of a job as batches; use it with `batch_size=None`.

    Args:
        job: what is read and how it is packed.
        rank: data-parallel rank.
        ranks: data-parallel ranks.
        mask: masks of each sample, or columns for flex attention.
        padded_length: what flex attention runs over; `limits.max_tokens` when None. Nested masks
            need no padding.
        prefetch: rows made ahead by a thread, without data workers; 0 for none. Data workers are
            ahead by themselves.

    Raises:
        ConfigError: one of these is wrong.
    """

    def __init__(
        self,
        job: MultimodalJob,
        *,
        rank: int = 0,
        ranks: int = 1,
        mask: MaskForm = MaskForm.NESTED,
        padded_length: int | None = None,
        prefetch: int = 2,
    ) -> None:
        super().__init__()
        if not isinstance(job, MultimodalJob):
            raise ConfigError(
                f"MultimodalDataset: expected a MultimodalJob, found {job!r:.80}. Load a job file "
                "by MultimodalJob.load(path)."
            )
        self.job = job
        self.rank = rank
        self.ranks = ranks
        self.mask = MaskForm.of(mask)
        self.padded_length = padded_length
        self.prefetch = prefetch
        self._check()
        # Epoch that was set, and epoch that a loaded state had finished; persistent workers see
        # both, since they share the memory.
        self._shared = torch.full((2,), _UNSET, dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]
        self._digest: str | None = None
        self._loaded: dict[str, object] | None = None
        self._state: dict[str, object] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the iterations that begin from now on, in all workers.

        Raises:
            ConfigError: it is negative.
        """
        if epoch < 0:
            raise ConfigError(f"set_epoch: expected an epoch from 0, found {epoch}.")
        self._shared[0] = epoch
        self._shared[1] = _UNSET

    def state_dict(self) -> dict[str, object]:
        """JSON: what was handed out by this worker, or what was loaded."""
        state = self._loaded if self._loaded is not None else self._state
        if state is not None:
            return dict(state)
        return _state(max(int(self._shared[0]), 0), None)

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Begin the next iteration after what `state_dict` describes.

        Raises:
            ConfigError: it is no state of a `MultimodalDataset`, or of another seed, rank, worker
                or number of them. Another job is refused when the iteration begins.
        """
        if not _is_state(state_dict):
            raise ConfigError(
                f"MultimodalDataset.load_state_dict: expected a state of version {STATE_VERSION} "
                f"with epoch, ended and stream, found {str(dict(state_dict))[:100]}. Give what "
                "state_dict returned; to begin anew, load nothing."
            )
        self._check_world(state_dict, _shard(self.rank, self.ranks))
        self._loaded = dict(state_dict)
        if self._loaded["ended"]:
            self._shared[1] = int(str(self._loaded["epoch"]))

    def check_workers(self, workers: int) -> None:
        """Refuse here what each of these data workers would refuse: in one line, and once.

        Raises:
            ConfigError: the tokenizer or a source is wrong, or a group has fewer records than
                there are workers.
            DataError: a file as a whole is wrong.
            StoreError: the store failed.
        """
        opened = open_job(self.job)
        opened.check_shares(Shard(rank=self.rank, ranks=self.ranks, workers=workers))
        self._digest = opened.digest

    def check_state(self, state: Mapping[str, object], *, worker: int, workers: int) -> None:
        """Refuse here a state that this data worker would refuse.

        Raises:
            ConfigError: it belongs to another seed, rank, worker or number of them; or to another
                job, once `check_workers` was called.
        """
        shard = Shard(rank=self.rank, ranks=self.ranks, worker=worker, workers=workers)
        self._check_world(state, shard)

    def _check_world(self, state: Mapping[str, object], shard: Shard) -> None:
        stream = state.get("stream")
        world = stream.get("world") if isinstance(stream, Mapping) else None
        if not isinstance(world, Mapping):
            return
        known = World.of(self._digest or "", seed=self.job.seed, epoch=0, shard=shard).model_dump(
            exclude={"epoch"} if self._digest else {"epoch", "job"}
        )
        check_world(world, known)

    def __iter__(self) -> Iterator[MultimodalBatch]:
        """Batches of this worker's part.

        Raises:
            ConfigError: the loaded state belongs to another world or epoch.
        """
        state, self._loaded = self._loaded, None
        stream = self._stream(state)
        self._consumed(stream.epoch, stream.state())
        return _Rows(self, stream, 0 if get_worker_info() else self.prefetch)

    def _stream(self, state: dict[str, object] | None) -> MultimodalStream:
        epoch, finished = (int(value) for value in self._shared)
        shard = _shard(self.rank, self.ranks)
        if state is not None and state["ended"] and epoch not in (_UNSET, state["epoch"]):
            state = None
        elif state is None and finished == max(epoch, 0):
            raise ConfigError(
                f"MultimodalDataset: expected an epoch after {finished}, which the loaded state "
                f"had finished, found {finished} again. Call set_epoch({finished + 1})."
            )
        if state is None:
            return MultimodalStream(self.job, shard=shard, epoch=max(epoch, 0))
        inner = state["stream"]
        of_state = int(str(state["epoch"]))
        if epoch not in (_UNSET, of_state):
            raise ConfigError(
                f"MultimodalDataset: expected epoch {of_state} as in the loaded state, found "
                f"set_epoch({epoch}). Go through the rest of epoch {of_state} first, or load "
                "nothing."
            )
        return MultimodalStream(
            self.job,
            shard=shard,
            epoch=of_state,
            state=inner if isinstance(inner, Mapping) else None,
        )

    def _consumed(self, epoch: int, stream: dict[str, object]) -> None:
        self._state = _state(epoch, stream)

    def _finished(self) -> None:
        if self._state is not None:
            self._state = {**self._state, "ended": True}

    def _check(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ConfigError(
                f"MultimodalDataset: expected a rank in [0, {self.ranks}), found {self.rank}."
            )
        limit = self.job.limits.max_tokens
        if self.padded_length is not None and self.padded_length < limit:
            raise ConfigError(
                f"MultimodalDataset.padded_length: expected at least limits.max_tokens = {limit}, "
                f"found {self.padded_length}."
            )
        if self.prefetch < 0:
            raise ConfigError(
                f"MultimodalDataset.prefetch: expected 0 or more rows, found {self.prefetch}."
            )


class _Rows(Iterator[MultimodalBatch]):
    """One iteration; tells the dataset what was handed out."""

    def __init__(self, dataset: MultimodalDataset, stream: MultimodalStream, ahead: int) -> None:
        self._dataset = dataset
        self._epoch = stream.epoch
        made = _batches(stream, dataset.mask, dataset.padded_length)
        self._made: Iterator[_Made] = Prefetched(made, ahead) if ahead else made

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MultimodalBatch:
        try:
            batch, state = next(self._made)
        except StopIteration:
            self._dataset._finished()
            raise
        self._dataset._consumed(self._epoch, state)
        return batch

    def close(self) -> None:
        """Stop making rows ahead."""
        if isinstance(self._made, Prefetched):
            self._made.close()


def _batches(
    stream: MultimodalStream, mask: MaskForm, padded_length: int | None
) -> Iterator[_Made]:
    """Batches with the state after each."""
    to_length = stream.job.limits.max_tokens if padded_length is None else padded_length
    for row in stream:
        assembled = assemble(row.laid, stream.rules)
        length = to_length if mask is MaskForm.FLEX else assembled.length
        yield to_batch(assembled, mask=mask, padded_length=length), row.state


def _is_state(state: Mapping[str, object]) -> bool:
    """Whether it has the form of what `_state` makes; what is in the stream is judged later."""
    epoch = state.get("epoch")
    return (
        state.get("version") == STATE_VERSION
        and isinstance(epoch, int)
        and epoch >= 0
        and isinstance(state.get("ended"), bool)
        and isinstance(state.get("stream", ""), Mapping | None)
    )


def _state(epoch: int, stream: dict[str, object] | None) -> dict[str, object]:
    return {"version": STATE_VERSION, "epoch": epoch, "ended": False, "stream": stream}


def _shard(rank: int, ranks: int) -> Shard:
    info = get_worker_info()
    if info is None:
        return Shard(rank=rank, ranks=ranks)
    return Shard(rank=rank, ranks=ranks, worker=info.id, workers=info.num_workers)
