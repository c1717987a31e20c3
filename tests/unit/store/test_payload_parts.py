import polars as pl
import pytest

from megapack.errors import ConfigError
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.store import payload_parts
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from megapack.store.payload_parts import payload_bytes, payload_counts, write_payload_parts
from tests.unit.store.test_payload_frames import INFO, TOPK, hidden_payload, payload

SIZES = (("a", 2), ("b", 2), ("c", 9), ("d", 1))


def both_kinds():
    return [make(*one) for one in SIZES for make in (payload, hidden_payload)]


def test_each_kind_has_parts_of_its_own_and_a_document_counts_once(tmp_path):
    parts = write_payload_parts(open_location(tmp_path), both_kinds(), info=INFO)
    assert [part.kind for part in parts] == [PartKind.PAYLOAD_TOPK, PartKind.PAYLOAD_HIDDEN]
    assert payload_counts(parts) == {"num_documents": 4, "num_positions": 14}
    frame = pl.read_parquet(tmp_path / parts[1].key, columns=["document_id", "indices"])
    assert frame["document_id"].to_list() == ["a", "b", "c", "d"]
    assert frame["indices"].null_count() == 4


def test_parts_do_not_depend_on_the_other_kinds_of_the_payload(tmp_path):
    location = open_location(tmp_path)
    both = write_payload_parts(location, both_kinds(), info=INFO)
    alone = INFO.model_copy(update={"kinds": (TOPK,)})
    assert write_payload_parts(location, [payload(*one) for one in SIZES], info=alone) == both[:1]
    found = pl.read_parquet_metadata(tmp_path / both[0].key)
    assert found["megapack.kind"] == "topk"
    assert found["megapack.width"] == "2"
    assert "megapack.kinds" not in found


def test_parts_are_cut_by_bytes(tmp_path, monkeypatch):
    payloads = [payload(*one) for one in SIZES]
    monkeypatch.setattr(payload_parts, "PART_BYTES", 2 * payload_bytes(payloads[0]))
    parts = write_payload_parts(open_location(tmp_path), payloads, info=INFO)
    assert [part.num_records for part in parts] == [2, 1, 1]
    assert write_payload_parts(open_location(tmp_path), [], info=INFO) == ()


def test_payload_of_a_kind_that_is_not_stored_is_refused(tmp_path):
    alone = INFO.model_copy(update={"kinds": (TOPK,)})
    with pytest.raises(ConfigError, match=r"kind hidden, found topk\. Extract"):
        write_payload_parts(open_location(tmp_path), [hidden_payload("a", 1)], info=alone)
    with pytest.raises(ConfigError, match="kind logits, found topk, hidden"):
        INFO.of(PayloadKind.LOGITS)
    assert PayloadDtype.BF16.numpy.itemsize == 2
