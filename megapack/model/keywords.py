"""Which keyword goes to which model: the one table.

A row of the table is a keyword, the kinds of microbatch that have a value for it, and how it is
made; other kinds pass None, because megatron-core's models demand the first three. What a caller
adds (media, and which media tokens are valid) goes to models that accept it by name, because a
model that does not know it derives its own. Letters: B rows, S width, T positions of a row,
cp = context parallel size.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch

from megapack.batch.microbatch import (
    Attention,
    DenseAttention,
    FullRowAttention,
    MicroBatch,
    SelfPackedAttention,
    ThdAttention,
)
from megapack.model.router_mask import router_padding_mask

Make = Callable[[Any, Any], Any]
"""From a bare chunk and a microbatch of one of the named kinds."""
Kinds = tuple[type[Attention], ...]

_ALL: Kinds = (ThdAttention, DenseAttention, SelfPackedAttention, FullRowAttention)


def _whole_padding_mask(chunk: Any, batch: MicroBatch) -> torch.Tensor | None:  # noqa: ANN401 - upstream type
    """bool, as long as the tokens that the model takes; None for a dense model.

    A model that cuts its tokens cuts its mask along with them.
    """
    if isinstance(batch.attention, FullRowAttention) and chunk.config.num_moe_experts is not None:
        whole = batch.attention.model(batch.row.layout.padding_mask())
        return torch.from_numpy(whole).to(batch.tokens.device)
    return router_padding_mask(chunk, batch.padding_mask)


KEYWORDS: Mapping[str, tuple[Kinds, Make]] = MappingProxyType(
    {
        # [1, T/cp] packed, [B, S] dense and self-packed, [1, T] full row.
        "input_ids": (_ALL, lambda _, batch: batch.tokens),
        "position_ids": (_ALL, lambda _, batch: batch.position_ids),
        # Dense: True where a query may not see a key. Self-packed: True at valid tokens.
        "attention_mask": (
            (DenseAttention, SelfPackedAttention),
            lambda _, batch: batch.attention.attention_mask,
        ),
        # Global offsets, of the packed view where the model packs.
        "packed_seq_params": (
            (ThdAttention, SelfPackedAttention, FullRowAttention),
            lambda _, batch: batch.attention.packed_seq_params,
        ),
        # True at padding, for routers; a self-packing model makes its own from its mask.
        "padding_mask": ((ThdAttention, DenseAttention, FullRowAttention), _whole_padding_mask),
    }
)


def model_keywords(
    chunk: Any,  # noqa: ANN401 - upstream type
    batch: MicroBatch,
) -> dict[str, Any]:
    """What a model is called with for a microbatch, output hooks not included.

    Args:
        chunk: a model without wrappers.
        batch: the microbatch.
    """
    kind = type(batch.attention)
    always = {
        name: make(chunk, batch) if kind in kinds else None
        for name, (kinds, make) in KEYWORDS.items()
    }
    accepted = {name: value for name, value in batch.inputs.items() if accepts(chunk, name)}
    return {**always, **accepted}


def accepts(
    chunk: Any,  # noqa: ANN401 - upstream type
    name: str,
) -> bool:
    """Whether the model's forward has a parameter of this name, or takes any."""
    names, takes_any = _parameters(type(chunk).forward)
    return takes_any or name in names


def bare(model: Any) -> Any:  # noqa: ANN401 - upstream types
    """The model inside its DDP and precision wrappers."""
    while not hasattr(model, "real_vocab_size"):
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
