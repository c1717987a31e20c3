import os

import pytest

from megapack.errors import ConfigError
from megapack.store.source_files import (
    Compression,
    FileShape,
    current_fingerprint,
    file_form,
    list_files,
)


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def names(files, folder):
    return [file.uri.removeprefix(f"{folder}/") for file in files]


def test_folder_file_and_glob_are_sorted_by_uri(tmp_path):
    touch(tmp_path, "b.jsonl", "a.jsonl.gz", "sub/c.jsonl.packed", ".hidden", "_SUCCESS")
    assert names(list_files(str(tmp_path)), tmp_path) == [
        "a.jsonl.gz",
        "b.jsonl",
        "sub/c.jsonl.packed",
    ]
    assert names(list_files(f"{tmp_path}/*.jsonl"), tmp_path) == ["b.jsonl"]
    assert names(list_files(f"file://{tmp_path}/b.jsonl"), tmp_path) == ["b.jsonl"]
    assert list_files(f"{tmp_path}/b.jsonl")[0].size == len("b.jsonl")


def test_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    touch(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert names(list_files(f"{tmp_path}/a[1].jsonl"), tmp_path) == ["a[1].jsonl"]


def test_fingerprint_changes_when_the_file_does(tmp_path):
    touch(tmp_path, "a.jsonl")
    uri = f"{tmp_path}/a.jsonl"
    before = list_files(uri)[0].fingerprint
    assert list_files(uri)[0].fingerprint == before
    os.utime(uri, ns=(0, 1))
    assert list_files(uri)[0].fingerprint != before


def test_fingerprint_and_size_are_of_the_file_behind_a_link(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"one")
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.jsonl").symlink_to(target)
    (before,) = list_files(str(folder))
    assert before == list_files(f"{folder}/*.jsonl")[0] == list_files(f"{folder}/a.jsonl")[0]
    assert before.size == 3
    os.utime(target, ns=(0, 1))
    (after,) = list_files(str(folder))
    assert after.fingerprint == "3-1" != before.fingerprint
    assert current_fingerprint(after.uri) == after.fingerprint


def test_current_fingerprint_of_a_file_that_is_gone_is_empty(tmp_path):
    assert current_fingerprint(f"{tmp_path}/a.jsonl") == ""


@pytest.mark.parametrize("pattern", ["", "/**", "/*/*/*"])
def test_hidden_and_temporary_folders_below_a_source_are_skipped(tmp_path, pattern):
    source = tmp_path / "_data" / ".mine"
    hidden = (".ipynb_checkpoints/x/a.jsonl", "sub/_temporary/0.jsonl", "sub/.cache/hf.metadata")
    touch(source, "sub/deep/a.jsonl", *hidden)
    assert names(list_files(f"{source}{pattern}"), source) == ["sub/deep/a.jsonl"]
    assert names(list_files(f"{source}/sub/_temporary"), source) == ["sub/_temporary/0.jsonl"]


def test_what_is_no_regular_file_is_refused_by_name(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"a\.jsonl: .* link whose target is gone") as caught:
        list_files(str(tmp_path))
    assert "AWS" not in str(caught.value)
    (tmp_path / "a.jsonl").unlink()
    os.mkfifo(tmp_path / "a.jsonl")
    for uri in (tmp_path, tmp_path / "a.jsonl"):
        with pytest.raises(ConfigError, match=r"a\.jsonl: .* found a pipe, socket or device"):
            list_files(str(uri))
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "link").symlink_to(tmp_path.parent)
    with pytest.raises(ConfigError, match=r"link: .* found a symbolic link to a folder"):
        list_files(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl", (FileShape.LINES, Compression.NONE)),
        ("a.JSONL.GZ", (FileShape.LINES, Compression.GZIP)),
        ("a.jsonl.packed.zst", (FileShape.MERGED_LINES, Compression.ZSTD)),
        ("a.json", (FileShape.ARRAY, Compression.NONE)),
        ("a.parquet", (FileShape.PARQUET, Compression.NONE)),
    ],
)
def test_form_follows_the_suffix(name, form):
    assert file_form(f"s3://bucket/{name}") == form


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.bz2", "a.parquet.gz", "a", "a.packed"])
def test_unknown_suffix_is_named(name, tmp_path):
    touch(tmp_path, name)
    with pytest.raises(ConfigError, match=rf"source file .*/{name}: expected one of the suffixes"):
        list_files(str(tmp_path))


def test_missing_source_and_unknown_scheme_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="found nothing"):
        list_files(str(tmp_path / "none"))
    touch(tmp_path, ".hidden")
    with pytest.raises(ConfigError, match="found only hidden files"):
        list_files(str(tmp_path))
    with pytest.raises(ConfigError, match="found scheme 'gs'"):
        list_files("gs://bucket/a.jsonl")
