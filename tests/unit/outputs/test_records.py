"""What heads write down for documents, on logits made by hand, against numpy."""

import numpy as np
import pytest
import torch

from megapack.model.forward import ModelOutput
from megapack.outputs.topk import TopkHead, TopkValues
from megapack.parallel.context import ParallelContext
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

ONE = ParallelContext.single()
REAL, PADDED = 101, 112
ROW = make_row([5, 17, 3], seed=1, supervised=1.0)
DRAW = np.random.default_rng(4)
LOGITS = DRAW.standard_normal((96, PADDED)) * 3


def given() -> ModelOutput:
    return ModelOutput(logits=torch.from_numpy(LOGITS), hidden=None, vocab_size=REAL)


def logprobs(temperature: float) -> np.ndarray:
    """[96, REAL]: padding columns take no part."""
    scaled = LOGITS[:, :REAL] / temperature
    return scaled - np.log(np.exp(scaled).sum(1, keepdims=True))


def positions(i: int) -> slice:
    start = int(ROW.layout.slot_starts[i])
    return slice(start, start + int(ROW.layout.lengths[i]))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_topk_stores_logits_over_the_temperature_or_logprobs_of_the_whole_vocabulary(
    temperature: float,
) -> None:
    found = {
        values: TopkHead(k=4, temperature=temperature, values=values)(
            given(), microbatch(ROW), ONE
        ).records
        for values in TopkValues
    }
    for i, (raw, normalised) in enumerate(
        zip(found[TopkValues.LOGITS], found[TopkValues.LOGPROBS], strict=True)
    ):
        own = LOGITS[positions(i), :REAL]
        best = np.argsort(-own, axis=1, kind="stable")[:, :4]
        assert np.array_equal(raw.token_ids.numpy(), best)
        assert np.array_equal(normalised.token_ids.numpy(), best)
        expected = np.take_along_axis(own, best, 1) / temperature
        np.testing.assert_allclose(raw.values.numpy(), expected, rtol=1e-6)
        expected = np.take_along_axis(logprobs(temperature)[positions(i)], best, 1)
        np.testing.assert_allclose(normalised.values.numpy(), expected, rtol=1e-5)
