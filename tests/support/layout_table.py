"""Layouts that must give the numbers of one process, and the rows they are tried on.

No torch: the test process and the equivalence command import it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from megapack.jobs.model import ModelJob
from megapack.jobs.model_layout import layout_faults
from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from tests.support.rows import make_row

ROW_LENGTH = 96
SLOT = 8


class Run(StrEnum):
    """What is run on a layout and compared."""

    STEP = "loss and gradients of a step"
    SHARDED_STEP = "the same, gradients reduce-scattered for the distributed optimizer"
    UPDATES = "parameters after three updates of the distributed optimizer"


class Batch(StrEnum):
    """What a microbatch holds."""

    ROW = "one packed row"
    TWO_ROWS = "two packed rows"
    DENSE = "the documents of the rows, unpacked, under a token budget"


class Dtype(StrEnum):
    """Arithmetic, by torch's names."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


EXACT = (Dtype.FLOAT64, Dtype.FLOAT32)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row of the table.

    Attributes:
        name: layout and model in a few words; unique.
        sizes: layout.
        model: name of the model, a key of MODELS.
        settings: fields of ModelJob that must not change numbers: of this layout, not of the
            one-process reference.
        run: what is run.
        batch: what a microbatch holds; one packed row in the reference.
        dtypes: arithmetic that is measured.
    """

    name: str
    sizes: ParallelSizes
    model: str = "dense"
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: Run = Run.STEP
    batch: Batch = Batch.ROW
    dtypes: tuple[Dtype, ...] = EXACT


_TINY = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "init_std": 0.2,
    "vocab_multiple": 16,
}
_MOE = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 24}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "4 heads": {"num_query_groups": 4},
    "3 layers": {"num_layers": 3},
    "4 layers": {"num_layers": 4},
    "tied": {"tie_embeddings": True},
    "qk-norm": {"qk_layernorm": True},
    "qkv biases": {"qkv_bias": True},
    "MoE": {"moe": _MOE},
    "MoE with router losses": {
        "moe": {**_MOE, "aux_loss_coefficient": 0.02, "z_loss_coefficient": 0.003}
    },
    "MoE with shared expert": {
        "num_layers": 3,
        "moe": {
            **_MOE,
            "shared_expert_ffn_hidden_size": 16,
            "num_dense_layers": 1,
            "score_function": "sigmoid",
            "expert_bias_update_rate": 0.01,
        },
    },
    "MTP": {"mtp_num_layers": 2, "mtp_loss_scale": 0.3},
    "MoE and MTP": {"mtp_num_layers": 1, "mtp_loss_scale": 0.3, "moe": _MOE},
    "tied, qk-norm": {"tie_embeddings": True, "qk_layernorm": True},
}


def model_job(name: str, settings: Mapping[str, Any] | None = None) -> ModelJob:
    """A model of the table."""
    return ModelJob.model_validate({**_TINY, **MODELS[name], **(settings or {})})


def _case(name: str, model: str = "dense", **given: Any) -> Case:
    """Sequence parallelism is on when the name says `sp`.

    Args:
        name: layout in a few words.
        model: key of MODELS; stands in the name unless dense.
        given: fields of Case, and sizes.
    """
    fields = {key: given.pop(key) for key in ("run", "batch", "dtypes", "settings") if key in given}
    words = name.replace(",", " ").split()
    return Case(
        name=name if model == "dense" else f"{name}, {model}",
        sizes=ParallelSizes(**given, sequence_parallel="sp" in words),
        model=model,
        **fields,
    )


def cases() -> list[Case]:
    """The whole table, axes alone first."""
    bf16 = (Dtype.BFLOAT16,)
    return [
        _case("dp2", dp=2),
        _case("dp4", dp=4),
        _case("tp2", tp=2),
        _case("tp2 sp", tp=2),
        _case("tp4 sp", "4 heads", tp=4),
        _case("cp2", cp=2),
        _case("cp4", cp=4),
        _case("pp2", pp=2),
        _case("pp4", "4 layers", pp=4),
        _case("tp2 sp dp2", tp=2, dp=2),
        _case("tp2 cp2", tp=2, cp=2),
        _case("tp2 sp cp2", tp=2, cp=2),
        _case("tp2 sp pp2", tp=2, pp=2),
        _case("cp2 pp2", cp=2, pp=2),
        _case("cp2 dp2", cp=2, dp=2),
        _case("pp2 dp2", pp=2, dp=2),
        _case("tp2 sp cp2 pp2", tp=2, cp=2, pp=2),
        _case("tp2 cp2 dp2", tp=2, cp=2, dp=2),
        _case("pp2", "tied", pp=2),
        _case("tp2 sp cp2", "tied", tp=2, cp=2),
        _case("tp2 sp pp2", "tied", tp=2, pp=2),
        _case("cp2 pp2", "tied", cp=2, pp=2),
        _case("tp2", "qk-norm", tp=2),
        _case("tp2 sp cp2", "qk-norm", tp=2, cp=2),
        _case("tp4 sp", "qk-norm", tp=4),
        _case("tp2 sp cp2 pp2", "tied, qk-norm", tp=2, cp=2, pp=2),
        _case("tp2 sp cp2", "qkv biases", tp=2, cp=2),
        _case("cp2 pp2", "qkv biases", cp=2, pp=2),
        _case("tp2 sp cp2, full recompute", settings={"recompute": "full"}, tp=2, cp=2),
        _case("cp2 pp2, selective recompute", settings={"recompute": "selective"}, cp=2, pp=2),
        _case("cp2 pp2, two rows a microbatch", batch=Batch.TWO_ROWS, cp=2, pp=2),
        _case("tp2 sp cp2, two rows a microbatch", batch=Batch.TWO_ROWS, tp=2, cp=2),
        _case("dp2, dense batches", batch=Batch.DENSE, dp=2),
        _case("tp2 sp pp2, dense batches", batch=Batch.DENSE, tp=2, pp=2),
        _case("ep2 over cp2, two rows a microbatch", "MoE", batch=Batch.TWO_ROWS, cp=2, ep=2),
        _case("ep2, dense batches", "MoE", batch=Batch.DENSE, dp=2, ep=2),
        _case("dp2", "MTP", dp=2),
        _case("tp2 sp", "MTP", tp=2),
        _case("cp2", "MTP", cp=2),
        _case("pp2", "MTP", pp=2),
        _case("tp2 sp cp2", "MTP", tp=2, cp=2),
        _case("cp2 pp2, two rows a microbatch", "MTP", batch=Batch.TWO_ROWS, cp=2, pp=2),
        _case("ep2", "MoE and MTP", dp=2, ep=2),
        _case("ep2 over tp2 sp", "MoE and MTP", tp=2, ep=2),
        _case("ep2 over cp2", "MoE and MTP", cp=2, ep=2),
        _case("dp2", "MoE", dp=2),
        _case("ep2", "MoE", dp=2, ep=2),
        _case("ep4", "MoE", dp=4, ep=4),
        _case("cp2", "MoE", cp=2),
        _case("pp2", "MoE", pp=2),
        _case("tp2 sp", "MoE", tp=2),
        _case("tp2 sp etp2", "MoE", tp=2, etp=2),
        _case("ep2 over tp2 sp", "MoE", tp=2, ep=2),
        _case("ep2 over cp2", "MoE", cp=2, ep=2),
        _case("ep2 pp2", "MoE", dp=2, ep=2, pp=2),
        _case("ep4 over tp2 sp cp2", "MoE", tp=2, cp=2, ep=4),
        _case("ep2 etp2 over tp2 sp cp2", "MoE", tp=2, cp=2, ep=2, etp=2),
        _case("ep2 cp2 dp2", "MoE", dp=2, cp=2, ep=2),
        _case("ep2, full recompute", "MoE", settings={"recompute": "full"}, dp=2, ep=2),
        _case("ep2", "MoE with router losses", dp=2, ep=2),
        _case("ep2 over cp2", "MoE with router losses", cp=2, ep=2),
        _case("ep2 over tp2 sp", "MoE with router losses", tp=2, ep=2),
        _case("ep2 pp2", "MoE with router losses", dp=2, ep=2, pp=2),
        _case("ep2", "MoE with shared expert", dp=2, ep=2),
        _case("ep2 over tp2 sp", "MoE with shared expert", tp=2, ep=2),
        _case("cp2 pp3", "MoE with shared expert", cp=2, pp=3),
        _case("ep4 over tp2 sp cp2 pp2", "MoE", tp=2, cp=2, pp=2, ep=4),
        _case("ep2, sharded gradients", "MoE", run=Run.SHARDED_STEP, dp=2, ep=2),
        _case("ep2, three updates", "MoE", run=Run.UPDATES, dtypes=(Dtype.FLOAT32,), dp=2, ep=2),
        _case("ep2, bf16", "MoE", dtypes=bf16, dp=2, ep=2),
        _case("cp2 dp2, sharded gradients", run=Run.SHARDED_STEP, cp=2, dp=2),
        _case("dp2, three updates", run=Run.UPDATES, dtypes=(Dtype.FLOAT32,), dp=2),
        _case("tp2 sp cp2, three updates", run=Run.UPDATES, dtypes=(Dtype.FLOAT32,), tp=2, cp=2),
        _case("dp2, bf16", dtypes=bf16, dp=2),
        _case("tp2 sp, bf16", dtypes=bf16, tp=2),
        _case("cp2 pp2, bf16", dtypes=bf16, cp=2, pp=2),
    ]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A layout that a job does not accept, and its words."""

    name: str
    reason: str


def refusals() -> list[Refusal]:
    """Layouts that upstream gets wrong or cannot do; empty reasons would be a fault."""
    plain = ParallelSizes
    wanted: list[tuple[str, str, ParallelSizes]] = [
        ("tp3 with 4 heads, 2 key/value heads", "dense", plain(tp=3)),
        ("pp3 with 2 layers", "dense", plain(pp=3)),
        ("ep2 with a dense model", "dense", plain(dp=2, ep=2)),
        ("tp2 without sp, MoE", "MoE", plain(tp=2)),
        ("ep3 with 4 experts", "MoE", plain(dp=3, ep=3)),
        ("ep4 on dp2", "MoE", plain(dp=2, ep=4)),
    ]
    return [
        Refusal(name=name, reason=" ".join(layout_faults(model_job(model), sizes)))
        for name, model, sizes in wanted
    ]


def random_rows(seed: int, count: int = 4) -> list[PackedRow]:
    """Rows of at least 3 documents of odd lengths, the first of them one token long.

    The share of supervised tokens differs from row to row.
    """
    draw = np.random.default_rng(seed)
    return [
        make_row(
            _odd_lengths(draw),
            seed=int(draw.integers(2**31)),
            row_length=ROW_LENGTH,
            supervised=float(draw.uniform(0.2, 1.0)),
        )
        for _ in range(count)
    ]


def _odd_lengths(draw: np.random.Generator) -> list[int]:
    """Odd lengths whose slots fit the row; at least a one, and two of up to 39."""
    lengths = [1]
    room = ROW_LENGTH - SLOT
    while room >= SLOT:
        most = min(room, ROW_LENGTH // 2 - SLOT)
        length = 2 * int(draw.integers(0, most // 2)) + 1
        lengths.append(length)
        room -= -(-length // SLOT) * SLOT
        if len(lengths) >= 4 and draw.random() < 0.3:
            break
    return [lengths[i] for i in draw.permutation(len(lengths))]
