"""Contexts without groups, and the collectives that are the identity on them."""

import pytest
import torch

from megapack.errors import ConfigError
from megapack.layout.granularity import Granularity, ParallelSizes
from megapack.layout.pack_layout import PackLayout
from megapack.parallel.collectives import all_reduce, gather_row, row_order, sum_counts
from megapack.parallel.context import ParallelContext
from megapack.parallel.runtime import check_mcore_version, start_process_group

LAYOUT = PackLayout(row_length=16, lengths=[7, 3], granularity=Granularity(segment=4, row=4))


def test_single_writes_and_is_both_stages() -> None:
    context = ParallelContext.single()
    assert context.is_writer
    assert context.is_first_stage
    assert context.is_last_stage
    assert context.sizes.world_size == 1


def test_fake_rank_of_cp2_does_not_write() -> None:
    context = ParallelContext.fake(ParallelSizes(cp=2), cp_rank=1)
    assert not context.is_writer
    context.destroy()


def test_rank_outside_its_axis_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cp_rank = 2, expected 0 <= rank < cp = 2"):
        ParallelContext.fake(ParallelSizes(cp=2), cp_rank=2)


def test_initialize_without_process_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="Call start_process_group first"):
        ParallelContext.initialize(ParallelSizes(), seed=0)


def test_start_process_group_without_ranks_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="expected RANK in the environment"):
        start_process_group()


def test_other_megatron_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megapack.parallel.runtime.version", lambda _: "0.20.0")
    with pytest.raises(ConfigError, match=r"megatron-core 0\.20\.0: expected 0\.19\.\*"):
        check_mcore_version()


def test_collectives_without_group_are_the_identity() -> None:
    value = torch.arange(16)
    assert torch.equal(all_reduce(value, None), value)
    assert sum_counts([3, 2**40], None, device=torch.device("cpu")) == [3, 2**40]
    assert torch.equal(gather_row(value, LAYOUT, ParallelContext.single()), value)


@pytest.mark.parametrize("cp", [1, 2])
def test_row_order_is_a_permutation_that_undoes_the_shards(cp: int) -> None:
    order = row_order(LAYOUT, cp)
    assert sorted(order.tolist()) == list(range(16))
    shards = [torch.from_numpy(LAYOUT.cp_index(cp_size=cp, cp_rank=rank)) for rank in range(cp)]
    row = torch.empty(16, dtype=torch.int64)
    row[order] = torch.cat(shards)
    assert row.tolist() == list(range(16))
