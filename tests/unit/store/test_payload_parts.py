import polars as pl
import pytest

from megapack.errors import ConfigError, ContractError
from megapack.store import payload_parts
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.payload_parts import payload_bytes, payload_counts, write_payload_parts
from tests.unit.store.test_payload_frames import INFO, TOPK_INFO, hidden_payload, payload

SIZES = (("a", 2), ("b", 2), ("c", 9), ("d", 1))


def both_kinds():
    return [make(*one) for one in SIZES for make in (payload, hidden_payload)]


def test_each_kind_has_parts_of_its_own_and_a_document_counts_once(tmp_path):
    parts = write_payload_parts(open_location(tmp_path), both_kinds(), info=INFO)
    assert [part.kind for part in parts] == [
        PartKind.PAYLOAD_INDEX, PartKind.PAYLOAD_TOPK, PartKind.PAYLOAD_HIDDEN
    ]  # fmt: skip
    assert payload_counts(parts) == {"num_documents": 4, "num_positions": 14}
    index = pl.read_parquet(tmp_path / parts[0].key)
    assert index.select("document_id", "num_tokens").rows() == list(SIZES)
    frame = pl.read_parquet(tmp_path / parts[2].key, columns=["document_id", "indices"])
    assert frame["document_id"].to_list() == index["document_id"].to_list()
    assert frame["indices"].null_count() == 4


def test_parts_do_not_depend_on_the_other_kinds_of_the_payload(tmp_path):
    location = open_location(tmp_path)
    both = write_payload_parts(location, both_kinds(), info=INFO)
    payloads = [payload(*one) for one in SIZES]
    assert write_payload_parts(location, payloads, info=TOPK_INFO) == both[:2]
    found = pl.read_parquet_metadata(tmp_path / both[1].key)
    assert found["megapack.kind"] == "topk"
    assert found["megapack.width"] == "2"
    assert "megapack.kinds" not in found


def test_parts_are_cut_by_bytes(tmp_path, monkeypatch):
    payloads = [payload(*one) for one in SIZES]
    monkeypatch.setattr(payload_parts, "PART_BYTES", 2 * payload_bytes(payloads[0]))
    parts = write_payload_parts(open_location(tmp_path), payloads, info=TOPK_INFO)
    assert [part.num_records for part in parts] == [4, 2, 1, 1]
    assert write_payload_parts(open_location(tmp_path), [], info=INFO) == ()


def test_what_is_not_one_payload_of_each_kind_is_refused(tmp_path):
    location = open_location(tmp_path)
    with pytest.raises(ConfigError, match=r"kind hidden, found topk\. Extract"):
        write_payload_parts(location, [hidden_payload("a", 1)], info=TOPK_INFO)
    for others in ([], [hidden_payload("b", 2)], [hidden_payload("a", 3)]):
        with pytest.raises(ContractError, match=r"same documents.*found 1 of kind topk"):
            write_payload_parts(location, [payload("a", 2), *others], info=INFO)
    assert location.list_keys("") == []
