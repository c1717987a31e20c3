import pytest

from megapack.errors import ConfigError, ContractError, DataError, StoreError
from megapack.store.files import commit_folder, fetch_folder, safe_name, upload_files
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit

_CONTENTS = Contents(
    schema_id="megapack.checkpoint/1",
    kind="checkpoint",
    parts=(),
    counts={"step": 3, "consumed_rows": 12},
)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "checkpoint"
    (root / "deep").mkdir(parents=True)
    (root / "a.pt").write_bytes(b"weights" * 1000)
    (root / "same.pt").write_bytes(b"weights" * 1000)
    (root / "deep" / "meta").write_bytes(b"")
    return root


def _content(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_folder_round_trip(tmp_path, folder):
    made = commit_folder(str(tmp_path / "store"), folder, _CONTENTS)
    assert made.checkpoint_ref().consumed_rows == 12
    assert len({part.key for part in made.manifest.parts}) == 2
    fetched = tmp_path / "fetched"
    assert fetch_folder(str(tmp_path / "store"), None, fetched) == made
    assert _content(fetched) == _content(folder)


def test_files_of_two_nodes_make_one_version(tmp_path, folder):
    location = open_location(tmp_path / "store")
    parts = [
        *upload_files(location, folder, ["deep/meta"]),
        *upload_files(location, folder, ["a.pt", "same.pt"]),
    ]
    commit(location, Contents(schema_id="", kind="checkpoint", parts=parts).manifest())
    fetch_folder(location, 1, tmp_path / "fetched")
    assert _content(tmp_path / "fetched") == _content(folder)


def test_altered_file_leaves_nothing_behind(tmp_path, folder):
    location = open_location(tmp_path / "store")
    made = commit_folder(location, folder, _CONTENTS)
    part = next(part for part in made.manifest.parts if part.name == "a.pt")
    data = bytearray(location.get(part.key))
    data[0] ^= 1
    location.put(part.key, bytes(data))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"\(a.pt\): expected sha256 .*was not opened"):
        fetch_folder(location, 1, tmp_path / "fetched")
    assert sorted(tmp_path.iterdir()) == before
    location.delete(part.key)
    with pytest.raises(StoreError, match="found nothing"):
        fetch_folder(location, 1, tmp_path / "fetched")


def test_destination_in_use_is_refused(tmp_path, folder):
    commit_folder(str(tmp_path / "store"), folder, _CONTENTS)
    with pytest.raises(ConfigError, match="absent or empty"):
        fetch_folder(str(tmp_path / "store"), 1, folder)


def test_missing_file_and_empty_version_are_refused(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"\['nope'\]"):
        upload_files(str(tmp_path / "store"), folder, ["nope"])
    commit(str(tmp_path / "store"), _CONTENTS.manifest())
    with pytest.raises(ConfigError, match="expected a version of files"):
        fetch_folder(str(tmp_path / "store"), 1, tmp_path / "fetched")


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", "a\\b", ""])
def test_file_name_that_leaves_its_folder_is_refused(name):
    with pytest.raises(ContractError, match="relative path"):
        safe_name(name)
