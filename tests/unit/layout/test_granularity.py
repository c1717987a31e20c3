import pytest

from megapack.errors import ConfigError
from megapack.layout.granularity import Granularity, ParallelSizes, Precision, granularity


@pytest.mark.parametrize(
    ("sizes", "precision", "segment", "row"),
    [
        (ParallelSizes(), Precision.BF16, 1, 1),
        (ParallelSizes(tp=2), Precision.BF16, 1, 1),
        (ParallelSizes(tp=2, sequence_parallel=True), Precision.BF16, 1, 2),
        (ParallelSizes(cp=2), Precision.BF16, 4, 4),
        (ParallelSizes(cp=4, tp=2, sequence_parallel=True), Precision.BF16, 8, 8),
        (ParallelSizes(cp=4, tp=4, sequence_parallel=True), Precision.BF16, 8, 16),
        (ParallelSizes(cp=2), Precision.FP8_BLOCKWISE, 4, 256),
        (ParallelSizes(), Precision.FP8_TENSOR, 1, 16),
        (ParallelSizes(cp=3), Precision.MXFP8, 6, 96),
    ],
)
def test_granularity_of_layout(sizes, precision, segment, row):
    found = granularity(sizes, precision)
    assert (found.segment, found.row) == (segment, row)


def test_check_row_length_prints_nearest_lengths():
    need = granularity(ParallelSizes(cp=4, tp=4, sequence_parallel=True))
    with pytest.raises(ConfigError, match=r"8190 is not a multiple.*16.*Use 8176 or 8192\."):
        need.check_row_length(8190, where="PackJob.row_length")
    need.check_row_length(8192, where="PackJob.row_length")


def test_check_row_length_below_first_multiple_prints_one():
    with pytest.raises(ConfigError, match=r"Use 8\.$"):
        Granularity(segment=8, row=8).check_row_length(5, where="x")


@pytest.mark.parametrize(
    ("need", "ok"),
    [
        ((4, 4), True),
        ((2, 2), True),
        ((3, 3), False),
        ((8, 32), True),
        ((8, 64), False),
        ((16, 16), False),
    ],
)
def test_serves_when_need_divides(need, ok):
    stored = Granularity(segment=8, row=16)
    assert stored.serves(Granularity(segment=need[0], row=need[1]), row_length=96) is ok


@pytest.mark.parametrize("axis", ["tp", "cp", "pp", "dp", "ep"])
def test_sizes_refuse_zero(axis):
    with pytest.raises(ConfigError, match=f"ParallelSizes.{axis} = 0"):
        ParallelSizes(**{axis: 0})


def test_sizes_refuse_sequence_parallel_without_tp():
    with pytest.raises(ConfigError, match="tp = 1, expected tp > 1"):
        ParallelSizes(sequence_parallel=True)


def test_granularity_refuses_row_off_segment():
    with pytest.raises(ConfigError, match="row a multiple of segment"):
        Granularity(segment=4, row=6)
