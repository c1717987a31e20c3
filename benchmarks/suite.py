"""Which goals there are, which benchmark measures them, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of speed or size.

    Attributes:
        id: `P1` to `P10`.
        work: what is measured, in a few words.
        goal: what must hold, as people read it; the bounds themselves stand in the benchmark.
    """

    id: str
    work: str
    goal: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A file that prints measurements.

    Attributes:
        module: name inside `benchmarks`.
        goals: ids it must give at least one line for.
        limit_s: wall seconds after which it is stopped, several times what it takes on two idle
            cores, so that it ends only what hangs.
    """

    module: str
    goals: tuple[str, ...]
    limit_s: float


GOALS = (
    Goal("P1", "plan 1M documents", ">= 500x Megatron-Bridge, 100x Automodel, 50x axolotl (32k)"),
    Goal("P2", "plan without compiled code", ">= 2x LLaMA-Factory on the whole set"),
    Goal("P3", "rows used", "<= bound + 0.05%; few lengths: <= LP bound + 2 rows"),
    Goal("P4", "one pass, <= 512 open rows", ">= 99.7% of the bound"),
    Goal("P5", "attention cost over 64 ranks, max/mean", "<= 1.05 at 32k, <= 1.10 at 131k"),
    Goal("P6", "conversation to ids and mask", ">= 60x Megatron, 20x TRL; >= 3x without fast"),
    Goal("P7", "stored size of packed rows", "<= 0.85 bytes a token"),
    Goal("P8", "stored row to training tensors", ">= 75x Bridge, 20x HF, 30x SFTDataset"),
    Goal("P9", "rerun with nothing to do", "reads no data"),
    Goal(
        "P10",
        "training step, memory of outputs",
        "packed >= 0.9x the ratio of slots; < 3% of a step is not the model's; outputs keep no "
        "logits",
    ),
)

BENCHMARKS = (
    Benchmark("bench_import", (), 300),
    Benchmark("bench_layout", (), 120),
    Benchmark("bench_pack", ("P1", "P2", "P3", "P4"), 1200),
    Benchmark("bench_balance", ("P5",), 600),
    Benchmark("bench_tokenize", ("P6",), 1200),
    Benchmark("bench_store", ("P7", "P8"), 1200),
    Benchmark("bench_payload", (), 600),
    Benchmark("bench_rerun", ("P9",), 600),
    Benchmark("bench_memory", (), 900),
    Benchmark("bench_multimodal", (), 1800),
    Benchmark("bench_padding", ("P10",), 900),
    Benchmark("bench_step", ("P10",), 1200),
    Benchmark("bench_outputs_memory", ("P10",), 5400),
    Benchmark("bench_payload_memory", ("P10",), 3600),
    Benchmark("bench_distill_memory", ("P10",), 5400),
)
