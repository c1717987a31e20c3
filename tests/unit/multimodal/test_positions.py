from fractions import Fraction

import pytest
import torch

from megapack.errors import ContractError
from megapack.multimodal.config import PatchPositions
from megapack.multimodal.positions import patch_positions

EXTRAPOLATE, INTERPOLATE = PatchPositions.EXTRAPOLATE, PatchPositions.INTERPOLATE


def column_ids(count, side):
    return patch_positions(1, count, side, INTERPOLATE)


def bucketized(count, side, dtype):
    """The published way: float borders k/side and fractions i/count, right-closed buckets."""
    borders = torch.arange(1, side, dtype=torch.float64) / side
    fractions = torch.arange(count, dtype=torch.float64) / count
    return torch.bucketize(fractions.to(dtype), borders.to(dtype), right=True).numpy()


def summed_buckets(count, side):
    """As published to the letter: `arange` with a float step, in float32."""
    borders = torch.arange(1 / side, 1.0, 1 / side)
    fractions = torch.arange(0, 1 - 1e-6, 1 / count)
    return torch.bucketize(fractions, borders, right=True).numpy()


def test_extrapolated_positions_count_rows_and_columns():
    assert patch_positions(2, 3, 32, EXTRAPOLATE).tolist() == [0, 1, 2, 32, 33, 34]


def test_interpolated_positions_are_the_cell_each_patch_begins_in():
    for side in (1, 5, 32):
        for count in range(1, side + 1):
            expected = [
                sum(Fraction(k, side) <= Fraction(i, count) for k in range(1, side))
                for i in range(count)
            ]
            assert column_ids(count, side).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_interpolated_positions_equal_torch_with_rounded_quotients(dtype):
    """Equal quotients round to the same float, so no patch misses the border it begins on."""
    for side in (32, 64, 70):
        for count in range(1, side + 1):
            assert column_ids(count, side).tolist() == bucketized(count, side, dtype).tolist()


def test_published_float_steps_miss_borders():
    """Float32 steps of `arange`: equal to ours but for four widths of BAGEL's own 70 patches."""
    for side in (5, 32, 64):
        for count in range(1, side + 1):
            assert summed_buckets(count, side).tolist() == column_ids(count, side).tolist()
    unequal = [
        count
        for count in range(1, 71)
        if summed_buckets(count, 70).tolist() != column_ids(count, 70).tolist()
    ]
    assert unequal == [25, 49, 50, 55]
    assert (summed_buckets(25, 70)[15], column_ids(25, 70)[15]) == (41, 42)
    assert Fraction(15, 25) == Fraction(42, 70)


def test_positions_are_kept_and_cannot_be_written_to():
    ids = patch_positions(3, 3, 9, EXTRAPOLATE)
    assert ids is patch_positions(3, 3, 9, EXTRAPOLATE)
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_positions_that_would_collide_are_refused():
    with pytest.raises(ContractError, match="1 to 4 patches a side, found 2 high and 5 wide"):
        patch_positions(2, 5, 4, EXTRAPOLATE)
