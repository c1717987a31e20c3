import json
import logging

import pytest

from megapack.errors import ConfigError, DataError
from megapack.store.sample_files import check_metadata, list_samples, read_metadata


@pytest.fixture
def folder(tmp_path):
    for name in ("b.parquet", "a/b.parquet", "a/A.PARQUET", "day=1/x.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    for name in ("_SUCCESS", ".hidden.parquet", "README.md", "info.json", "_temporary/c.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    return tmp_path


def test_files_are_known_by_relative_paths_in_order_and_others_are_named(folder, caplog):
    caplog.set_level(logging.INFO)
    found = list_samples(str(folder), ".parquet")
    names = ["a/A.PARQUET", "a/b.parquet", "b.parquet", "day=1/x.parquet"]
    assert [file.name for file in found] == names
    assert found[2].stored.uri == str(folder / "b.parquet")
    assert "README.md" in caplog.text
    assert "_SUCCESS" not in caplog.text
    assert [f.name for f in list_samples(f"{folder}/*/b.parquet", ".parquet")] == ["a/b.parquet"]
    assert [f.name for f in list_samples(f"{folder}/b.parquet", ".parquet")] == ["b.parquet"]


def test_nothing_to_read_and_compressed_lines_are_refused(folder):
    with pytest.raises(ConfigError, match=r"end in \.jsonl, found 6 others such as .*kind of the"):
        list_samples(str(folder), ".jsonl")
    with pytest.raises(ConfigError, match=r"end in \.parquet, found nothing"):
        list_samples(str(folder / "none"), ".parquet")
    (folder / "c.jsonl.gz").write_bytes(b"1")
    with pytest.raises(ConfigError, match=r"found the compressed c\.jsonl\.gz. Decompress it"):
        list_samples(str(folder), ".jsonl")


def test_metadata_that_matches_no_file_is_an_error_that_names_the_nearest(folder):
    row_groups = dict.fromkeys(list_samples(str(folder), ".parquet"), 2)

    def check(**entries):
        check_metadata(entries, row_groups, source="data/in/", uri="meta.json")

    check(**{"a/b.parquet": 2, str(folder / "b.parquet"): 2, "x.parquet": 2})
    check(**{"data/in/a/b.parquet": 2})
    with pytest.raises(
        DataError, match=r"meta\.json, entry 'a/bb\.parquet'.*none.*nearest is 'a/b\.parquet'"
    ):
        check(**{"a/bb.parquet": 2})
    with pytest.raises(DataError, match=r"expected 3 row groups in .*x\.parquet, found 2"):
        check(**{"x.parquet": 3})
    with pytest.raises(DataError, match=r"one file of that name, found 2: \['a/b\.parquet', 'b"):
        check(**{"b.parquet": 2})


def test_metadata_files_are_checked(tmp_path):
    path = tmp_path / "meta.json"
    with pytest.raises(ConfigError, match=r"meta\.json: expected a JSON file, found none"):
        read_metadata(str(path))
    path.write_text(json.dumps({"a": {"num_row_groups": 3, "num_rows": 9}}))
    assert read_metadata(str(path)) == {"a": 3}
    for content, found in (
        ("{", "expected JSON"),
        ("[1]", "an object of paths, found list"),
        ('{"a": 3}', r'expected \{"num_row_groups": n\}, found 3'),
        ('{"a": {"num_row_groups": true}}', "entry 'a'"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=found):
            read_metadata(str(path))
