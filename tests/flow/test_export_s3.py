"""Exports to a real S3 server: whole, or without `export.json`."""

import polars as pl
import pytest

import megapack
from megapack.errors import ConfigError, StoreError
from megapack.steps.export import export
from megapack.steps.exports.formats import ExportFormat
from megapack.steps.exports.plain import PlainExporter
from megapack.steps.foreign.audit import ForeignAudit, audit_foreign, is_dataset
from megapack.store.location import open_location
from tests.support.toy_dataset import chatml_dataset

pytestmark = pytest.mark.flow


def test_an_export_that_died_is_taken_over_and_a_finished_one_is_not(s3, tmp_path, monkeypatch):
    ref = chatml_dataset(tmp_path, store=f"{s3}/store")
    location = open_location(f"{s3}/out")
    real = PlainExporter.file

    def dies_at_the_second(self, rows):
        if location.list_keys(""):
            raise StoreError("the connection broke")
        return real(self, rows)

    with monkeypatch.context() as patched:
        patched.setattr(PlainExporter, "file", dies_at_the_second)
        with pytest.raises(StoreError, match="broke"):
            export(ref, f"{s3}/out", ExportFormat.HF)
    assert [stored.key for stored in location.list_keys("")] == ["train-00000.parquet"]
    location.put("train-00007.parquet", b"left over")
    report = export(ref, f"{s3}/out", ExportFormat.HF)
    keys = [stored.key for stored in location.list_keys("")]
    assert keys == ["export.json", *report.files]
    read = pl.read_parquet(location.get(report.files[0]))["input_ids"].to_list()
    opened = megapack.open(ref.uri)
    assert sorted(read) == sorted(one["input_ids"].tolist() for one in opened.hf())
    with pytest.raises(ConfigError, match="expected nothing at"):
        export(ref, f"{s3}/out", ExportFormat.HF)
    audited = audit_foreign(ForeignAudit(uri=f"{s3}/out", tokenizer=str(tmp_path / "tokenizer")))
    assert audited.violations == audited.unchecked == ()
    assert audited.num_rows == report.num_rows
    assert is_dataset(ref.uri)
    assert not is_dataset(f"{s3}/out")


def test_a_prefix_with_other_objects_is_refused(s3, tmp_path):
    ref = chatml_dataset(tmp_path)
    open_location(f"{s3}/out").put("mine.txt", b"x")
    with pytest.raises(ConfigError, match=r"such as mine\.txt"):
        export(ref, f"{s3}/out", ExportFormat.BRIDGE)
