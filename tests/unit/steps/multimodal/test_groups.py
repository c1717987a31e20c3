import pytest

from megapack.errors import ConfigError, DataError
from megapack.jobs.multimodal import GroupKind
from megapack.packing.row_limits import RowLimits
from megapack.records.multimodal_sample import Sample, SampleRef
from megapack.records.rejects import RejectReason
from megapack.records.shard import Shard
from megapack.steps.multimodal import making
from megapack.steps.multimodal.groups import GroupCursor, open_group
from megapack.steps.multimodal.tokenizer import open_tokenizer
from tests.support.multimodal_sources import (
    EDITS,
    all_shards,
    byte_ids,
    chat,
    drain,
    multimodal_job,
    png,
    sample_group,
    write_lines,
    write_pairs,
    write_parquet,
)

T2I, VQA, EDIT = GroupKind.TEXT_TO_IMAGE, GroupKind.UNDERSTANDING, GroupKind.EDITING


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same 23 records in each kind: uneven files, uneven row groups, blank lines."""
    root = tmp_path_factory.mktemp("groups")
    (root / "pairs").mkdir()
    for file, (first, end) in {"b": (0, 5), "a": (5, 6), "sub/c": (6, 23)}.items():
        numbers = range(first, end)
        pairs = [f'{{"x": "one {n}", "y": "two {n}"}}' for n in numbers]
        write_pairs(root / "pairs" / f"{file}.parquet", pairs)
        edits = [
            {"image_list": [png(), png(32), png(48)], "instruction_list": [[f"a{n}"], [f"b{n}"]]}
            for n in numbers
        ]
        write_parquet(root / "edits" / f"{file}.parquet", edits, EDITS)
        lines = [chat(f"<image>\nq {n}?", f"a {n}", image="red.png") for n in numbers]
        write_lines(root / "chats" / f"{file}.jsonl", [lines[0], "", "  ", *lines[1:]])
    (root / "images").mkdir()
    (root / "images" / "red.png").write_bytes(png(20, 30))
    return root


def opened(folder, kind, **changes):
    place = {T2I: "pairs", VQA: "chats", EDIT: "edits"}[kind]
    if kind is VQA:
        changes.setdefault("images", str(folder / "images"))
    group = sample_group(kind, folder / place, **changes)
    job = multimodal_job(folder, group, seed=5)
    return open_group(group, job, open_tokenizer(job))


def refs(drawn):
    return [(one.ref.file, one.ref.row) for one in drawn]


def same(one, other):
    assert one.ref == other.ref
    assert one.encoded == other.encoded
    for left, right in zip(one.items, other.items, strict=True):
        assert (left.text is None) == (right.text is None)
        if left.text is not None:
            assert left.text.tolist() == right.text.tolist()
        names = ("kind", "image", "height", "width", "loss", "droppable")
        assert [getattr(left, n) for n in names] == [getattr(right, n) for n in names]


@pytest.mark.parametrize("kind", list(GroupKind))
def test_every_record_is_read_once_over_ranks_and_workers(folder, kind):
    group = opened(folder, kind)
    assert group.num_samples == 23
    whole = refs(drain(group.reader(Shard(), 0)))
    assert len(set(whole)) == 23
    for ranks, workers in ((1, 2), (2, 3), (23, 1)):
        parts = [refs(drain(group.reader(s, 0))) for s in all_shards(ranks, workers)]
        # One axis in one order, cut: no worker starves, none has two records more than another.
        assert [ref for part in parts for ref in part] == whole
        assert {len(part) for part in parts} <= {23 // len(parts), 23 // len(parts) + 1}
    with pytest.raises(ConfigError, match=r"24 workers \(8 ranks x 3\), found 23 records"):
        group.reader(Shard(ranks=8, workers=3), 0)


@pytest.mark.parametrize("kind", list(GroupKind))
def test_a_reader_goes_on_exactly_from_any_cursor_and_fetches_what_it_gave(folder, kind):
    group = opened(folder, kind, readings=2)
    shard = Shard(rank=1, ranks=2)
    reader, cursors, drawn = group.reader(shard, 3), [], []
    while True:
        cursors.append(GroupCursor.model_validate_json(reader.cursor().model_dump_json()))
        if (one := reader.next()) is None:
            break
        drawn.append(one)
    assert len(drawn) == 24
    assert [one.ref.reading for one in drawn] == [0] * 12 + [1] * 12
    again = group.reader(shard, 3)
    for at, cursor in list(enumerate(cursors))[::-1]:
        again.seek(cursor)
        assert again.cursor() == cursor
        rest = [again.next() for _ in range(min(2, 24 - at))]
        assert [one.ref for one in rest] == [one.ref for one in drawn[at : at + 2]]
        if at == 24:
            assert again.next() is None
    again.seek(cursors[5])
    for one in drawn:
        assert isinstance(one.outcome, Sample)
        same(again.fetch(one.ref), one.outcome)
    assert again.cursor() == cursors[5]


def test_order_depends_on_seed_epoch_and_reading_alone(folder):
    group = opened(folder, T2I, readings=2)
    both = refs(drain(group.reader(Shard(), 0)))
    assert both == refs(drain(opened(folder, T2I, readings=2).reader(Shard(), 0)))
    orders = {tuple(both[:23]), tuple(both[23:]), tuple(refs(drain(group.reader(Shard(), 1))))}
    assert len(orders) == 3
    assert sorted(both[:23]) == sorted(both[23:])


def test_content_depends_on_the_record_and_the_reading_not_on_workers(folder):
    group = opened(folder, T2I, readings=None)
    alone = {
        one.ref: one.outcome.items[0].text.tolist()
        for reader in [group.reader(Shard(), 0)]
        for one in (reader.next() for _ in range(46))
    }
    assert len({tuple(text[:3]) for text in alone.values()}) == 2
    for shard in all_shards(2, 2):
        reader = group.reader(shard, 0)
        for one in (reader.next() for _ in range(10)):
            assert one.outcome.items[0].text.tolist() == alone[one.ref]


def test_max_samples_counts_from_the_front_in_the_order_of_paths(folder):
    group = opened(folder, T2I, max_samples=12)
    assert sorted(refs(drain(group.reader(Shard(), 0)))) == [
        ("a.parquet", 0),
        *(("b.parquet", row) for row in range(5)),
        *(("sub/c.parquet", row) for row in range(6)),
    ]
    reader = group.reader(Shard(), 0)
    with pytest.raises(DataError, match=r"expected row 6 of sub/c\.parquet"):
        reader.fetch(SampleRef(group="g", source="main", file="sub/c.parquet", row=6))


def test_lines_keep_their_numbers_over_blank_ones(folder):
    group = opened(folder, VQA)
    found = refs(drain(group.reader(Shard(), 0)))
    assert sorted(row for file, row in found if file == "b.jsonl") == [0, 3, 4, 5, 6]
    reader = group.reader(Shard(), 0)
    for file, row in (("b.jsonl", 1), ("b.jsonl", 7), ("none.jsonl", 0)):
        with pytest.raises(DataError, match=f"expected row {row} of {file}.*found none"):
            reader.fetch(SampleRef(group="g", source="main", file=file, row=row))


def test_unfit_records_are_handed_out_as_rejects_and_reading_goes_on(tmp_path):
    lines = [chat("q", "a"), "{", "[1]", '"' + "x" * 9, chat("<image>", "a"), chat("q", " ")]
    path = write_lines(tmp_path / "in.jsonl", lines)
    with (tmp_path / "in.jsonl").open("ab") as file:
        file.write(b'\xff\xfe{"a": 1}\n' + b"[" * 100_000)
    group = sample_group(VQA, path)
    job = multimodal_job(tmp_path, group)
    drawn = drain(open_group(group, job, open_tokenizer(job)).reader(Shard(), 0))
    unreadable = RejectReason.UNREADABLE_RECORD
    found = {one.ref.row: getattr(one.outcome, "reason", None) for one in drawn}
    assert found == {
        0: None,
        1: unreadable,
        2: unreadable,
        3: unreadable,
        4: RejectReason.IMAGE_COUNT,
        5: RejectReason.NOTHING_SUPERVISED,
        6: unreadable,
        7: unreadable,
    }


def test_a_text_that_is_too_long_in_any_case_is_left_out_without_encoding_it(tmp_path, monkeypatch):
    """A line of 50 MB would hold up the stream for minutes."""
    monkeypatch.setattr(making, "_LEAST_CHARACTERS", 0)
    group = sample_group(VQA, write_lines(tmp_path / "in.jsonl", [chat("q" * 640, "a" * 641)]))
    job = multimodal_job(tmp_path, group, limits=RowLimits(max_sample_tokens=10))
    tokenizer = open_tokenizer(job)
    monkeypatch.setattr(
        tokenizer, "encode", lambda text: byte_ids(text) if len(text) <= 640 else 1 / 0
    )
    (drawn,) = drain(open_group(group, job, tokenizer).reader(Shard(), 0))
    assert drawn.outcome.reason is RejectReason.TOO_MANY_TOKENS
