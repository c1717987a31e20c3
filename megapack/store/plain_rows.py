"""`PlainRows`: a split as Hugging Face trainers take it, a map-style data set of dictionaries.

`torch.utils.data.DataLoader` and the HF `Trainer` accept any object with a length and an index, so
no torch is needed here. Each worker process opens the version anew at its first row (workers are
to be spawned, or forked before the first read), and no row is read twice: that is what map-style
means. Rows stand in the seeded order of one epoch already, so they are best read one after
another: a shuffling sampler decodes a row group for every row.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megapack.records.plain_row import plain_row
from megapack.store.fork_guard import check_can_read
from megapack.store.manifest import Split
from megapack.store.order import Int64
from megapack.store.reader import PackedDataset, open_dataset

Features = Mapping[str, Any]


class PlainRows:
    """Rows as dictionaries, padding-free.

    Each has `input_ids`, `labels` (the same ids, -100 where not supervised; the model shifts),
    `position_ids` restarting at 0 in every document, all int64 [L], and `seq_lengths`, int64 [N].
    There is no `attention_mask`: nothing is padding, and a mask would hide the boundaries.
    """

    def __init__(
        self, uri: str, *, version: int, split: Split, seed: int = 0, epoch: int = 0
    ) -> None:
        """Name what to read; it is opened at the first use, in each process.

        Args:
            uri: the dataset.
            version: its version.
            split: side of the split.
            seed: seed of the row order.
            epoch: which epoch's order.
        """
        self._source = (uri, version)
        self._split = split
        self._seed = seed
        self._epoch = epoch
        self._opened: tuple[int, PackedDataset, Int64] | None = None

    def __len__(self) -> int:
        """Rows of the split."""
        return int(self._open()[1].size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row.

        Raises:
            IndexError: there is no such row, which ends a plain loop over the rows.
            ConfigError: this worker was forked from a process that had read rows.
        """
        check_can_read()
        dataset, order = self._open()
        if not -order.size <= index < order.size:
            raise IndexError(f"row {index} of {order.size}")
        row = plain_row(next(iter(dataset.rows(self._split, [int(order[index])]))))
        return {
            "input_ids": row.tokens.astype(np.int64),
            "labels": row.labels(),
            "position_ids": row.position_ids(),
            "seq_lengths": row.lengths.astype(np.int64),
        }

    def __getstate__(self) -> dict[str, Any]:
        """Without what is open: a worker opens the version for itself."""
        return self.__dict__ | {"_opened": None}

    def _open(self) -> tuple[PackedDataset, Int64]:
        if self._opened is None or self._opened[0] != os.getpid():
            uri, version = self._source
            dataset = open_dataset(uri, version)
            order = dataset.order(self._split, seed=self._seed)
            rows = order.rows_at(self._epoch * order.num_rows, order.num_rows)
            self._opened = (os.getpid(), dataset, rows)
        return self._opened[1], self._opened[2]


def flatten(features: Sequence[Features]) -> dict[str, Any]:
    """Rows joined to one batch of one long row, as flash-attention's varlen kernels take it.

    >>> one = {"input_ids": [5, 6], "labels": [-100, 6], "position_ids": [0, 1]}
    >>> flatten([one | {"seq_lengths": [2]}, one | {"seq_lengths": [1, 1]}])["cu_seq_lens_q"]
    array([0, 2, 3, 4], dtype=int32)

    Args:
        features: rows of `PlainRows`.

    Returns:
        `input_ids`, `labels`, `position_ids`: int64 [1, L] of all rows; `cu_seq_lens_q` and `_k`:
        int32 [N+1]; `max_length_q` and `_k`: int.
    """
    joined = {
        name: np.concatenate([np.asarray(one[name], dtype=np.int64) for one in features])[None]
        for name in ("input_ids", "labels", "position_ids")
    }
    lengths = np.concatenate([np.asarray(one["seq_lengths"], dtype=np.int64) for one in features])
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    longest = int(lengths.max())
    boundaries = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
    return joined | boundaries | {"max_length_q": longest, "max_length_k": longest}
