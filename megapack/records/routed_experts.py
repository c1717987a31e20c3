"""`RoutedExperts`: which experts each MoE layer chose for each position of one document.

Captured where the document was generated or scored, and replayed in training so that both run
through the same experts. Token-aligned: position t is the route of tokens[t]. Letters: m positions
of the document, L MoE layers of the model (dense layers are not counted), K experts per token.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megapack.errors import ConfigError, DataError

NOT_CAPTURED = -1
"""Stands in all K places of a route that is not known; padding holds it too."""

ROUTE_DTYPE = np.int16
_MOST_EXPERTS = int(np.iinfo(ROUTE_DTYPE).max)
_ROUTE_DIMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteShape:
    """What routes of a model look like.

    Attributes:
        num_layers: L, MoE layers of the whole model, over all pipeline stages.
        top_k: K, experts of one token.
        num_experts: E, experts of one layer, over all expert parallel ranks.
    """

    num_layers: int
    top_k: int
    num_experts: int

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise ConfigError(
                f"RouteShape.num_layers = {self.num_layers}, expected at least 1: a model without "
                "MoE layers has no routes."
            )
        if not 1 <= self.top_k <= self.num_experts <= _MOST_EXPERTS:
            raise ConfigError(
                f"RouteShape: top_k = {self.top_k} and num_experts = {self.num_experts}, expected "
                f"1 <= top_k <= num_experts <= {_MOST_EXPERTS}."
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedExperts:
    """Routes of one document.

    Attributes:
        document_id: join key.
        experts: int16 [m, L, K], expert ids over all expert parallel ranks; NOT_CAPTURED in all K
            places of a route that is not known. Read-only.
    """

    document_id: str
    experts: npt.NDArray[np.int16]

    def __post_init__(self) -> None:
        given: npt.NDArray[Any] = np.asarray(self.experts)
        where = f"RoutedExperts {self.document_id}"
        if given.ndim != _ROUTE_DIMS or given.dtype.kind != "i":
            raise DataError(
                f"{where}.experts: expected signed integers [positions, MoE layers, top-k], found "
                f"{given.dtype} {given.shape}."
            )
        kept = given.astype(ROUTE_DTYPE)
        if not np.array_equal(kept, given):
            raise DataError(f"{where}.experts: expected expert ids below {_MOST_EXPERTS}.")
        kept.setflags(write=False)
        object.__setattr__(self, "experts", kept)

    @property
    def num_positions(self) -> int:
        """m."""
        return int(self.experts.shape[0])

    def check(self, shape: RouteShape) -> None:
        """Every route is K distinct experts of the model, or not captured at all.

        Raises:
            DataError: with the first position and layer at which it is not so.
        """
        where = f"RoutedExperts {self.document_id}"
        expected = (shape.num_layers, shape.top_k)
        if self.experts.shape[1:] != expected:
            raise DataError(
                f"{where}: expected {expected[0]} MoE layers of {expected[1]} experts, found "
                f"{self.experts.shape[1]} of {self.experts.shape[2]}. Were they captured with "
                "another model?"
            )
        wrong = ~(_is_route(self.experts, shape.num_experts) | _is_marked(self.experts))
        if wrong.any():
            position, layer = (int(i) for i in np.argwhere(wrong)[0])
            raise DataError(
                f"{where}: position {position}, MoE layer {layer}: expected {shape.top_k} distinct "
                f"experts in [0, {shape.num_experts}), or {NOT_CAPTURED} in every place, found "
                f"{self.experts[position, layer].tolist()}."
            )


def _is_route(experts: npt.NDArray[np.int16], num_experts: int) -> npt.NDArray[np.bool_]:
    """bool [m, L]: distinct ids in range."""
    known = ((experts >= 0) & (experts < num_experts)).all(axis=-1)
    ordered = np.sort(experts, axis=-1)
    distinct: npt.NDArray[np.bool_] = known & (np.diff(ordered, axis=-1) > 0).all(axis=-1)
    return distinct


def _is_marked(experts: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """bool [m, L]: not captured."""
    marked: npt.NDArray[np.bool_] = (experts == NOT_CAPTURED).all(axis=-1)
    return marked
