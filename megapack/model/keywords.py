"""Which keyword goes to which model: the one table.

A row of the table is a keyword, which kinds of microbatch it exists for, and how it is made. What
a model is asked beyond tokens, positions and boundaries goes to models that accept it by name:
media validity is read from `MicroBatch.inputs`, because a model that does not know it derives its
own. Letters: B rows, S width, T positions of a row, cp = context parallel size.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from megapack.batch.microbatch import (
    Attention,
    DenseAttention,
    FullRowAttention,
    MicroBatch,
    SelfPackedAttention,
    ThdAttention,
)

Make = Callable[[MicroBatch], Any]
Kinds = tuple[type[Attention], ...]

_ALL: Kinds = (ThdAttention, DenseAttention, SelfPackedAttention, FullRowAttention)
_OFFSETS: Kinds = (ThdAttention, SelfPackedAttention, FullRowAttention)
_MASKED: Kinds = (DenseAttention, SelfPackedAttention)


def _nothing(_: MicroBatch) -> None:
    return None


def _offsets(batch: MicroBatch) -> Any:  # noqa: ANN401 - upstream type
    return (
        None if isinstance(batch.attention, DenseAttention) else batch.attention.packed_seq_params
    )


def _mask(batch: MicroBatch) -> Any:  # noqa: ANN401 - a tensor, by kind
    attention = batch.attention
    return (
        attention.attention_mask
        if isinstance(attention, DenseAttention | SelfPackedAttention)
        else None
    )


KEYWORDS: Mapping[str, tuple[Kinds, Make]] = MappingProxyType(
    {
        # [1, T/cp] packed, [B, S] dense and self-packed, [1, T] full row.
        "input_ids": (_ALL, lambda batch: batch.tokens),
        "position_ids": (_ALL, lambda batch: batch.position_ids),
        # Dense: True where a query may not see a key. Self-packed: True at valid tokens.
        "attention_mask": (_MASKED, _mask),
        # Global offsets; a dense batch has none.
        "packed_seq_params": (_OFFSETS, _offsets),
    }
)
"""Keyword -> kinds of microbatch that have a value for it, and the value. Other kinds pass None:
megatron-core's models demand all four."""


def model_keywords(
    model: Any,  # noqa: ANN401 - upstream type
    batch: MicroBatch,
) -> dict[str, Any]:
    """What a model is called with for a microbatch, output hooks not included.

    Args:
        model: a chunk, or wrappers around one.
        batch: the microbatch.
    """
    kind = type(batch.attention)
    always = {
        name: (make if kind in kinds else _nothing)(batch)
        for name, (kinds, make) in KEYWORDS.items()
    }
    accepted = {name: value for name, value in batch.inputs.items() if accepts(model, name)}
    return {**always, **accepted}


def accepts(
    model: Any,  # noqa: ANN401 - upstream type
    name: str,
) -> bool:
    """Whether the forward of the model inside the wrappers has a parameter of this name."""
    names, takes_any = _parameters(type(unwrapped(model)).forward)
    return takes_any or name in names


def unwrapped(model: Any) -> Any:  # noqa: ANN401 - upstream types
    """The model inside DDP and precision wrappers, which keep it as `module`."""
    while hasattr(model, "module"):
        model = model.module
    return model


@lru_cache(maxsize=32)
def _parameters(forward: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """Names of a forward's parameters, and whether it takes any keyword."""
    parameters = inspect.signature(forward).parameters.values()
    return (
        frozenset(parameter.name for parameter in parameters),
        any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
    )
