"""What heads write down for documents, on logits made by hand, against numpy."""

import numpy as np
import pytest
import torch

from megapack.model.forward import ModelOutput
from megapack.outputs.teacher import TeacherPayloadHead
from megapack.outputs.topk import TopkHead, TopkValues
from megapack.parallel.context import ParallelContext
from megapack.records.payload import PayloadDtype, PayloadKind
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

ONE = ParallelContext.single()
REAL, PADDED, HIDDEN = 101, 112, 6
ROW = make_row([5, 17, 3], seed=1, supervised=1.0)
DRAW = np.random.default_rng(4)
LOGITS = DRAW.standard_normal((96, PADDED)) * 3
STATES = DRAW.standard_normal((96, HIDDEN))


def given() -> ModelOutput:
    return ModelOutput(
        logits=torch.from_numpy(LOGITS), hidden=torch.from_numpy(STATES), vocab_size=REAL
    )


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


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_teacher_gives_hidden_states_and_logprobs_under_its_temperature(
    temperature: float,
) -> None:
    head = TeacherPayloadHead(dtype=PayloadDtype.FP32, teacher=3, temperature=temperature)
    records = head(given(), microbatch(ROW), ONE).records
    assert [record.document_id for record in records] == list(ROW.document_ids)
    for i, record in enumerate(records):
        own, labels = positions(i), ROW.labels()[positions(i)]
        assert (record.kind, record.teacher) == (PayloadKind.HIDDEN, 3)
        np.testing.assert_allclose(record.values, STATES[own], rtol=1e-6)
        counted = labels >= 0
        chosen = logprobs(temperature)[own][counted, labels[counted]]
        np.testing.assert_allclose(record.target_logprobs[counted], chosen, rtol=1e-5)
        assert np.isnan(record.target_logprobs[~counted]).all()
