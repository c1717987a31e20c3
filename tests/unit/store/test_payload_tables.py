import numpy as np
import polars as pl
import pytest

from megapack.errors import ConfigError
from megapack.records.payload import PayloadDtype
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.payload_parts import write_payload_parts
from megapack.store.payload_tables import top_positions
from tests.unit.store.test_payload_frames import INFO, TOPK, TOPK_INFO, hidden_payload, payload

PROBABILITIES = np.array([[0.5, 0.25], [0.75, 0.125], [0.5, 0.5]])


def teacher(document_id, dtype):
    rest = 1 - PROBABILITIES.sum(1)
    with np.errstate(divide="ignore"):
        tails = np.log(rest).astype(np.float32)
    return payload(
        document_id,
        3,
        dtype=dtype,
        values=np.log(PROBABILITIES).astype(dtype.numpy),
        tail_logprobs=tails,
    )


@pytest.mark.parametrize("dtype", [PayloadDtype.FP16, PayloadDtype.FP32])
def test_polars_scans_a_part_and_computes_tail_mass_and_entropy(tmp_path, dtype):
    kinds = (TOPK.model_copy(update={"dtype": dtype}),)
    info = INFO.model_copy(update={"kinds": kinds})
    written = write_payload_parts(
        open_location(tmp_path), [teacher("a", dtype), teacher("b", dtype)], info=info
    )
    (key,) = [part.key for part in written if part.kind is PartKind.PAYLOAD_TOPK]
    scan = pl.scan_parquet(tmp_path / key)
    tails = scan.select(pl.col("tail_logprobs").list.eval(pl.element().exp()).list.mean())
    np.testing.assert_allclose(tails.collect()["tail_logprobs"], [0.125, 0.125], rtol=1e-6)

    found = top_positions(scan.filter(pl.col("document_id") == "b").collect())
    assert found["document_id"].to_list() == ["b"] * 3
    assert found["position"].to_list() == [0, 1, 2]
    assert found["ids"].to_list() == payload("b", 3).indices.tolist()
    assert found["target_logprob"].is_nan().to_list() == [True, False, False]
    spread = found.select(
        entropy=-pl.sum_horizontal(
            pl.col("logprobs").list.eval(pl.element() * pl.element().exp()).list.sum()
        ),
        mass=pl.col("logprobs").list.eval(pl.element().exp()).list.sum()
        + pl.col("tail_logprob").exp(),
    )
    expected = -(PROBABILITIES * np.log(PROBABILITIES)).sum(1)
    np.testing.assert_allclose(spread["entropy"], expected, rtol=1e-3)
    np.testing.assert_allclose(spread["mass"], 1, atol=1e-3)


def test_other_kinds_are_refused_and_nothing_gives_nothing(tmp_path):
    written = write_payload_parts(
        open_location(tmp_path), [payload("a", 2), hidden_payload("a", 2)], info=INFO
    )
    hidden = pl.read_parquet(tmp_path / written[2].key)
    with pytest.raises(ConfigError, match="kind topk, found records without indices"):
        top_positions(hidden)
    top = pl.read_parquet(tmp_path / written[1].key)
    assert top_positions(top.clear()).schema == top_positions(top).schema
    assert written[1].kind is PartKind.PAYLOAD_TOPK
    assert TOPK_INFO.kinds == (TOPK,)
