"""Counts and times of an extraction, for whoever watches, and for the next plan."""

import logging
import time

from megapack.batch.normalizer import StepNormalizer
from megapack.engine.metric_log import MetricLog
from megapack.engine.shard_rounds import ShardPlan
from megapack.engine.shard_writer import ShardWriter
from megapack.parallel.context import ParallelContext
from megapack.steps.extraction.rate import MeasuredRun

_logger = logging.getLogger(__name__)


class ExtractProgress:
    """What this run has done so far; begins with what earlier ones have recorded.

    Args:
        log: metrics file.
        plan: all shards.
        context: this rank.
    """

    def __init__(self, log: MetricLog, plan: ShardPlan, context: ParallelContext) -> None:
        self._log = log
        self._plan = plan
        self._ranks = context.sizes.world_size
        self._started = time.perf_counter()
        self._rows = sum(plan.num_rows(number) for number in plan.done)
        self._tokens = 0
        self._compute_s = 0.0

    def add(self, step: StepNormalizer, *, seconds: float) -> None:
        """Count some rows that all ranks together have run.

        Args:
            step: counts of them.
            seconds: of reading and forwards on this rank.
        """
        self._rows += step.num_rows
        self._tokens += step.num_real_tokens
        self._compute_s += seconds

    def show(self, writer: ShardWriter) -> None:
        """Tell whoever watches."""
        run = self.run(writer)
        self._log.announce(
            {
                "kind": "extraction",
                "rows": self._rows,
                "total_rows": self._plan.chosen.num_rows,
                "shards": len(self._plan.done) + writer.stored,
                "total_shards": self._plan.num_shards,
                "tokens_per_s": run.tokens_per_s,
                "compute_s": run.compute_s,
                "write_wait_s": run.write_wait_s,
            }
        )

    def run(self, writer: ShardWriter) -> MeasuredRun:
        """What this rank has measured."""
        return MeasuredRun(
            ranks=self._ranks,
            tokens=self._tokens,
            compute_s=self._compute_s,
            write_wait_s=writer.waited_s,
            seconds=time.perf_counter() - self._started,
        )

    def end(self, writer: ShardWriter) -> MeasuredRun:
        """Say in the log how it went, when all shards are stored."""
        self.show(writer)
        run = self.run(writer)
        _logger.info(
            "payloads extracted shards=%d earlier=%d tokens=%d seconds=%.1f tokens_per_s=%.0f "
            "compute_s=%.1f write_wait_s=%.1f write_wait_share=%.3f",
            writer.stored,
            len(self._plan.done),
            run.tokens,
            run.seconds,
            run.tokens_per_s,
            run.compute_s,
            run.write_wait_s,
            run.write_wait_s / run.seconds if run.seconds else 0.0,
        )
        return run
