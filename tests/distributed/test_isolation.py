"""Law 2: a document's loss, outputs and gradients do not depend on its neighbours in the row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from tests.support.layer_outputs import LayerOutputs, Request, layer_outputs
from tests.support.layout_table import model_job
from tests.support.ranks import RankServer
from tests.support.rows import make_row, one_document, replace_token, worst_error

# Documents of 9, 17, 3 and 23 tokens in slots from 0, 16, 40 and 48; the second one is changed.
ROW = make_row([9, 17, 3, 23], seed=5)
CHANGED = 16 + 4
LENGTHS = [[5, 17, 3, 23], [23, 3, 17, 5], [1, 2, 1, 9, 33], [7, 7, 7]]


def packed_and_alone(*, lengths: list[int]) -> Any:
    from tests.support.tiny_training import train_step

    row = make_row(lengths, seed=4, row_length=112)
    packed = train_step(sizes=ParallelSizes(), rows=[row])
    alone = [
        train_step(sizes=ParallelSizes(), rows=[one_document(row, i)]) for i in range(len(lengths))
    ]
    return packed, alone


def outputs(*, sizes: ParallelSizes, position: int | None) -> Any:
    from megapack.outputs.teacher import PayloadHead
    from megapack.records.payload import PayloadDtype, PayloadKind
    from tests.support.tiny_training import collect_records

    rows = [ROW if position is None else replace_token(ROW, position)]
    return collect_records(
        sizes=sizes, rows=rows, head=PayloadHead(kinds=((PayloadKind.HIDDEN, PayloadDtype.FP32),))
    )


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_packed_loss_and_gradients_are_sums_of_documents_alone(
    ranks: RankServer, lengths: list[int]
) -> None:
    packed, alone = ranks.run(packed_and_alone, lengths=lengths)[0]
    assert packed.num_target_tokens == sum(one.num_target_tokens for one in alone)
    assert packed.loss_sum == pytest.approx(sum(one.loss_sum for one in alone), rel=1e-12)
    summed = {
        name: sum(one.gradients[name] * one.num_target_tokens for one in alone)
        for name in packed.gradients
    }
    # finalize_model_grads divides by a float32 count, which costs 1e-7.
    scaled = {
        name: gradient * packed.num_target_tokens for name, gradient in packed.gradients.items()
    }
    assert worst_error(scaled, summed) < 3e-7


@pytest.mark.parametrize("cp", [1, 2])
def test_outputs_of_neighbours_stay_bitwise_when_one_token_changes(
    ranks: RankServer, cp: int
) -> None:
    sizes = ParallelSizes(cp=cp)
    before = ranks.run(outputs, world_size=cp, sizes=sizes, position=None)[0]
    after = ranks.run(outputs, world_size=cp, sizes=sizes, position=CHANGED)[0]
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        same = np.array_equal(old.values, new.values)
        assert same == (i != 1)
    earlier = slice(0, 4)
    assert np.array_equal(before[1].values[earlier], after[1].values[earlier])
    assert not np.array_equal(before[1].values[4:], after[1].values[4:])


def changed_positions(
    ranks: RankServer, request: Request, *, rounding: float = 0.0
) -> dict[str, set[int]]:
    """Row positions whose output changes with one token, for each layer and router, all ranks.

    Choices of a router always compare to the bit; hidden states within `rounding`.
    """
    before, after = (
        ranks.run(
            layer_outputs,
            world_size=request.sizes.world_size,
            request=replace(request, row=row),
        )
        for row in (ROW, replace_token(ROW, CHANGED))
    )
    changed: dict[str, set[int]] = {}
    for old, new in zip(before, after, strict=True):
        for name in old.layers:
            within = 0.0 if name.startswith("routing") else rounding
            found = differing(old, new, name, rounding=within)
            changed.setdefault(name, set()).update(found)
    return changed


def differing(
    old: LayerOutputs, new: LayerOutputs, name: str, *, rounding: float = 0.0
) -> list[int]:
    before = old.layers[name].astype(np.float64)
    off = np.abs(before - new.layers[name].astype(np.float64))
    differ = (off > rounding * np.abs(before).max()).any(axis=1)
    return [int(position) for position in old.positions[differ]]


@pytest.mark.parametrize(
    ("model", "sizes", "layers"),
    [
        ("dense", ParallelSizes(), 2),
        ("3 layers", ParallelSizes(pp=3), 3),
        ("tied, qk-norm", ParallelSizes(cp=2, pp=2), 2),
        ("dense", ParallelSizes(tp=2, cp=2, sequence_parallel=True), 2),
    ],
    ids=["dense", "pp3", "qk-norm-cp2-pp2", "tp2-sp-cp2"],
)
def test_hidden_states_of_neighbours_stay_bitwise_after_every_layer(
    ranks: RankServer, model: str, sizes: ParallelSizes, layers: int
) -> None:
    changed = changed_positions(ranks, Request(sizes=sizes, model=model, row=ROW))
    assert sorted(changed) == [f"layer {number}" for number in range(1, layers + 1)]
    # The changed token and what follows it in its document, to the end of the slot at most.
    for name, positions in changed.items():
        assert set(range(CHANGED, 16 + 17)) <= positions <= set(range(CHANGED, 40)), name


@pytest.mark.parametrize("stage", [1])
def test_stage_that_loses_boundaries_is_seen(ranks: RankServer, stage: int) -> None:
    request = Request(sizes=ParallelSizes(pp=3), model="3 layers", row=ROW, lost_on_stage=stage)
    changed = changed_positions(ranks, request)
    leaking = [number for number in (1, 2, 3) if max(changed[f"layer {number}"]) >= 40]
    assert leaking == list(range(stage + 1, 4))


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("MoE", ParallelSizes()),
        ("MoE", ParallelSizes(cp=2, pp=2, ep=2)),
        ("MoE with shared expert", ParallelSizes(pp=3)),
        ("MoE and MTP", ParallelSizes(cp=2)),
    ],
    ids=["MoE", "MoE-ep2-over-cp2-pp2", "shared-expert-pp3", "MoE-and-MTP-cp2"],
)
def test_routing_of_neighbours_is_identical_and_outputs_agree_within_rounding(
    ranks: RankServer, model: str, sizes: ParallelSizes
) -> None:
    request = Request(sizes=sizes, model=model, row=ROW, dtype="float64")
    changed = changed_positions(ranks, request, rounding=1e-14)
    outputs = {name: found for name, found in changed.items() if not name.startswith("routing")}
    job = model_job(model)
    assert len(outputs) == job.num_layers + job.mtp_num_layers
    # A layer of MTP sees one token further.
    for name, positions in changed.items():
        assert positions <= set(range(CHANGED - name.startswith("mtp"), 40)), name
    for name, positions in outputs.items():
        assert set(range(CHANGED, 16 + 17)) <= positions, name
    assert any(changed[name] for name in changed.keys() - outputs.keys()), "no choice changed"
