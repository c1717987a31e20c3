"""Runs a layout and one process on the same rows, and holds the difference against law 3.

One process is the reference, in float64. A float64 run must agree with it to 1e-12. A run in
float32 or bfloat16 may be 4 times as far from the reference as one process in that arithmetic is.
No torch: only what runs on ranks imports it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from megapack.layout.granularity import ParallelSizes
from megapack.records.packed_row import PackedRow
from tests.support.layout_table import Batch, Case, Dtype, Run, random_rows
from tests.support.ranks import RankFailure, RankServer
from tests.support.rows import StepOutcome, worst_error

EXACT_TOLERANCE = 1e-12
ALLOWED_FACTOR = 4.0
TIMEOUT_S = 240.0
TOKEN_BUDGET = 120

Outcomes = Mapping[Dtype, StepOutcome]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """An error and what it may be.

    Attributes:
        what: `loss` (with all metrics), `gradients` or `parameters`, and the `norm` of these.
        dtype: arithmetic.
        error: largest relative error; of tensors, max |difference| / max |reference| of each.
        tolerance: the most that stands.
    """

    what: str
    dtype: Dtype
    error: float
    tolerance: float

    @property
    def stands(self) -> bool:
        """Whether the error is within the tolerance; NaN is not."""
        return self.error <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of the table with its figures.

    Attributes:
        case: layout.
        figures: errors and tolerances; none when the run failed.
        seconds: wall time of the layout's run.
        failure: what the ranks said, empty when they ended well.
    """

    case: Case
    figures: tuple[Figure, ...] = ()
    seconds: float = 0.0
    failure: str = ""

    @property
    def stands(self) -> bool:
        """Whether the layout gives the numbers of one process."""
        return bool(self.figures) and all(figure.stands for figure in self.figures)


@dataclass(kw_only=True)
class Equivalence:
    """Measures layouts against one process; references are computed once a model.

    Attributes:
        server: starts the ranks.
        rows: what every layout is run on.
    """

    server: RankServer
    rows: Sequence[PackedRow]
    _known: dict[tuple[str, Run, Dtype], StepOutcome] = field(default_factory=dict)

    @classmethod
    def on_random_rows(cls, server: RankServer, seed: int) -> "Equivalence":
        """On four random rows of a seed."""
        return cls(server=server, rows=random_rows(seed))

    def measure(self, case: Case) -> Measured:
        """Run a layout, and what it is compared with unless that is known."""
        started = time.perf_counter()
        try:
            expected = self.reference(case)
            started = time.perf_counter()
            got = self._run(case, case.sizes, case.dtypes)
        except RankFailure as failure:
            return Measured(case=case, failure=str(failure))
        figures = [figure for dtype in case.dtypes for figure in _compare(dtype, got, expected)]
        seconds = time.perf_counter() - started
        return Measured(case=case, figures=tuple(figures), seconds=seconds)

    def reference(self, case: Case) -> Outcomes:
        """One process: float64, and the arithmetic of the case."""
        wanted = {Dtype.FLOAT64, *case.dtypes}
        run = Run.STEP if case.run is Run.SHARDED_STEP else case.run
        key = {dtype: (case.model, run, dtype) for dtype in wanted}
        missing = tuple(dtype for dtype in wanted if key[dtype] not in self._known)
        if missing:
            plain = Case(name="one process", sizes=ParallelSizes(), model=case.model, run=run)
            for dtype, outcome in self._run(plain, plain.sizes, missing).items():
                self._known[key[dtype]] = outcome
        return {dtype: self._known[key[dtype]] for dtype in wanted}

    def _run(self, case: Case, sizes: ParallelSizes, dtypes: Sequence[Dtype]) -> Outcomes:
        """One world; every rank must report the same numbers."""
        outcomes = self.server.run(
            run_case,
            world_size=sizes.world_size,
            timeout_s=TIMEOUT_S,
            case=case,
            dtypes=tuple(dtypes),
            rows=tuple(self.rows),
        )
        first: Outcomes = outcomes[0]
        for rank, other in enumerate(outcomes):
            for dtype, outcome in other.items():
                if (outcome.loss_sum, outcome.metrics) != (
                    first[dtype].loss_sum,
                    first[dtype].metrics,
                ):
                    raise RankFailure(f"rank {rank} reports other numbers than rank 0: {outcome}")
        return first


def run_case(*, case: Case, dtypes: Sequence[Dtype], rows: Sequence[PackedRow]) -> Outcomes:
    """On ranks: one outcome an arithmetic; only rank 0 keeps its gradients."""
    import torch.distributed as dist

    from tests.support.layout_table import model_job
    from tests.support.tiny_training import train_step
    from tests.support.tiny_updates import sharded_step, three_updates

    job = model_job(case.model, case.settings)
    outcomes = {}
    steps: dict[Run, Callable[..., StepOutcome]] = {
        Run.STEP: partial(train_step, make=_step_maker(case)),
        Run.SHARDED_STEP: sharded_step,
        Run.UPDATES: three_updates,
    }
    for dtype in dtypes:
        outcome = steps[case.run](sizes=case.sizes, rows=rows, dtype=dtype, job=job)
        outcomes[dtype] = outcome if dist.get_rank() == 0 else outcome.without_gradients()
    return outcomes


def _step_maker(case: Case) -> Callable[..., Any]:
    """On ranks: how the rows become microbatches."""
    from megapack.batch.iterate import dense_step
    from megapack.layout.granularity import granularity
    from tests.support.tiny_training import packed_step

    def dense(rows: list[PackedRow], context: Any) -> Any:
        return dense_step(
            rows[context.dp_rank :: case.sizes.dp],
            context=context,
            token_budget=TOKEN_BUDGET,
            granularity=granularity(case.sizes),
        )

    if case.batch is Batch.DENSE:
        return dense
    return partial(packed_step, rows_per_microbatch=1 if case.batch is Batch.ROW else 2)


def _compare(dtype: Dtype, got: Outcomes, expected: Outcomes) -> list[Figure]:
    """Errors against float64, each with its tolerance."""
    truth, own, found = expected[Dtype.FLOAT64], expected[dtype], got[dtype]
    errors, allowed = _errors(found, truth), _errors(own, truth)
    if dtype is Dtype.FLOAT64:
        allowed = dict.fromkeys(allowed, EXACT_TOLERANCE / ALLOWED_FACTOR)
    return [
        Figure(
            what=what,
            dtype=dtype,
            error=errors[what],
            tolerance=ALLOWED_FACTOR * max(allowed[what], _rounding(what, dtype)),
        )
        for what in errors
    ]


def _errors(outcome: StepOutcome, truth: StepOutcome) -> dict[str, float]:
    if outcome.num_target_tokens != truth.num_target_tokens:
        return {"loss": float("nan")}
    return {
        "loss": _worst_number(outcome, truth),
        outcome.compared: worst_error(outcome.gradients, truth.gradients),
        "norm": abs(_norm(outcome.gradients) / _norm(truth.gradients) - 1.0),
    }


def _worst_number(outcome: StepOutcome, truth: StepOutcome) -> float:
    """Relative error of the loss sum and of every metric; NaN when metrics differ in name.

    The share of padding is left out: it is a batch's, and differs between kinds of batches.
    """
    if outcome.metrics.keys() != truth.metrics.keys():
        return float("nan")
    pairs = [(outcome.loss_sum, truth.loss_sum)]
    names = truth.metrics.keys() - {"padding_share"}
    pairs += [(outcome.metrics[name], truth.metrics[name]) for name in names]
    return max(abs(got - expected) / abs(expected) for got, expected in pairs)


def _rounding(what: str, dtype: Dtype) -> float:
    """Of one number one process may be right by chance; a whole rounding is then its own error."""
    if what not in ("loss", "norm") or dtype is Dtype.FLOAT64:
        return 0.0
    return float(2.0**-24) if dtype is Dtype.FLOAT32 else float(2.0**-9)


def _norm(tensors: Mapping[str, Any]) -> float:
    return float(np.sqrt(sum(float((tensor**2).sum()) for tensor in tensors.values())))
