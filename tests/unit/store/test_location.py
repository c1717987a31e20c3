import pickle

import pytest

from megapack.errors import ConfigError, ContractError, StoreError
from megapack.store.location import MissingKeyError, open_location


def test_open_location_unknown_scheme_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"'gs://b/p'.*s3://, found scheme 'gs'"):
        open_location("gs://b/p")


def test_open_location_s3_without_bucket_is_refused():
    with pytest.raises(ConfigError, match="found no bucket"):
        open_location("s3://")


def test_open_location_mistyped_s3_uri_makes_no_local_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="two slashes"):
        open_location("s3:/bucket/prefix")
    assert list(tmp_path.iterdir()) == []


def test_open_location_s3_creates_nothing_on_local_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    location = open_location("s3://bucket/prefix/")
    assert location.uri == "s3://bucket/prefix"
    assert location.parquet_source("parts/a").path == "s3://bucket/prefix/parts/a"
    assert list(tmp_path.iterdir()) == []


def test_parquet_source_repr_hides_the_secret(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    assert "very-secret" not in repr(open_location("s3://bucket").parquet_source("a"))


def test_open_location_file_uri_and_path_are_the_same_place(tmp_path):
    assert open_location(f"file://{tmp_path}").uri == open_location(tmp_path).uri == str(tmp_path)


def test_location_survives_pickling(tmp_path):
    for uri in (str(tmp_path), "s3://bucket/prefix"):
        assert pickle.loads(pickle.dumps(open_location(uri))).uri == uri


@pytest.mark.parametrize("key", ["", "../x", "a/../b", "/etc/passwd", "a//b", "."])
def test_key_that_leaves_the_location_is_refused(tmp_path, key):
    with pytest.raises(ContractError, match="relative path"):
        open_location(tmp_path).put(key, b"")


def test_local_put_get_size_delete(tmp_path):
    location = open_location(tmp_path / "store")
    assert location.size("a/b") is None
    location.put("a/b", b"one")
    location.put("a/b", b"longer")
    assert (location.get("a/b"), location.size("a/b")) == (b"longer", 6)
    assert [one.key for one in location.list_keys("")] == ["a/b"]
    location.delete("a/b")
    location.delete("a/b")
    assert location.size("a/b") is None
    with pytest.raises(MissingKeyError, match="expected a/b, found nothing"):
        location.get("a/b")


def test_local_put_if_absent_only_the_first_wins(tmp_path):
    location = open_location(tmp_path)
    assert location.put_if_absent("v/1", b"first") is True
    assert location.put_if_absent("v/1", b"second") is False
    assert location.get("v/1") == b"first"


def test_local_writes_leave_no_temporary_files(tmp_path):
    location = open_location(tmp_path)
    location.put("a", b"1")
    location.put_if_absent("a", b"2")
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    location.put_file("big", source)
    assert location.list_keys(".tmp/") == []
    copy = tmp_path / "copy"
    location.get_file("big", copy)
    assert copy.read_bytes() == source.read_bytes()


def test_local_size_is_never_remembered(tmp_path):
    reader, writer = open_location(tmp_path), open_location(tmp_path)
    writer.put("a", b"1")
    assert reader.size("a") == 1
    assert [one.size for one in reader.list_keys("")] == [1]
    writer.put("a", b"22")
    writer.put("b", b"")
    assert reader.size("a") == 2
    assert [(one.key, one.size) for one in reader.list_keys("")] == [("a", 2), ("b", 0)]


def test_local_list_keys_takes_the_prefix_literally(tmp_path):
    location = open_location(tmp_path)
    for key in ("parts/10", "parts/9", "partsx", "other/parts/1"):
        location.put(key, b"")
    assert [one.key for one in location.list_keys("parts/")] == ["parts/10", "parts/9"]
    assert open_location(tmp_path / "absent").list_keys("x/") == []


def test_check_writable_leaves_nothing(tmp_path):
    location = open_location(tmp_path)
    location.check_writable()
    assert location.list_keys("") == []


def test_check_writable_folder_below_a_file_names_the_path(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file/store: could not write .*choose another folder"):
        open_location(tmp_path / "file" / "store").check_writable()


def test_check_writable_store_that_ignores_conditions_is_refused(tmp_path, monkeypatch):
    location = open_location(tmp_path)

    def overwrite(key: str, data: bytes) -> bool:
        location.put(key, data)
        return True

    monkeypatch.setattr(location, "put_if_absent", overwrite)
    with pytest.raises(StoreError, match="ignores If-None-Match"):
        location.check_writable()
