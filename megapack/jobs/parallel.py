"""Parallel layout of a run, in the words of Megatron's flags."""

from pydantic import Field

from megapack.jobs.base import Job
from megapack.layout.granularity import Granularity, ParallelSizes, Precision, granularity


class ParallelJob(Job):
    """Parallel sizes, under the names that operators know.

    Attributes:
        tensor_model_parallel_size: tp.
        context_parallel_size: cp.
        pipeline_model_parallel_size: pp.
        data_parallel_size: dp, context parallelism not included.
        expert_model_parallel_size: ep, over dp x cp x tp ranks.
        expert_tensor_parallel_size: etp, ranks that share one expert's matrices. Megatron's own
            default is tp; here it is 1, which keeps each expert whole.
        sequence_parallel: split activations between tensor parallel blocks along the row.
    """

    tensor_model_parallel_size: int = Field(default=1, ge=1)
    context_parallel_size: int = Field(default=1, ge=1)
    pipeline_model_parallel_size: int = Field(default=1, ge=1)
    data_parallel_size: int = Field(default=1, ge=1)
    expert_model_parallel_size: int = Field(default=1, ge=1)
    expert_tensor_parallel_size: int = Field(default=1, ge=1)
    sequence_parallel: bool = False

    def sizes(self) -> ParallelSizes:
        """The same numbers as code names them."""
        return ParallelSizes(
            tp=self.tensor_model_parallel_size,
            cp=self.context_parallel_size,
            pp=self.pipeline_model_parallel_size,
            dp=self.data_parallel_size,
            ep=self.expert_model_parallel_size,
            etp=self.expert_tensor_parallel_size,
            sequence_parallel=self.sequence_parallel,
        )

    def packing_flags(self) -> str:
        """Flags of `megapack prepare` for rows that serve this layout."""
        sizes = ("tensor_model_parallel_size", "context_parallel_size")
        told = {name: str(getattr(self, name)) for name in sizes if getattr(self, name) > 1}
        if self.sequence_parallel:
            told["sequence_parallel"] = "true"
        return " ".join(f"--set pack_for.{name}={value}" for name, value in told.items())

    def granularity(self, precision: Precision = Precision.BF16) -> Granularity:
        """Multiples that a run with this layout needs."""
        return granularity(self.sizes(), precision)
