"""Which group the next sample comes from: one draw by weight over groups that still have some.

A mandatory group may weigh nothing. When only such groups are left, they are drawn alike, so that
none of their samples stays behind.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from math import isinf
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from megapack.errors import ContractError
from megapack.records.shard import Shard

DRAW_KEY = 0x67726F75
"""Sets this generator apart from others of the same seed."""
_DIGITS = r"^[0-9]{1,39}$"


class DrawState(BaseModel):
    """Where a draw stands.

    Attributes:
        state: of the PCG64 generator; text, since JSON readers cut integers of 128 bits.
        increment: of the generator, likewise.
        ended: groups without further samples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: str = Field(pattern=_DIGITS)
    increment: str = Field(pattern=_DIGITS)
    ended: tuple[str, ...] = ()


class GroupDraw:
    """Draws groups.

    >>> draw = GroupDraw({"a": 1.0, "b": 0.0}, seed=0, epoch=0, shard=Shard())
    >>> draw.draw(), draw.end("a"), draw.draw(), draw.end("b"), draw.draw()
    ('a', None, 'b', None, None)
    """

    def __init__(
        self, weights: Mapping[str, float], *, seed: int, epoch: int, shard: Shard
    ) -> None:
        self._weights = dict(weights)
        self._ended: set[str] = set()
        key = (DRAW_KEY, epoch, shard.rank, shard.worker)
        self._bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key))
        self._generator = np.random.Generator(self._bits)
        self._update()

    def draw(self) -> str | None:
        """Name of a group, or None when all have ended. Takes one uniform number."""
        if not self._live:
            return None
        point = self._generator.random() * self._borders[-1]
        return self._live[min(bisect_right(self._borders, point), len(self._live) - 1)]

    def end(self, group: str) -> None:
        """Leave a group out from now on."""
        if group not in self._weights:
            raise ContractError(
                f"GroupDraw.end: expected one of {list(self._weights)}, found {group}."
            )
        self._ended.add(group)
        self._update()

    def has_ended(self, group: str) -> bool:
        """Whether a group has no further samples."""
        return group in self._ended

    @property
    def all_ended(self) -> bool:
        """Whether no group has further samples."""
        return not self._live

    def state(self) -> DrawState:
        """Where the draw stands."""
        raw = self._bits.state["state"]
        return DrawState(
            state=str(raw["state"]), increment=str(raw["inc"]), ended=tuple(sorted(self._ended))
        )

    def resume(self, state: DrawState) -> Self:
        """Go on where `state` was taken."""
        self._bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": int(state.state), "inc": int(state.increment)},
            "has_uint32": 0,
            "uinteger": 0,
        }
        self._ended = set(state.ended)
        self._update()
        return self

    def _update(self) -> None:
        """Borders of the groups that still have samples, in the order of the job."""
        left = {name: weight for name, weight in self._weights.items() if name not in self._ended}
        weighing = {name: weight for name, weight in left.items() if weight > 0}
        chosen = weighing or dict.fromkeys(left, 1.0)
        self._live = list(chosen)
        self._borders = list(accumulate(chosen.values()))
        if self._borders and isinf(self._borders[-1]):
            largest = max(chosen.values())
            shares = (weight / largest for weight in chosen.values())
            self._borders = list(accumulate(shares))
