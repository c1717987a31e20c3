"""Stand-ins that let code written for CUDA run on the CPU.

megatron-core names the device `cuda` in literals, asks for streams and for CUDA's random state.
Everything here maps those to the CPU; `megapack.parallel.runtime` puts them in place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.tensor_parallel import random as mcore_random
from torch.overrides import TorchFunctionMode

from megapack.errors import ContractError

CPU = torch.device("cpu")


class NullStream:
    """A stream on which everything has already happened."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what a CUDA stream takes."""

    def wait_stream(self, _: object) -> None:
        """Nothing to wait for."""

    def wait_event(self, _: object) -> None:
        """Nothing to wait for."""

    def record_event(self, _: object = None) -> "NullEvent":
        """An event that has happened."""
        return NullEvent()

    def synchronize(self) -> None:
        """Nothing to wait for."""


class NullEvent:
    """An event that has happened."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what a CUDA event takes."""

    def record(self, _: object = None) -> None:
        """Nothing to mark."""

    def wait(self, _: object = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class CudaAsCpu(TorchFunctionMode):
    """Maps `device="cuda"`, `.cuda()` and the names of CUDA tensor types to the CPU.

    The mode is thread-local. CPU backward passes run in the thread that calls them, so entering
    it once in a worker's main thread is enough.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever func returns
        """Run `func` with CUDA devices replaced."""
        options = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not options:
            # Optimizers compare the name with "torch.cuda.FloatTensor".
            return func(*args).replace("torch.", "torch.cuda.", 1)
        device = options.get("device")
        if device is not None and torch.device(device).type == "cuda":
            options["device"] = CPU
        if options.get("pin_memory"):
            options["pin_memory"] = False
        return func(*args, **options)


class CpuRngTracker(mcore_random.CudaRNGStatesTracker):  # type: ignore[misc]
    """megatron-core's tracker of named random states, on torch's CPU generator."""

    _current_state_name: str

    def add(self, name: str, seed: int) -> None:
        """Start a named state from a seed.

        Raises:
            ContractError: the name or the seed is taken.
        """
        if seed in self.seeds_ or name in self.states_:
            raise ContractError(
                f"CpuRngTracker.add({name!r}, {seed}): expected a new name and a new seed, found "
                f"names {sorted(self.states_)} and seeds {sorted(self.seeds_)}."
            )
        self._is_initialized = True
        self.seeds_.add(seed)
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def fork(self, name: str = mcore_random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
        """Draw from a named state inside the block, and restore the ambient one afterwards.

        Raises:
            ContractError: there is no state of that name.
        """
        if name not in self.states_:
            raise ContractError(
                f"CpuRngTracker.fork({name!r}): expected one of {sorted(self.states_)}. Call "
                "ParallelContext.initialize first."
            )
        previous = self._current_state_name
        ambient = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        self._current_state_name = name
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(ambient)
            self._current_state_name = previous


def exact_l2_norm(
    _chunk_size: object,
    _overflow: object,
    tensor_lists: Sequence[Sequence[torch.Tensor]],
    *_: object,
) -> tuple[torch.Tensor, None]:
    """The norm over all tensors, summed in float64: megatron-core's local_multi_tensor_l2_norm.

    Args:
        tensor_lists: lists of tensors of any shape and float dtype.

    Returns:
        float32 [1], and None where per-tensor norms would be.
    """
    squares = [
        torch.linalg.vector_norm(tensor, dtype=torch.float64).square()
        for tensors in tensor_lists
        for tensor in tensors
    ]
    total = torch.stack(squares).sum().sqrt()
    return total.to(torch.float32)[None], None


def cpu_rng_state(*_: object, **__: object) -> torch.Tensor:
    """The CPU generator's state, where megatron-core asks for CUDA's."""
    return torch.get_rng_state()


def set_cpu_rng_state(state: torch.Tensor, *_: object, **__: object) -> None:
    """Set the CPU generator's state, where megatron-core sets CUDA's."""
    torch.set_rng_state(state)


def host_numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - upstream signature
    """A tensor on the host, as an array where asked: upstream converts CUDA tensors only.

    Args:
        tensor: a tensor, or anything else, which is given back.
        as_numpy: give an array.
        record_stream: not read.
    """
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor
