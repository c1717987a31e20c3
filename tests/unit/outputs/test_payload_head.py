"""What the payload head writes of outputs made by hand, and what it refuses.

At every layout, against a real model: tests/distributed/test_outputs.py.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from megapack.errors import ConfigError, DataError
from megapack.jobs.outputs import LogitsForm
from megapack.model.forward import ModelOutput
from megapack.outputs.source import LogitReading
from megapack.outputs.teacher import PayloadHead
from megapack.parallel.context import ParallelContext
from megapack.parallel.lm_head import LmHead
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from tests.support.largest_tensor import LargestTensor
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

FP32, FP16, BF16 = PayloadDtype.FP32, PayloadDtype.FP16, PayloadDtype.BF16
LOGPROBS, TOPK, HIDDEN, LOGITS = PayloadKind
ONE = ParallelContext.single()
REAL, PADDED, H = 101, 112, 6
ROW = make_row([5, 17, 3], seed=1, supervised=1.0)
DRAW = torch.Generator().manual_seed(4)
STATES, WEIGHT = torch.randn(96, H, generator=DRAW), torch.randn(PADDED, H, generator=DRAW)
SEVERAL = PayloadHead(
    kinds=((HIDDEN, FP32), (TOPK, FP32), (LOGITS, FP32)), top_k=4, teacher=3, temperature=2.0
)


def given(states: torch.Tensor = STATES, weight: torch.Tensor = WEIGHT) -> ModelOutput:
    return ModelOutput(
        logits=states @ weight.T,
        hidden=None,
        vocab_size=REAL,
        lm_head=LmHead(hidden=states, weight=weight),
    )


def payloads(head: PayloadHead, output: ModelOutput | None = None) -> list[TeacherPayload]:
    records = head(given() if output is None else output, microbatch(ROW), ONE).records
    return [record for record in records if isinstance(record, TeacherPayload)]


def positions(i: int) -> slice:
    start = int(ROW.layout.slot_starts[i])
    return slice(start, start + int(ROW.layout.lengths[i]))


def test_temperature_is_of_logprobs_and_topk_and_of_nothing_else() -> None:
    found = payloads(SEVERAL)
    named = [(one.document_id, one.kind) for one in found]
    assert named == [(key, kind) for key in ROW.document_ids for kind in (HIDDEN, TOPK, LOGITS)]
    logits = (STATES @ WEIGHT.T)[:, :REAL]
    logprobs = (logits / 2.0).log_softmax(-1).numpy()
    for at, payload in enumerate(found):
        own, labels = positions(at // 3), ROW.labels()[positions(at // 3)]
        counted = labels >= 0
        chosen = logprobs[own][counted, labels[counted]]
        np.testing.assert_allclose(payload.target_logprobs[counted], chosen, rtol=1e-5)
        assert np.isnan(payload.target_logprobs[~counted]).all()
        assert payload.teacher == 3
        whole = {HIDDEN: STATES.numpy(), LOGITS: logits.numpy(), TOPK: -np.sort(-logprobs)[:, :4]}
        np.testing.assert_allclose(payload.values, whole[payload.kind][own], rtol=1e-5)


@pytest.mark.parametrize("form", LogitsForm)
def test_form_of_logits_changes_nothing(form: LogitsForm) -> None:
    precise = given(STATES.double(), WEIGHT.double())
    reading = LogitReading(form=form, tokens_per_chunk=7)
    found = payloads(replace(SEVERAL, reading=reading), precise)
    for ours, theirs in zip(found, payloads(SEVERAL, precise), strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-7)
        assert ours.kind is not TOPK or np.array_equal(ours.indices, theirs.indices)


def test_values_own_their_memory_and_lie_in_order() -> None:
    for payload in payloads(SEVERAL):
        width = {TOPK: 4, HIDDEN: H, LOGITS: REAL}[payload.kind]
        assert payload.values.flags.c_contiguous
        base = payload.values if payload.values.base is None else payload.values.base
        assert base.nbytes == payload.num_positions * width * 4, "no view into the row"


def test_filler_row_gives_nothing() -> None:
    filler = make_row([], seed=0)
    assert SEVERAL(given(), microbatch(filler), ONE).records == ()


@pytest.mark.parametrize(
    ("kind", "dtype", "value", "message"),
    [
        (HIDDEN, FP16, 7e4, "beyond the range of fp16 (+-65504), or infinite from the teacher. "
         "Store hidden as bf16 or fp32."),
        (LOGITS, FP16, 7e4, "Store logits as bf16 or fp32."),
        (HIDDEN, FP32, np.nan, "the teacher gives NaN or infinity there."),
        (LOGITS, BF16, np.nan, "the teacher gives NaN or infinity there."),
        (HIDDEN, BF16, np.inf, "the teacher gives NaN or infinity there."),
        (TOPK, FP16, np.nan, "the teacher gives NaN or infinity there."),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_an_error_with_the_document(
    kind: PayloadKind, dtype: PayloadDtype, value: float, message: str
) -> None:
    states = STATES.clone()
    last = positions(2).stop - 1
    assert ROW.labels()[last] == -100, "whose log-prob is not looked at"
    states[last, 2] = value
    head = PayloadHead(kinds=((kind, dtype),), top_k=4 if kind is TOPK else None)
    where = f"document {ROW.document_ids[2]}: "
    found = "found others at 1 of 3 positions, first at position 2: "
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        payloads(head, given(states))
    assert where in str(caught.value)
    assert found in str(caught.value)


def test_hidden_states_just_inside_fp16_are_stored() -> None:
    states = STATES.clone()
    states[0, 0] = 65504.0
    found = payloads(PayloadHead(kinds=((HIDDEN, FP16),)), given(states))
    assert found[0].values[0, 0] == np.float16(65504)


def test_nan_of_a_label_is_an_error_and_of_padding_is_not() -> None:
    states = STATES.clone()
    states[5] = torch.nan
    head = PayloadHead(kinds=((LOGPROBS, FP32),))
    assert len(payloads(head, given(states))) == 3
    states[9] = torch.nan
    message = (
        f"document {ROW.document_ids[1]}: expected a log-probability of the label at every "
        "supervised position, found NaN at 1 of them, first at position 1"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        payloads(head, given(states))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kinds": ()}, "each kind once and at least one, found []"),
        ({"kinds": ((HIDDEN, FP32), (HIDDEN, BF16))}, "found ['hidden', 'hidden']"),
        ({"kinds": ((TOPK, FP32),)}, "top_k = None, expected a number for kind topk"),
        ({"kinds": ((HIDDEN, FP32),), "top_k": 3}, "top_k = 3, expected a number for kind topk"),
        ({"kinds": ((HIDDEN, FP32),), "temperature": 0.0}, "expected a finite number above 0"),
    ],
)
def test_head_that_cannot_be_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        PayloadHead(**wrong)


def test_k_beyond_the_vocabulary_is_refused_with_both_numbers() -> None:
    message = f"k = {REAL + 1}, expected 1 <= k <= vocabulary = {REAL}"
    with pytest.raises(ConfigError, match=message):
        payloads(PayloadHead(kinds=((TOPK, FP32),), top_k=REAL + 1))


def test_no_tensor_grows_with_the_row_but_the_hidden_states() -> None:
    columns, chunk = 512, 8
    largest = {}
    for length in (64, 256):
        row = make_row([length - 1], seed=0, row_length=length)
        weight = torch.randn(columns, 2)
        head = PayloadHead(
            kinds=SEVERAL.kinds,
            top_k=300,
            reading=LogitReading(form=LogitsForm.BY_CHUNKS, tokens_per_chunk=chunk),
        )
        output = replace(
            given(), vocab_size=500, lm_head=LmHead(hidden=torch.randn(length, 2), weight=weight)
        )
        batch = microbatch(row)
        with LargestTensor() as seen:
            head(output, batch, ONE)
        largest[length] = seen.values
    # The bytes of a chunk that leaves: per position 500 logits, 300 log-probs and ids, and a few.
    leaving = 4 * (500 + 300 + 300 + 2 + 1 + 1) + 3
    assert largest == {64: chunk * leaving, 256: chunk * leaving}
