import numpy as np
import polars as pl
import pytest

from megapack.errors import DataError
from megapack.records.document import Document
from megapack.records.drops import Drop, DropReason
from megapack.store.document_frames import (
    documents_to_frame,
    drops_to_frame,
    frame_to_documents,
    frame_to_drops,
)
from megapack.store.schema import SCHEMAS, SchemaId

_DOCUMENTS = [
    Document(
        document_id="a" * 32,
        tokens=np.array([5, 6, 7]),
        target_runs=np.array([1, 3]),
        source="s",
        uri="u",
        line=2**40,
        piece=1,
    ),
    Document(document_id="b" * 32, tokens=np.array([9]), target_runs=np.array([])),
]


def test_documents_round_trip():
    frame = documents_to_frame(_DOCUMENTS, formats=["f", "g"])
    assert frame.schema == SCHEMAS[SchemaId.DOCUMENTS]
    assert frame["num_target_tokens"].to_list() == [2, 0]
    assert frame.filter(pl.col("tokens").list.contains(6))["document_id"].to_list() == ["a" * 32]
    back = list(frame_to_documents(frame, where="x"))
    for left, right in zip(back, _DOCUMENTS, strict=True):
        for name in ("document_id", "source", "uri", "line", "piece"):
            assert getattr(left, name) == getattr(right, name)
        assert left.tokens.tolist() == right.tokens.tolist()
        assert left.target_runs.tolist() == right.target_runs.tolist()


def test_damaged_document_names_its_place():
    frame = documents_to_frame(_DOCUMENTS, formats=["f", "g"]).with_columns(
        target_runs=pl.Series([[1, 3], [1, 5]], dtype=pl.List(pl.Int32))
    )
    with pytest.raises(DataError, match="x, record 1: damaged document"):
        list(frame_to_documents(frame, where="x"))


def test_drops_round_trip():
    drops = [Drop(reason=reason, detail=f"d {reason}", uri="u", line=3) for reason in DropReason]
    frame = drops_to_frame(drops)
    assert frame.schema == SCHEMAS[SchemaId.DROPS]
    assert list(frame_to_drops(frame)) == drops
    assert list(frame_to_drops(drops_to_frame([]))) == []
