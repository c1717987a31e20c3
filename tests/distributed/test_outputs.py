"""Law 9: log-probs and payloads do not depend on the layout or on the packing."""

from typing import Any

import numpy as np
import pytest

from megapack.layout.granularity import ParallelSizes
from megapack.records.document import labels_digest
from megapack.records.payload import PayloadDtype
from tests.support.ranks import RankServer
from tests.support.rows import make_row, one_document

ROWS = [make_row([5, 17, 3, 23], seed=0), make_row([1, 2, 40], seed=1)]
LAYOUTS = {
    "cp2": ParallelSizes(cp=2),
    "tp2": ParallelSizes(tp=2),
    "tp2-sp": ParallelSizes(tp=2, sequence_parallel=True),
    "pp2": ParallelSizes(pp=2),
    "dp2": ParallelSizes(dp=2),
    "tp2-sp-cp2": ParallelSizes(tp=2, cp=2, sequence_parallel=True),
}


def payloads(*, sizes: ParallelSizes, rows: list[Any], dtype: PayloadDtype) -> Any:
    from megapack.outputs.teacher import TeacherPayloadHead
    from tests.support.tiny_training import collect_records

    return collect_records(sizes=sizes, rows=rows, head=TeacherPayloadHead(dtype=dtype))


def logprobs(*, sizes: ParallelSizes, temperature: float) -> Any:
    from megapack.outputs.logprobs import LogprobHead
    from megapack.parallel.sampling import Sampling
    from tests.support.tiny_training import collect_records

    head = LogprobHead(sampling=Sampling(temperature=temperature))
    records = collect_records(sizes=sizes, rows=ROWS, head=head, dtype="float64")
    return {record.document_id: record.target_logprobs.numpy() for record in records}


def merged(results: list[Any]) -> dict[str, Any]:
    """Records of all ranks by document; no document may come twice."""
    records = [record for result in results for record in result]
    by_id = {record.document_id: record for record in records}
    assert len(by_id) == len(records)
    return by_id


@pytest.fixture(scope="module")
def expected(ranks: RankServer) -> dict[str, Any]:
    """Every document alone in a row of its own, in one process."""
    found = {}
    for row in ROWS:
        for i in range(row.layout.num_segments):
            rows = [one_document(row, i)]
            found |= merged(
                ranks.run(payloads, sizes=ParallelSizes(), rows=rows, dtype=PayloadDtype.FP32)
            )
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_payload_at_any_layout_equals_document_alone(
    ranks: RankServer, expected: dict[str, Any], layout: str
) -> None:
    sizes = LAYOUTS[layout]
    got = merged(
        ranks.run(
            payloads,
            world_size=sizes.world_size,
            sizes=sizes,
            rows=ROWS,
            dtype=PayloadDtype.FP32,
        )
    )
    assert got.keys() == expected.keys()
    for key, payload in expected.items():
        assert got[key].labels_digest == payload.labels_digest
        np.testing.assert_allclose(got[key].values, payload.values, rtol=0, atol=2e-5)
        np.testing.assert_allclose(
            got[key].target_logprobs, payload.target_logprobs, rtol=0, atol=2e-5
        )


def test_payload_holds_real_positions_and_nan_where_no_label_counts(
    expected: dict[str, Any],
) -> None:
    for row in ROWS:
        for i, document_id in enumerate(row.document_ids):
            alone = one_document(row, i)
            payload = expected[document_id]
            assert payload.values.shape == (alone.layout.row_length, 32)
            assert np.array_equal(~np.isnan(payload.target_logprobs), alone.loss_mask())
            assert payload.labels_digest == labels_digest(alone.tokens, alone.labels())


def test_payload_bf16_is_the_rounded_float32(ranks: RankServer, expected: dict[str, Any]) -> None:
    got = merged(ranks.run(payloads, sizes=ParallelSizes(), rows=ROWS, dtype=PayloadDtype.BF16))
    for key, payload in expected.items():
        widened = (got[key].values.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(widened, payload.values, rtol=2**-8, atol=2e-5)


@pytest.mark.parametrize("layout", ["cp2", "tp2", "tp2-sp-cp2"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_logprobs_at_any_layout_equal_one_process(
    ranks: RankServer, layout: str, temperature: float
) -> None:
    sizes = LAYOUTS[layout]
    one = ranks.run(logprobs, sizes=ParallelSizes(), temperature=temperature)[0]
    several = ranks.run(logprobs, world_size=sizes.world_size, sizes=sizes, temperature=temperature)
    assert all(not result for result in several[1:])
    assert several[0].keys() == one.keys()
    for key, values in one.items():
        np.testing.assert_allclose(several[0][key], values, rtol=1e-6)
