import json

import polars as pl
import pytest

from megapack.errors import ConfigError, DataError, StoreError
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Split
from megapack.store.part_reader import PartReader, Verify
from megapack.store.payload_reader import open_payloads
from megapack.store.reader import open_dataset
from megapack.store.versions import commit
from tests.support.store_rows import INFO, dataset_manifest, make_row, put_rows, same_row


def _uneven(location: Location, *, info=INFO):
    """Parts of 3, 1, 0 and 7 rows with row groups of 2, 1 and 3 rows, and one for validation."""
    return [
        put_rows(location, [0, 1, 2], group_records=2, info=info),
        put_rows(location, [3], group_records=1, info=info),
        put_rows(location, [], group_records=1, info=info),
        put_rows(location, [50], split=Split.VALIDATION, info=info),
        put_rows(location, [4, 5, 6, 7, 8, 9, 10], group_records=3, info=info),
    ]


def test_uneven_row_groups_give_every_row_once_in_manifest_order(tmp_path):
    location = open_location(tmp_path)
    info = INFO.model_copy(update={"row_length": 1 << 19})
    commit(location, dataset_manifest(_uneven(location, info=info), info=info))
    with open_dataset(location) as dataset:
        assert dataset.info.group_rows == 2
        assert dataset.num_rows(Split.TRAIN) == 11
        rows = list(dataset.rows(Split.TRAIN, range(11)))
        assert [int(row.tokens[0]) for row in rows] == list(range(11))
        assert all(same_row(row, make_row(i, info=info)) for i, row in enumerate(rows))
        assert [int(row.tokens[0]) for row in dataset.rows(Split.TRAIN, [10, 0, 10, 3])] == [
            10, 0, 10, 3,
        ]  # fmt: skip
        assert [int(row.tokens[0]) for row in dataset.rows(Split.VALIDATION, [0])] == [50]
        assert list(dataset.rows(Split.TRAIN, [])) == []


def test_eleven_parts_are_read_in_manifest_order_not_by_name(tmp_path):
    location = open_location(tmp_path)
    parts = [put_rows(location, [number]) for number in range(11)]
    assert [part.key for part in parts] != sorted(part.key for part in parts)
    commit(location, dataset_manifest(parts))
    with open_dataset(location) as dataset:
        rows = dataset.rows(Split.TRAIN, range(11))
        assert [int(row.tokens[0]) for row in rows] == list(range(11))


def test_order_visits_every_row_once_an_epoch(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest(_uneven(location)))
    with open_dataset(location) as dataset:
        rows = dataset.order(Split.TRAIN, seed=3).rows_at(11, 11)
        assert sorted(rows.tolist()) == list(range(11))


def test_index_has_costs_without_tokens(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest(_uneven(location)))
    with open_dataset(location) as dataset:
        index = dataset.index(Split.TRAIN)
        assert index.columns == ["num_real_tokens", "num_target_tokens", "cost", "lengths"]
        assert index["num_real_tokens"].sum() == 8 * 11
        assert dataset.costs(Split.TRAIN).tolist() == [21] * 11


def test_parts_beside_the_manifest_are_not_seen(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest([put_rows(location, [1])]))
    put_rows(location, [2])
    with open_dataset(location) as dataset:
        assert dataset.num_rows(Split.TRAIN) == 1


def test_part_replaced_by_a_larger_object_is_detected(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    commit(location, dataset_manifest([part]))
    location.put(part.key, location.get(part.key) + b"x")
    with (
        open_dataset(location) as dataset,
        pytest.raises(StoreError, match=rf"expected {part.size} bytes, found {part.size + 1}"),
    ):
        list(dataset.rows(Split.TRAIN, [0]))


def test_missing_part_is_tried_again(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    commit(location, dataset_manifest([part]))
    data = location.get(part.key)
    location.delete(part.key)
    with open_dataset(location) as dataset:
        with pytest.raises(StoreError, match=r"found nothing\. The version is incomplete"):
            list(dataset.rows(Split.TRAIN, [0]))
        location.put(part.key, data)
        assert len(list(dataset.rows(Split.TRAIN, [0]))) == 1


def test_altered_bytes_are_found_by_digest(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    commit(location, dataset_manifest([part]))
    data = bytearray(location.get(part.key))
    data[len(data) // 2] ^= 1
    location.put(part.key, bytes(data))
    with (
        open_dataset(location, verify=Verify.SHA256) as dataset,
        pytest.raises(DataError, match=f"expected sha256 {part.sha256}.*altered"),
    ):
        list(dataset.rows(Split.TRAIN, [0]))


def test_file_that_is_no_parquet_is_a_data_error(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1])
    commit(location, dataset_manifest([part]))
    location.put(part.key, b"x" * part.size)
    with (
        open_dataset(location) as dataset,
        pytest.raises(DataError, match="Parquet part of 1 records"),
    ):
        list(dataset.rows(Split.TRAIN, [0]))


def test_part_with_fewer_rows_than_recorded_is_a_data_error(tmp_path):
    location = open_location(tmp_path)
    part = put_rows(location, [1, 2]).model_copy(update={"num_records": 3})
    commit(location, dataset_manifest([part]))
    with (
        open_dataset(location) as dataset,
        pytest.raises(DataError, match="expected 3 records from record 0, found 2"),
    ):
        list(dataset.rows(Split.TRAIN, [2]))


def test_row_out_of_range_and_empty_split_are_refused(tmp_path):
    location = open_location(tmp_path)
    commit(location, dataset_manifest([put_rows(location, [1])]))
    with open_dataset(location) as dataset:
        with pytest.raises(ConfigError, match=r"\[0, 1\) of split 'train', found 1"):
            list(dataset.rows(Split.TRAIN, [1]))
        with pytest.raises(ConfigError, match="split 'validation', found none"):
            dataset.order(Split.VALIDATION, seed=0)


def test_version_of_another_kind_is_refused(tmp_path):
    location = open_location(tmp_path)
    commit(location, Contents(schema_id="", kind="checkpoint", parts=()).manifest())
    with pytest.raises(ConfigError, match=r"expected a packed dataset, found .*'checkpoint'"):
        open_dataset(location)
    with pytest.raises(ConfigError, match="expected a teacher payload, found kind 'checkpoint'"):
        open_payloads(location)


def test_polars_alone_can_audit_a_version(tmp_path):
    location = open_location(tmp_path)
    made = commit(location, dataset_manifest(_uneven(location)))
    keys = [part["key"] for part in json.loads(location.get("versions/00000001.json"))["parts"]]
    frame = pl.concat([pl.read_parquet(tmp_path / key) for key in keys])
    assert frame["num_target_tokens"].sum() == made.manifest.count("num_target_tokens")
    assert frame.select(pl.col("lengths").explode()).to_series().unique().sort().to_list() == [3, 5]
    by_source = frame.select(pl.col("sources").explode()).group_by("sources").len()
    assert by_source.rows() == [("s", 24)]


def test_groups_are_kept_by_bytes_and_fetched_ahead_within_half_of_that(tmp_path, monkeypatch):
    location = open_location(tmp_path)
    info = INFO.model_copy(update={"row_length": 1 << 20, "vocab_size": 60_000})
    commit(
        location,
        dataset_manifest([put_rows(location, range(8), group_records=1, info=info)], info=info),
    )
    monkeypatch.setattr("megapack.store.reader.KEPT_BYTES", 4 * 2 * (1 << 20) + 100)
    read = []
    original = PartReader.read

    def spy(self, part, *, rows=None, columns=None):
        if rows:
            read.append(rows[0])
        return original(self, part, rows=rows, columns=columns)

    monkeypatch.setattr(PartReader, "read", spy)
    with open_dataset(location) as dataset:
        dataset.prefetch(Split.TRAIN, [7, 6, 7, 5, 4])
        assert [int(row.tokens[0]) for row in dataset.rows(Split.TRAIN, [7, 6])] == [7, 6]
        assert sorted(read) == [6, 7]
        list(dataset.rows(Split.TRAIN, [0, 1, 2, 3]))
        assert sorted(read) == [0, 1, 2, 3, 6, 7]
        list(dataset.rows(Split.TRAIN, [3, 2, 1, 0]))
        assert len(read) == 6
        list(dataset.rows(Split.TRAIN, [7]))
        assert len(read) == 7


def test_rows_of_another_schema_are_refused(tmp_path):
    location = open_location(tmp_path)
    manifest = dataset_manifest([put_rows(location, [1])])
    older = manifest.model_copy(update={"schema_id": "megapack.packed_rows/1"})
    commit(location, older.model_copy(update={"digest": older.content_digest()}))
    with pytest.raises(ConfigError, match=r"packed_rows/2, found .*packed_rows/1.*Pack the data"):
        open_dataset(location)
