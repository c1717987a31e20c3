"""megapack: chat data to Megatron-ready packed rows, training, and teacher payloads.

The layers, from the bottom: errors, layout, records, then the siblings store, packing and
conversation, then jobs and steps (all of them free of torch), then parallel, batch, model,
outputs and engine. Imports only point down; ``docs/design.md`` explains why.

`megapack.open` and `megapack.flatten` are loaded at their first use: importing the package costs
nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megapack.store.opened import open_packed as open
    from megapack.store.plain_rows import flatten

__all__ = ["flatten", "open"]

_PLACES = {
    "open": ("megapack.store.opened", "open_packed"),
    "flatten": ("megapack.store.plain_rows", "flatten"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what a module attribute is
    if name not in _PLACES:
        raise AttributeError(f"module 'megapack' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)
