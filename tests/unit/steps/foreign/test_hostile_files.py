"""Files that are damaged or made to do harm: a fault or an error, and nothing of them is run."""

import json

import numpy as np
import pytest

from megapack.conversation.config import LossOn
from megapack.errors import DataError
from megapack.steps.foreign.audit import ForeignAudit, audit_foreign
from megapack.steps.foreign.faults import Fault
from megapack.steps.foreign.npy import read_packed_npy


def test_a_pickle_that_asks_for_more_than_data_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    path = tmp_path / "rows.npy"
    np.save(path, np.array([{"input_ids": Evil()}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be loaded safely"):
        audit_foreign(ForeignAudit(uri=str(path)))
    assert not (tmp_path / "owned").exists()


def test_damaged_pickles_are_refused_and_take_nothing_down(tmp_path):
    records = [{"input_ids": np.arange(9), "loss_mask": np.ones(9), "seq_start_id": [0, 4]}] * 2
    path = tmp_path / "rows.npy"
    np.save(path, np.array(records, dtype=object), allow_pickle=True)
    good = path.read_bytes()
    assert [len(one["input_ids"]) for one in read_packed_npy(good, where="x")] == [9, 9]
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        # Each bit once changes no size by so much that memory is asked for in earnest.
        damaged[int(draw.integers(128, len(good)))] ^= 1 << int(draw.integers(0, 5))
        try:
            read_packed_npy(bytes(damaged), where="x")
        except DataError:
            refused += 1
    assert refused > 50


def test_rows_without_tokens_are_faults_of_their_own(tmp_path):
    whole = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "position_ids": [0, 1, 2]}
    rows = [whole, {"labels": [1]}, {"input_ids": None, "labels": [1]}, {"input_ids": []}, {}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report = audit_foreign(ForeignAudit(uri=str(path), loss_on=LossOn.ALL))
    assert report.num_rows == len(rows)
    assert report.counts[Fault.UNREADABLE] == 4
