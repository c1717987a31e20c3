"""`StoredMultimodalDataset`: packed rows of a store as a torch data set, with exact resume.

Ranks take turns in a seeded order of the rows, and the data workers of a rank take turns in its
share, so a loader yields the rank's rows in the order of one process. All ranks get equally many
rows: those left over when the number of ranks does not divide them are cut, other ones each epoch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.batch.multimodal_tensors import to_batch
from megapack.errors import ConfigError
from megapack.multimodal.config import MaskForm
from megapack.records.shard import Shard
from megapack.steps.multimodal.stored import StoredRows, open_multimodal

_STATE_FORMAT = 1
_UNSET = -1


class StoredMultimodalDataset(IterableDataset[MultimodalBatch]):
    """Rows of one version, an epoch at a time.

    Works with `DataLoader` (`batch_size=None`), forked and spawned workers. `multimodal_loader`
    makes a stateful loader of it; a plain `StatefulDataLoader` begins the epoch anew from a state
    that was taken at its end. Which epoch comes is said by `set_epoch`, which persistent workers
    see as well.

    Args:
        rows: an open version, or its address for the newest one.
        rank: data-parallel rank, in [0, ranks).
        ranks: data-parallel ranks.
        seed: of the order.
        mask: form of the attention masks.
        padded_length: what flex attention runs over; None for the row limit.

    Raises:
        ConfigError: there is no such version or mask, or it has fewer rows than ranks.
        StoreError: the store failed.
    """

    def __init__(
        self,
        rows: StoredRows | str,
        *,
        rank: int = 0,
        ranks: int = 1,
        seed: int = 0,
        mask: MaskForm = MaskForm.NESTED,
        padded_length: int | None = None,
    ) -> None:
        super().__init__()
        self.rows = open_multimodal(rows) if isinstance(rows, str) else rows
        if not 0 <= rank < ranks or self.rows.num_rows < ranks:
            raise ConfigError(
                f"{self.rows.ref.uri} version {self.rows.ref.version}: expected 0 <= rank < ranks "
                f"and a row for each rank, found rank {rank} of {ranks} and "
                f"{self.rows.num_rows} rows. Use fewer ranks, or pack more."
            )
        self._rank, self._ranks, self._seed = rank, ranks, seed
        self._mask = MaskForm.of(mask)
        self._padded_length = padded_length
        # Shared with data workers, so that persistent ones learn of a new epoch.
        self._epoch = torch.full((1,), _UNSET, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._taken = 0
        self._own_epoch = 0
        self._resumed = False

    def __len__(self) -> int:
        """Rows of an epoch on each rank."""
        return self.rows.num_rows // self._ranks

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is iterated next.

        Raises:
            ConfigError: it is negative.
        """
        if epoch < 0:
            raise ConfigError(f"set_epoch: expected an epoch from 0, found {epoch}.")
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[MultimodalBatch]:
        """Rows of this rank and worker, from a loaded state on or from the epoch's start.

        Raises:
            ConfigError: the loaded state stands within another epoch than `set_epoch` said.
        """
        asked = int(self._epoch[0])
        if not self._resumed or (asked != self._own_epoch and self._between_epochs()):
            self._taken = 0
            self._own_epoch = max(asked, 0)
        elif asked != self._own_epoch:
            raise ConfigError(
                f"StoredMultimodalDataset: expected epoch {self._own_epoch} as in the loaded "
                f"state, found set_epoch({asked}). Go through the rest of epoch "
                f"{self._own_epoch} first, or load nothing."
            )
        self._resumed = False
        return self._walk(self._numbers()[self._taken :])

    def state_dict(self) -> dict[str, Any]:
        """Where this worker stands: after the rows that it handed out."""
        return {**self._world(self._shard()), "epoch": self._own_epoch, "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: its epoch is iterated next, also when it is over.

        `set_epoch` with a later epoch begins that one, if the state's is over.

        Raises:
            ConfigError: the state is of other rows, another seed, or other ranks and workers.
        """
        self._check(state, self._world(self._shard()))
        self._own_epoch, self._taken = int(state["epoch"]), int(state["taken"])
        if self._epoch[0] == _UNSET:
            self._epoch[0] = self._own_epoch
        self._resumed = True

    def check_workers(self, workers: int) -> None:
        """Any number of data workers will do: those without a row have none to give."""

    def check_state(self, state: Mapping[str, Any], *, worker: int, workers: int) -> None:
        """Refuse here a state that this data worker would refuse; raises as `load_state_dict`."""
        shard = Shard(rank=self._rank, ranks=self._ranks, worker=worker, workers=workers)
        self._check(state, self._world(shard))

    def _check(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        wrong = [name for name in own if state.get(name) != own[name]]
        if wrong:
            told = ", ".join(f"{name} {own[name]!r} and not {state.get(name)!r}" for name in wrong)
            raise ConfigError(
                f"state of a StoredMultimodalDataset: expected {told}. Resume with the rows, the "
                "seed, the ranks and the workers that it was taken with, or begin the epoch anew."
            )

    def _between_epochs(self) -> bool:
        """Whether this worker has handed out none of its rows of the epoch, or all."""
        shard = self._shard()
        return not self._taken or self._taken >= len(range(shard.worker, len(self), shard.workers))

    def _numbers(self) -> list[int]:
        """Row numbers of this worker in the epoch."""
        shard = self._shard()
        order = self.rows.order(seed=self._seed).epoch_rows(
            self._own_epoch, 0, len(self) * self._ranks
        )
        return [int(one) for one in order[self._rank :: self._ranks][shard.worker :: shard.workers]]

    def _walk(self, numbers: list[int]) -> Iterator[MultimodalBatch]:
        padded = self._padded_length or self.rows.limits.max_tokens
        for number in numbers:
            row = self.rows.row(number)
            length = padded if self._mask is MaskForm.FLEX else row.length
            batch = to_batch(row, mask=self._mask, padded_length=length)
            self._taken += 1
            yield batch

    def _shard(self) -> Shard:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Shard(rank=self._rank, ranks=self._ranks, worker=number, workers=count)

    def _world(self, shard: Shard) -> dict[str, Any]:
        return {
            "format": _STATE_FORMAT,
            "rows": self.rows.ref.digest,
            "seed": self._seed,
            "rank": shard.rank,
            "ranks": shard.ranks,
            "worker": shard.worker,
            "workers": shard.workers,
        }
