"""`ParallelContext`: sizes, ranks, groups and device of this process.

The only file that touches megatron-core's global parallel state. Everything else is handed a
context, so that the layers above can be tested with `fake` and no process group.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist

from megapack.errors import ConfigError
from megapack.layout.granularity import ParallelSizes

Group = dist.ProcessGroup
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParallelContext:
    """Where this process stands. Groups are None in one process and in tests.

    Attributes:
        sizes: size of every axis.
        tp_rank: rank on the tensor parallel axis.
        cp_rank: rank on the context parallel axis.
        pp_rank: pipeline stage.
        dp_rank: rank on the data parallel axis, context parallelism not included.
        ep_rank: rank on the expert parallel axis.
        etp_rank: rank on the expert tensor parallel axis.
        tp_group: ranks that share one layer.
        cp_group: ranks that share one row.
        pp_group: ranks that hold the stages of one replica.
        dp_group: ranks that hold the same weights and the same part of a row.
        dp_cp_group: ranks that hold the same weights, those of experts not included.
        device: where this rank's tensors live.
        collection: megatron-core's ProcessGroupCollection, None without groups.
    """

    sizes: ParallelSizes
    tp_rank: int = 0
    cp_rank: int = 0
    pp_rank: int = 0
    dp_rank: int = 0
    ep_rank: int = 0
    etp_rank: int = 0
    tp_group: Group | None = None
    cp_group: Group | None = None
    pp_group: Group | None = None
    dp_group: Group | None = None
    dp_cp_group: Group | None = None
    device: torch.device = _CPU
    collection: Any = None

    def __post_init__(self) -> None:
        for axis in ("tp", "cp", "pp", "dp", "ep", "etp"):
            rank, size = getattr(self, f"{axis}_rank"), getattr(self.sizes, axis)
            if not 0 <= rank < size:
                raise ConfigError(
                    f"ParallelContext.{axis}_rank = {rank}, expected 0 <= rank < {axis} = {size}."
                )

    @classmethod
    def initialize(cls, sizes: ParallelSizes, *, seed: int) -> Self:
        """Collective over the world: make megatron-core's groups and seed its random states.

        Needs a started process group. All ranks must call.

        Args:
            sizes: sizes of the run; their product must be the world size.
            seed: seed of the ambient and the tracked random states.

        Raises:
            ConfigError: there is no process group, or the world has another size.
        """
        if not dist.is_initialized():
            raise ConfigError(
                "ParallelContext.initialize: expected a process group, found none. Call "
                "start_process_group first."
            )
        if sizes.world_size != dist.get_world_size():
            raise ConfigError(
                f"ParallelContext.initialize: tp {sizes.tp} x cp {sizes.cp} x pp {sizes.pp} x dp "
                f"{sizes.dp} = {sizes.world_size} processes, found {dist.get_world_size()}. Start "
                "as many processes as the layout needs."
            )
        from megatron.core import parallel_state
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=sizes.tp,
            pipeline_model_parallel_size=sizes.pp,
            context_parallel_size=sizes.cp,
            expert_model_parallel_size=sizes.ep,
            expert_tensor_parallel_size=sizes.etp,
        )
        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed)
        return cls(
            sizes=sizes,
            tp_rank=parallel_state.get_tensor_model_parallel_rank(),
            cp_rank=parallel_state.get_context_parallel_rank(),
            pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
            dp_rank=parallel_state.get_data_parallel_rank(),
            ep_rank=parallel_state.get_expert_model_parallel_rank(),
            etp_rank=parallel_state.get_expert_tensor_parallel_rank(),
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            cp_group=parallel_state.get_context_parallel_group(),
            pp_group=parallel_state.get_pipeline_model_parallel_group(),
            dp_group=parallel_state.get_data_parallel_group(),
            dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True),
            device=torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else _CPU,
            collection=ProcessGroupCollection.use_mpu_process_groups(),
        )

    @classmethod
    def single(cls) -> Self:
        """One process, no groups, on the CPU."""
        return cls(sizes=ParallelSizes())

    @classmethod
    def fake(
        cls, sizes: ParallelSizes, *, tp_rank: int = 0, cp_rank: int = 0, dp_rank: int = 0
    ) -> Self:
        """A rank of a larger layout without groups: shapes and shards, no communication."""
        return cls(sizes=sizes, tp_rank=tp_rank, cp_rank=cp_rank, dp_rank=dp_rank)

    def destroy(self) -> None:
        """Drop megatron-core's groups; the process group stays. All ranks must call."""
        if self.collection is None:
            return
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank embeds tokens."""
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes outputs."""
        return self.pp_rank == self.sizes.pp - 1

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes its data parallel replica's outputs: last stage, tp 0, cp 0."""
        return self.is_last_stage and self.tp_rank == 0 and self.cp_rank == 0
