import numpy as np
import pytest

from megapack.errors import ContractError
from megapack.layout.runs import runs_of_mask


@pytest.mark.parametrize("mask", [[0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0], np.array([0, 1, 1, 0], bool)])
def test_masks_of_zeros_and_ones_are_masks(mask):
    assert runs_of_mask(mask).tolist() == [1, 3]


@pytest.mark.parametrize(
    "mask", [[0, 1, 151643], [0, -100, 1], [0.0, 0.5, 1.0], [np.nan, 0.0, 1.0]]
)
def test_mask_with_any_other_value_is_refused(mask):
    with pytest.raises(
        ContractError, match=r"mask: expected 0 and 1 only, found \S+ at [012] of 3"
    ):
        runs_of_mask(mask)
