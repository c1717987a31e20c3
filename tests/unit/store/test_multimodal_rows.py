import multiprocessing
import pickle

import polars as pl
import pyarrow.parquet as pq
import pytest

from megapack.errors import ConfigError, DataError, StoreError
from megapack.records.rejects import RejectReason, SampleLedger
from megapack.store.location import open_location
from megapack.store.manifest import Contents, PartKind
from megapack.store.multimodal_info import MultimodalInfo
from megapack.store.multimodal_parts import RowPart, row_totals, write_rejects
from megapack.store.multimodal_reader import MultimodalReader
from megapack.store.multimodal_table import StoredRow
from megapack.store.part_reader import Verify
from megapack.store.versions import commit, read_version
from tests.support.laid_samples import laid_by_hand, same_laid

INFO = MultimodalInfo(
    rules={"a": [1, 2]}, limits={"max_tokens": 9}, tokenizer_digest="t", vocab_size=64
)
ROWS = [
    StoredRow(epoch=at // 3, laid=tuple(laid_by_hand(10 * at + one) for one in range(1 + at % 3)))
    for at in range(7)
]
REJECT = {
    "epoch": 0,
    "group": "g",
    "source": "main",
    "file": "a",
    "row": 3,
    "reading": 0,
    "reason": "no_text",
    "detail": "expected text",
}


def written(location, rows, *, group_bytes=1 << 20):
    part = RowPart(INFO, group_bytes=group_bytes)
    for row in rows:
        part.add(row)
    return part.close(location)


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    location = open_location(tmp_path_factory.mktemp("store"))
    parts = [written(location, ROWS[:4]), written(location, ROWS[4:], group_bytes=1)]
    contents = Contents(
        schema_id="megapack.multimodal_rows/1",
        kind="multimodal",
        parts=[*parts, write_rejects(location, [REJECT])],
        counts=row_totals(parts),
        multimodal=INFO.with_ledger(
            SampleLedger(
                drawn={"g": 14}, placed={"g": 13}, rejected={"g": {RejectReason.NO_TEXT: 1}}
            )
        ),
    )
    commit(location, contents.manifest())
    return read_version(location)


def same_row(one, other):
    return one.epoch == other.epoch and all(
        same_laid(a, b) for a, b in zip(one.laid, other.laid, strict=True)
    )


def test_rows_come_back_bit_for_bit_in_any_order(version):
    reader = MultimodalReader(version, verify=Verify.SHA256)
    assert reader.num_rows == version.manifest.count("num_rows") == 7
    for number in (6, 0, 3, 4, 1, 5, 2, 6):
        assert same_row(reader.row(number), ROWS[number])
    assert reader.info.ledger.held("g") == 0
    assert reader.rejects().to_pylist() == [REJECT]
    with pytest.raises(ConfigError, match=r"\[0, 7\), found 7"):
        reader.row(7)


def test_counts_are_those_of_the_rows(version):
    assert version.manifest.counts == {
        "num_rows": 7,
        "num_samples": sum(len(row.laid) for row in ROWS),
        **{
            f"num_{name}": sum(getattr(row.size, name) for row in ROWS)
            for name in ("tokens", "vit_tokens", "vae_tokens", "images")
        },
    }
    assert version.multimodal_ref().num_samples == 13
    planned = MultimodalReader(version).planning(0)
    assert planned["tokens"].to_pylist() == [row.size.tokens for row in ROWS[:4]]


def test_equal_rows_make_equal_parts_and_groups_are_bounded_in_bytes(tmp_path):
    location = open_location(tmp_path)
    one, two = (written(location, ROWS, group_bytes=2000) for _ in range(2))
    assert one == two
    file = pq.ParquetFile(tmp_path / one.key)
    sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert sum(sizes) == 7
    assert len(sizes) > 2
    names = [file.metadata.row_group(0).column(at) for at in range(file.metadata.num_columns)]
    stored = {one.path_in_schema: one.compression for one in names}
    assert stored["samples.list.element.encoded.list.element"] == "UNCOMPRESSED"
    assert stored["samples.list.element.items.list.element.text.list.element"] == "ZSTD"


def test_polars_reads_the_rows_as_they_are(version):
    part = version.manifest.parts_of(PartKind.MULTIMODAL_ROWS)[0]
    frame = pl.read_parquet(f"{version.uri}/{part.key}")
    assert frame["num_samples"].to_list() == [len(row.laid) for row in ROWS[:4]]
    samples = frame.select("samples").explode("samples").unnest("samples")
    assert samples["encoded"].list.len().to_list() == [3] * samples.height
    items = samples.select("items").explode("items").unnest("items")
    texts = items.filter(pl.col("kind") == "text")["text"]
    first = [item.text.tolist() for item in ROWS[0].laid[0].sample.items if item.text is not None]
    assert texts.to_list()[: len(first)] == first


def _row_in_child(reader, queue):
    inherited = dict(reader._files)
    same = same_row(reader.row(1), ROWS[1]) and same_row(reader.row(5), ROWS[5])
    # The place in an open file is shared with the parent: the child opens its own.
    queue.put(same and all(reader._files[at] is not one for at, one in inherited.items()))


def test_a_reader_that_has_read_works_in_a_forked_process_and_pickles(version):
    reader = MultimodalReader(version)
    reader.row(0)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_row_in_child, args=(reader, queue))
    child.start()
    assert queue.get(timeout=20)
    child.join()
    assert same_row(pickle.loads(pickle.dumps(reader)).row(2), ROWS[2])


def test_missing_and_damaged_parts_are_told(version, tmp_path):
    location = open_location(tmp_path)
    part = written(location, ROWS[:2])
    contents = Contents(
        schema_id="megapack.multimodal_rows/1", kind="multimodal", parts=[part], multimodal=INFO
    )
    found = commit(location, contents.manifest())
    path = tmp_path / part.key
    good = path.read_bytes()
    path.write_bytes(good[:4] + bytes(len(good) - 8) + good[-4:])
    with pytest.raises(DataError, match="sha256"):
        MultimodalReader(found, verify=Verify.SHA256).row(0)
    with pytest.raises(DataError, match="pyarrow cannot read"):
        MultimodalReader(found).row(0)
    path.unlink()
    with pytest.raises(StoreError, match="incomplete"):
        MultimodalReader(found).row(0)


def test_other_kinds_are_refused_by_name_and_keep_their_digests(version):
    with pytest.raises(ConfigError, match="rows of text and images"):
        version.manifest.packed_info()
    other = Contents(schema_id="x", kind="checkpoint", parts=()).manifest()
    with pytest.raises(ConfigError, match="pack-multimodal"):
        other.multimodal_info()
    # Of a version that was written before there were multimodal rows.
    assert other.digest == "fdb848ce79fe07294da57b830586fb61d29b98ae8d2d36d79f51b4a898950246"
    assert version.manifest.parts_of(PartKind.ROWS) == ()
