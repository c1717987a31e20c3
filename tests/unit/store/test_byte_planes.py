import numpy as np
import pytest

from megapack.errors import ContractError
from megapack.store.byte_planes import join_falling, join_planes, split_falling, split_planes


@pytest.mark.parametrize("dtype", ["<u2", "<f2", "<f4"])
@pytest.mark.parametrize(
    ("split", "join"), [(split_planes, join_planes), (split_falling, join_falling)]
)
@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (4, 0), (0, 2)])
def test_every_bit_pattern_comes_back(split, join, dtype, shape):
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    raw = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    values = raw.view(dtype).reshape(shape)
    back = join(split(values), dtype=np.dtype(dtype), shape=shape)
    assert back.dtype == values.dtype
    assert back.shape == shape
    assert back.tobytes() == values.tobytes()
    assert not back.flags.writeable


def test_differences_of_falling_log_probs_are_small_numbers():
    values = np.array([[-0.5, -0.5, -1.0, -np.inf], [-2.0, -2.0, -2.0, -2.0]], dtype="<f2")
    low, high = np.frombuffer(split_falling(values), dtype=np.uint8).reshape(2, 2, 4)
    assert high.tolist() == [[0xB8, 0, 4, 0x40], [0xC0, 0, 0, 0]]
    assert not low.any()


def test_data_of_another_size_are_refused():
    with pytest.raises(ContractError, match=r"expected 4 bytes for \(1, 2\) of float16, found 3"):
        join_planes(b"abc", dtype=np.dtype("<f2"), shape=(1, 2))
