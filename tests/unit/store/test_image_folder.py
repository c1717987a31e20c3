import os

import pytest

from megapack.errors import ConfigError, DataError
from megapack.store import image_folder
from megapack.store.image_folder import ImageFolder, check_folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "in" / "sub" / "a.png").write_bytes(b"a")
    os.mkfifo(tmp_path / "in" / "pipe.png")
    return ImageFolder(f"{tmp_path}/in/")


def test_files_are_read_by_their_path_below_the_folder(folder):
    assert folder.read("sub/a.png") == folder.read("./sub/a.png") == b"a"
    assert folder.names("sub") == ("a.png",)


@pytest.mark.parametrize(
    "path", ["../secret.png", "sub/../../secret.png", "/etc/passwd", "file:///etc/passwd", ""]
)
def test_a_record_cannot_lead_out_of_the_folder(folder, path):
    for read in (folder.read, folder.names):
        with pytest.raises(DataError, match="below its folder, without"):
            read(path)


@pytest.mark.parametrize(
    "path", ["none.png", "sub", "pipe.png", "sub/a.png/b", "x" * 5000, "\ud800.png"]
)
def test_what_is_no_file_is_the_records_fault(folder, path):
    with pytest.raises(DataError, match="expected a"):
        folder.read(path)


@pytest.mark.parametrize("path", ["none", "sub/a.png"])
def test_what_is_no_folder_is_the_records_fault(folder, path):
    with pytest.raises(DataError, match="expected a"):
        folder.names(path)


def test_what_is_missing_is_told_the_same_wherever_the_folder_stands(folder, tmp_path):
    with pytest.raises(DataError, match="in the folder of images, found none") as told:
        folder.read("sub/lost.png")
    assert str(tmp_path) not in str(told.value)


def test_files_that_are_too_large_are_not_read(folder, monkeypatch):
    monkeypatch.setattr(image_folder, "MOST_BYTES", 0)
    with pytest.raises(DataError, match="at most 0 bytes, found 1"):
        folder.read("sub/a.png")


def test_a_folder_that_is_not_there_is_the_jobs_fault(tmp_path):
    check_folder(str(tmp_path))
    with pytest.raises(ConfigError, match="expected a folder or prefix, found none"):
        check_folder(str(tmp_path / "none"))
