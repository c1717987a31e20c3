"""Which multiples a packed row must satisfy so that a parallel layout can shard it.

One rule, in one place:

* segment granularity = 2*cp when cp > 1, else 1. megatron-core's per-document zigzag cuts every
  slot into 2*cp chunks; nothing else acts on a single segment.
* row granularity = lcm(segment, cp * (tp if sequence parallel else 1) * divisor). Sequence
  parallelism and low-precision kernels split the row, not the segment.

A dataset records its two numbers. A run may read it when what the run needs divides its slots and
the length of its rows.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from megapack.errors import ConfigError


class Precision(StrEnum):
    """Arithmetic of the matrix products, as far as it constrains lengths."""

    BF16 = "bf16"
    FP32 = "fp32"
    FP8_TENSOR = "fp8_tensor"
    MXFP8 = "mxfp8"
    FP8_BLOCKWISE = "fp8_blockwise"

    @property
    def divisor(self) -> int:
        """Number that each rank's local token count must divide by."""
        return _DIVISORS[self]


_DIVISORS = {
    Precision.BF16: 1,
    Precision.FP32: 1,
    Precision.FP8_TENSOR: 16,
    Precision.MXFP8: 32,
    Precision.FP8_BLOCKWISE: 128,
}


class TokenDispatch(StrEnum):
    """How tokens reach their experts, as far as it constrains lengths."""

    ALL_TO_ALL = "all_to_all"
    HYBRID_EP = "hybrid_ep"

    @property
    def divisor(self) -> int:
        """Number that each rank's local token count must divide by."""
        return 128 if self is TokenDispatch.HYBRID_EP else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSizes:
    """Sizes of every parallel axis, each >= 1.

    Attributes:
        tp: tensor parallel size.
        cp: context parallel size.
        pp: pipeline parallel size.
        dp: data parallel size, context parallelism not included.
        ep: expert parallel size; experts are spread over dp x cp x tp ranks.
        etp: expert tensor parallel size; ranks that share one expert's matrices.
        sequence_parallel: True when activations between the tensor-parallel blocks are split
            along the row (needs tp > 1).
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        for axis in ("tp", "cp", "pp", "dp", "ep", "etp"):
            size = getattr(self, axis)
            if size < 1:
                raise ConfigError(
                    f"ParallelSizes.{axis} = {size}, expected at least 1. Set it to 1 or more."
                )
        if self.sequence_parallel and self.tp == 1:
            raise ConfigError(
                "ParallelSizes.sequence_parallel = True with tp = 1, expected tp > 1: sequence "
                "parallelism splits the row over the tensor parallel ranks. Raise tp or turn "
                "sequence_parallel off."
            )

    @property
    def world_size(self) -> int:
        """Number of processes: tp * cp * pp * dp."""
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """The multiples of one dataset or one run.

    Attributes:
        segment: multiple of every slot length, in positions.
        row: multiple of the row length, in positions; a multiple of `segment`.
        reasons: what set the numbers, for error messages.
    """

    segment: int
    row: int
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.segment < 1 or self.row < 1 or self.row % self.segment:
            raise ConfigError(
                f"Granularity(segment={self.segment}, row={self.row}): expected both at least 1 "
                "and row a multiple of segment."
            )

    def check_row_length(self, row_length: int, *, where: str) -> None:
        """Refuse a row length that this granularity cannot divide.

        Args:
            row_length: positions in a row.
            where: name of the field that holds it, for the message.

        Raises:
            ConfigError: `row_length` is not a positive multiple of `row`; the message prints the
                nearest lengths that work.
        """
        if row_length >= self.row and row_length % self.row == 0:
            return
        below, above = row_length // self.row * self.row, (row_length // self.row + 1) * self.row
        use = f"Use {below} or {above}." if below > 0 else f"Use {above}."
        because = "; ".join(self.reasons) or "no constraint"
        raise ConfigError(
            f"{where} = {row_length} is not a multiple of row granularity {self.row} "
            f"({because}). {use}"
        )

    def serves(self, need: "Granularity", *, row_length: int) -> bool:
        """Whether rows with these multiples can be read by a run that needs `need`.

        Args:
            need: the multiples of the run.
            row_length: positions of every row, which may divide by more than `row`.
        """
        return self.segment % need.segment == 0 and row_length % need.row == 0


def granularity(
    sizes: ParallelSizes,
    precision: Precision = Precision.BF16,
    *,
    dispatch: TokenDispatch = TokenDispatch.ALL_TO_ALL,
) -> Granularity:
    """Multiples that a run with these sizes needs.

    >>> granularity(ParallelSizes(cp=4, tp=2, sequence_parallel=True)).segment
    8
    >>> granularity(ParallelSizes(cp=4, tp=2, sequence_parallel=True)).row
    8
    >>> granularity(ParallelSizes()).row
    1

    Args:
        sizes: parallel sizes of the run.
        precision: arithmetic, for its divisor.
        dispatch: how tokens reach their experts, for its divisor.

    Returns:
        Segment and row granularity with the reasons for them.
    """
    segment = 2 * sizes.cp if sizes.cp > 1 else 1
    divisor = math.lcm(precision.divisor, dispatch.divisor)
    split = sizes.cp * (sizes.tp if sizes.sequence_parallel else 1) * divisor
    row = math.lcm(segment, split)
    reasons = [f"2*cp = {segment}: cp {sizes.cp}" if sizes.cp > 1 else "cp 1: no segment multiple"]
    if sizes.sequence_parallel:
        reasons.append(f"cp*tp = {sizes.cp * sizes.tp}: tp {sizes.tp} with sequence parallelism")
    if precision.divisor > 1:
        reasons.append(f"x {precision.divisor}: {precision.value}")
    if dispatch.divisor > 1:
        reasons.append(f"x {dispatch.divisor}: {dispatch.value}")
    return Granularity(segment=segment, row=row, reasons=tuple(reasons))
