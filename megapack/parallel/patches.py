"""Every change that megapack makes to torch and megatron-core: one table, each with its reason.

Most let code written for CUDA run on a CPU; one lets a checkpoint load; one keeps Transformer
Engine out of processes that do not use it. `tests/distributed/test_patches.py` takes each away
and sees what fails without it, so a patch that upstream no longer needs is found.
"""

import importlib
import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

Undo = Callable[[], None]
TRANSFORMER_ENGINE = "transformer_engine"


class When(Enum):
    """Where a patch is needed, and how early."""

    WITHOUT_TE = "before megatron.core is imported, unless the te backend is used"
    CPU_IMPORT = "before megatron.core is imported, without CUDA"
    CPU = "without CUDA"
    ALWAYS = "everywhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One change.

    Attributes:
        key: what is changed.
        when: where it is needed.
        reason: what fails without it.
        put: makes the change and returns what takes it back.
    """

    key: str
    when: When
    reason: str
    put: Callable[[], Undo]


_PUT: dict[str, Undo] = {}
# Modules of the functions that torch.compile was asked for and left as they are.
NOT_COMPILED: list[str] = []


def install(when: When) -> None:
    """Make all changes of a kind that are not made yet."""
    for patch in PATCHES:
        if patch.when is when and patch.key not in _PUT:
            _PUT[patch.key] = patch.put()


@contextmanager
def without(key: str) -> Iterator[None]:
    """Take one installed change back inside the block."""
    (patch,) = [one for one in PATCHES if one.key == key]
    _PUT.pop(key)()
    try:
        yield
    finally:
        _PUT[key] = patch.put()


def _patch(target: str, when: When, reason: str, make: Callable[[Any], Any]) -> Patch:
    """A name that is replaced.

    Args:
        target: `module:name` or `module:Class.name`.
        when: where it is needed.
        reason: what fails without it.
        make: the new value from the old one.
    """

    def put() -> Undo:
        module, _, path = target.partition(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for one in owners:
            owner = getattr(owner, one)
        old = getattr(owner, name)
        setattr(owner, name, make(old))
        return lambda: setattr(owner, name, old)

    return Patch(key=target, when=when, reason=reason, put=put)


def _hide_transformer_engine() -> Undo:
    if sys.modules.get(TRANSFORMER_ENGINE) is not None:
        return lambda: None
    sys.modules[TRANSFORMER_ENGINE] = None  # type: ignore[assignment]  # the import system's own way

    def undo() -> None:
        sys.modules.pop(TRANSFORMER_ENGINE, None)

    return undo


def _enter_mode() -> Undo:
    from megapack.parallel.cpu_device import CudaAsCpu

    mode = CudaAsCpu()
    mode.__enter__()  # type: ignore[no-untyped-call]
    return lambda: mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _cpu(name: str) -> Callable[[Any], Any]:
    """A stand-in of `cpu_device`, imported late because it imports megatron-core."""

    def make(_: Any) -> Any:  # noqa: ANN401 - any replaced value
        return getattr(importlib.import_module("megapack.parallel.cpu_device"), name)

    return make


def _unequal(name: str) -> Callable[[Any], Any]:
    """A collective of `cpu_collectives` around upstream's."""

    def make(original: Any) -> Any:  # noqa: ANN401 - any replaced value
        module = importlib.import_module("megapack.parallel.cpu_collectives")
        return getattr(module, name)(original)

    return make


def _nothing(*_: object, **__: object) -> None:
    """Stand-in for a call that has nothing to do on a CPU."""


def _compile_nothing(model: Callable[..., Any] | None = None, **_: object) -> Callable[..., Any]:
    """torch.compile that returns the function as it is, with and without arguments."""
    if model is None:
        return _compile_nothing
    NOT_COMPILED.append(model.__module__)
    return model


def _accepting_missing_step(original: Callable[..., None]) -> Callable[..., None]:
    def set_states(optimizer: Any, parameter: Any, tensors: dict[str, Any]) -> None:  # noqa: ANN401 - upstream types
        original(optimizer, parameter, {"step": None, **tensors})

    return set_states


_RANDOM = "megatron.core.tensor_parallel.random"

PATCHES: tuple[Patch, ...] = (
    Patch(
        key=TRANSFORMER_ENGINE,
        when=When.WITHOUT_TE,
        reason="megatron.core imports it wherever it is installed, and fails to import itself when "
        "that raises anything but ImportError, as an installation without a GPU does.",
        put=_hide_transformer_engine,
    ),
    _patch(
        "torch:compile",
        When.CPU_IMPORT,
        "megatron-core decorates functions with it when it is imported, which loads dynamo and "
        "inductor: 25 s instead of 8 s, for code that runs eagerly on a CPU anyway.",
        lambda _: _compile_nothing,
    ),
    _patch(
        "torch.cuda:current_device",
        When.CPU,
        "Mappings, point-to-point communication, gradient buffers and rotary embeddings allocate "
        "on it.",
        lambda _: lambda: torch.device("cpu"),
    ),
    _patch(
        "torch.cuda:synchronize",
        When.CPU,
        "Pipeline communication waits for the device.",
        lambda _: _nothing,
    ),
    _patch(
        "torch.cuda:current_stream",
        When.CPU,
        "Gradient buffers and MoE dispatchers ask for it.",
        lambda _: lambda *_, **__: _cpu("NullStream")(None)(),
    ),
    _patch(
        "torch.cuda:Stream",
        When.CPU,
        "MoE dispatchers make a stream for copies to the host.",
        _cpu("NullStream"),
    ),
    _patch(
        f"{_RANDOM}:_get_cuda_rng_state",
        When.CPU,
        "Activation recompute saves CUDA's random state.",
        _cpu("cpu_rng_state"),
    ),
    _patch(
        f"{_RANDOM}:_set_cuda_rng_state",
        When.CPU,
        "Activation recompute restores CUDA's random state, which torch postpones until CUDA "
        "starts: a leak at every layer of every step.",
        _cpu("set_cpu_rng_state"),
    ),
    _patch(
        f"{_RANDOM}:_CUDA_RNG_STATE_TRACKER",
        When.CPU,
        "The tracker of named random states is filled through torch.cuda.",
        lambda _: _cpu("CpuRngTracker")(None)(),
    ),
    _patch(
        f"{_RANDOM}:_CUDA_RNG_STATE_TRACKER_INITIALIZED",
        When.CPU,
        "Otherwise megatron-core puts a CUDA tracker in the place of ours.",
        lambda _: True,
    ),
    _patch(
        "megatron.core.transformer.moe.token_dispatcher:maybe_move_tensor_to_cpu",
        When.CPU,
        "It turns split sizes into numbers only when they are CUDA tensors; all_to_all_single "
        "takes no tensors.",
        _cpu("host_numbers"),
    ),
    _patch(
        "megatron.core.tensor_parallel.mappings:_gather_along_first_dim",
        When.CPU,
        "Expert tensor parallel ranks gather unequal parts, which gloo refuses.",
        _unequal("gather_unequal"),
    ),
    _patch(
        "megatron.core.optimizer.clip_grads:l2_norm_impl",
        When.CPU,
        "torch sums squares of float32 one after the other on a CPU: the gradient norm of a matrix "
        "of 50M numbers is 0.4% too small, and depends on how tp cuts it.",
        _cpu("exact_l2_norm"),
    ),
    Patch(
        key="cuda literals",
        when=When.CPU,
        reason='Schedules, gradient clipping and optimizers hold "cuda" in literals.',
        put=_enter_mode,
    ),
    _patch(
        "megatron.core.optimizer.distrib_optimizer:"
        "DistributedOptimizer._set_main_param_and_optimizer_states",
        When.ALWAYS,
        "Without Transformer Engine and Apex it looks a parameter's `step` up in tensors that "
        "never hold one: KeyError when a checkpoint is loaded.",
        _accepting_missing_step,
    ),
    _patch(
        "megatron.core.dist_checkpointing.strategies.filesystem_async:get_write_results_queue",
        When.ALWAYS,
        "The writers return their results through a queue of another process, a spawned manager "
        "that imports torch: 20 s at the first save. Ours write in this process.",
        lambda _: lambda *_, **__: queue.Queue(),
    ),
)
