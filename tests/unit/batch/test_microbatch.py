from dataclasses import replace

import pytest
import torch

from megapack.errors import ContractError
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

BATCH = microbatch(make_row([5, 17, 3], seed=1))


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": BATCH.tokens[:, :-1]},
        {"position_ids": BATCH.position_ids[0]},
        {"labels": BATCH.labels[:, :-1]},
        {"loss_mask": BATCH.loss_mask.repeat(2, 1)},
        {"padding_mask": BATCH.padding_mask[:, 1:]},
        {"fields": {"routes": torch.zeros(1, 95, 2)}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_tensors_of_unequal_shape_are_refused_by_name(changed) -> None:
    name = "routes" if "fields" in changed else next(iter(changed))
    with pytest.raises(ContractError, match=rf"{name}: expected leading shape \(1, 96\), found"):
        replace(BATCH, **changed)
