import pytest

from megapack.errors import ConfigError, DataError
from megapack.records.payload import PayloadKind
from megapack.store import payload_parts
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.part_cache import PartCache
from megapack.store.payload_parts import payload_counts, write_payload_parts
from megapack.store.payload_places import PartPlaces
from megapack.store.payload_reader import PayloadDataset, open_payloads
from megapack.store.schema import SchemaId
from megapack.store.versions import commit
from tests.support.counted_folder import Fetches
from tests.unit.store.test_payload_frames import INFO, hidden_payload, payload, same_payload

SIZES = {"a": 2, "b": 3, "c": 1, "d": 4, "e": 1}


@pytest.fixture
def payloads(tmp_path, monkeypatch):
    """Five documents in parts of two, each a row group of its own."""
    monkeypatch.setattr(payload_parts, "GROUP_BYTES", 1)
    location = open_location(tmp_path)
    names = list(SIZES)
    parts = [
        part
        for shard in (names[:2], names[2:4], names[4:])
        for part in write_payload_parts(
            location,
            [make(one, SIZES[one]) for one in shard for make in (payload, hidden_payload)],
            info=INFO,
        )
    ]
    made = commit(
        location,
        Contents(
            schema_id=SchemaId.TEACHER_PAYLOAD,
            kind="payload",
            parts=parts,
            counts=payload_counts(parts),
            payload=INFO,
        ).manifest(),
    )
    assert made.payload_ref().num_positions == 11
    return open_payloads(location)


def test_payloads_come_in_stored_order_by_kind(payloads):
    for kind, make in ((PayloadKind.TOPK, payload), (PayloadKind.HIDDEN, hidden_payload)):
        found = list(payloads.payloads(kind))
        assert [one.document_id for one in found] == list(SIZES)
        assert all(same_payload(one, make(one.document_id, one.num_positions)) for one in found)
        index = payloads.index()
        assert index["num_tokens"].to_list() == list(SIZES.values())
        assert index.columns == ["document_id", "teacher", "num_tokens", "labels_digest"]


def test_fetch_reads_the_row_groups_of_the_documents_and_no_others(payloads, monkeypatch):
    payloads.fetch(["a"], PayloadKind.HIDDEN)
    read = []
    original = type(payloads._reader).read

    def spy(self, part, *, rows=None, columns=None):
        read.append((part.kind.value, rows))
        return original(self, part, rows=rows, columns=columns)

    monkeypatch.setattr(type(payloads._reader), "read", spy)
    found = payloads.fetch(["d", "b", "d"], PayloadKind.HIDDEN)
    assert sorted(found) == ["b", "d"]
    assert all(same_payload(one, hidden_payload(name, SIZES[name])) for name, one in found.items())
    assert read == [("payload_hidden", (1, 1)), ("payload_hidden", (1, 1))]
    read.clear()
    assert sorted(payloads.fetch("ab", PayloadKind.TOPK)) == ["a", "b"]
    assert read == [("payload_topk", (0, 2))]


def test_fetch_leaves_out_documents_that_are_not_there(payloads):
    assert list(payloads.fetch(["y", "a", "z"], PayloadKind.TOPK)) == ["a"]
    assert payloads.fetch([], PayloadKind.TOPK) == {}


def test_kind_that_is_not_there_is_refused(payloads):
    with pytest.raises(ConfigError, match="expected a payload of kind logits, found topk, hidden"):
        payloads.fetch(["a"], PayloadKind.LOGITS)


def test_parts_of_a_remote_store_are_cached_where_all_of_the_kind_fit(payloads, tmp_path):
    plain = payloads.fetch(list(SIZES), PayloadKind.TOPK)
    room = sum(part.size for part in payloads.parts(PayloadKind.TOPK))
    for name, limit_bytes, fetched in (("large", room, 3), ("small", room - 1, 0)):
        remote = Fetches(tmp_path)
        cache = PartCache(tmp_path / name, limit_bytes=limit_bytes)
        held = PayloadDataset(remote, payloads.committed, cache=cache)
        for _ in range(2):
            found = held.fetch(list(SIZES), PayloadKind.TOPK)
            assert all(same_payload(one, plain[key]) for key, one in found.items())
        assert len(found) == len(SIZES)
        assert len(remote.keys) == fetched


def test_kinds_with_other_documents_than_the_index_are_refused(payloads):
    hidden = payloads.parts(PayloadKind.HIDDEN)
    with pytest.raises(DataError, match="expected 5 records, as many as the index has, found 3"):
        PartPlaces(hidden[:1] + hidden[2:], num_records=5)
