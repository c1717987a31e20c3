import hashlib
from datetime import date
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from megapack.errors import ConfigError, DataError, StoreError
from megapack.records.drops import DropReason
from megapack.steps.split import list_sources, split_source
from megapack.steps.tables import committed, parts
from megapack.store.conversation_table import frame_to_conversations
from megapack.store.document_frames import frame_to_drops
from megapack.store.manifest import PartKind
from tests.support.prepare_jobs import line, plain_line, prepare_job

SHARED = Path(__file__).parents[4] / "shared" / "data"


def split_all(job):
    return [split_source(job, shard) for shard in list_sources(job)]


def conversations(ref):
    return [
        one
        for part, frame in parts(committed(ref), PartKind.CONVERSATIONS)
        for one in frame_to_conversations(frame, where=part.key)
    ]


def drops(ref):
    return [
        drop for _, frame in parts(committed(ref), PartKind.DROPS) for drop in frame_to_drops(frame)
    ]


def test_records_become_conversations_or_drops_with_their_lines(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(
        "\n".join(
            [
                plain_line(1),
                "",
                "{broken",
                '{"text": "x"}',
                line(("user", "w1"), ("bot", "w2")),
                line(("assistant", "w1"), ("user", "w2")),
                line(("user", "w1"), ("assistant", " ")),
                plain_line(7),
            ]
        )
    )
    job = prepare_job(tmp_path, {"uri": str(source), "name": "toy"})
    (ref,) = split_all(job)
    found = conversations(ref)
    assert [(c.line, c.ordinal, c.source, c.format) for c in found] == [
        (0, 0, "toy", "chat_template"),
        (7, 0, "toy", "chat_template"),
    ]
    assert [(drop.line, drop.reason) for drop in drops(ref)] == [
        (2, DropReason.UNREADABLE),
        (3, DropReason.UNKNOWN_SHAPE),
        (4, DropReason.UNKNOWN_ROLE),
        (5, DropReason.BAD_ROLE_ORDER),
        (6, DropReason.EMPTY),
    ]
    manifest = committed(ref).manifest
    assert manifest.counts == {"records": 7, "conversations": 2}
    assert (ref.num_records, ref.num_dropped, ref.num_parts, ref.reused) == (2, 5, 1, False)


def test_merged_record_counts_each_of_its_conversations(tmp_path):
    source = tmp_path / "a.jsonl.packed"
    source.write_text(
        line(
            ("user", "w1"), ("assistant", "w2"),
            ("system", "w3"), ("user", "w4"), ("assistant", ""),
            ("system", "w5"), ("user", "w6"), ("assistant", "w7"),
        )
    )  # fmt: skip
    (ref,) = split_all(prepare_job(tmp_path, source))
    assert [(c.line, c.ordinal) for c in conversations(ref)] == [(0, 0), (0, 2)]
    (drop,) = drops(ref)
    assert drop.detail.startswith("conversation 1 of the record: ")


def test_mid_chat_system_message_of_a_plain_file_stays(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(line(("user", "w1"), ("assistant", "w2"), ("system", "w3"), ("user", "w4")))
    (ref,) = split_all(prepare_job(tmp_path, source))
    assert ref.num_records == 1


def test_parts_hold_at_most_the_records_of_a_shard(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(plain_line(i) for i in range(7)))
    job = prepare_job(tmp_path, source, records_per_shard=3)
    seen = []
    ref = split_source(job, list_sources(job)[0], on_progress=seen.append)
    assert ref.num_parts == 3
    assert [p.num_records for p, _ in parts(committed(ref), PartKind.CONVERSATIONS)] == [3, 3, 1]
    assert [c.line for c in conversations(ref)] == list(range(7))
    assert seen == [3, 6, 7]


def test_second_call_reads_nothing(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(plain_line(1))
    job = prepare_job(tmp_path, source)
    shard = list_sources(job)[0]
    first = split_source(job, shard)
    source.unlink()
    again = split_source(job, shard)
    assert again == first.model_copy(update={"reused": True})


def test_changed_file_or_other_format_is_another_table(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(plain_line(1))
    both = [{"uri": str(source)}, {"uri": str(source), "format": "identity"}]
    job = prepare_job(tmp_path, *both)
    first, second = split_all(job)
    assert first.uri != second.uri
    assert [conversations(ref)[0].format for ref in (first, second)] == [
        "chat_template",
        "identity",
    ]
    assert conversations(first)[0].document_id == conversations(second)[0].document_id
    source.write_text(plain_line(2))
    assert split_all(job)[0].uri != first.uri


def test_equal_input_gives_equal_bytes_and_digests(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join([plain_line(1), "{", plain_line(2)]))
    stores = [str(tmp_path / name) for name in ("one", "two")]
    refs = [split_all(prepare_job(tmp_path, source, store=store))[0] for store in stores]
    assert refs[0].digest == refs[1].digest
    found = [
        {
            part.key: hashlib.sha256((Path(ref.uri) / part.key).read_bytes()).hexdigest()
            for part in committed(ref).manifest.parts
        }
        for ref in refs
    ]
    assert found[0] == found[1]
    assert all(digest in key for key, digest in found[0].items())


@pytest.mark.parametrize("text", ['{"messages_display": "user: hi"}\n{', "{\n[", '"text"'])
def test_file_without_one_known_record_is_refused(text, tmp_path):
    source = tmp_path / "odd.jsonl"
    source.write_text(text)
    job = prepare_job(tmp_path, source)
    with pytest.raises(DataError, match=r"odd.jsonl: expected records of the shape .* Line 1: "):
        split_all(job)


def test_empty_file_is_an_empty_table(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text("\n\n")
    (ref,) = split_all(prepare_job(tmp_path, source))
    assert (ref.num_records, ref.num_parts) == (0, 0)


def test_sources_are_listed_in_the_order_given(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c/z.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(plain_line(1))
    job = prepare_job(tmp_path, tmp_path / "c", f"{tmp_path}/*.jsonl")
    assert [shard.label for shard in list_sources(job)] == ["z.jsonl", "a.jsonl", "b.jsonl"]
    with pytest.raises(ConfigError, match="found nothing"):
        list_sources(prepare_job(tmp_path, tmp_path / "none"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_flat_text_files_of_the_shared_data_are_refused(tmp_path):
    job = prepare_job(tmp_path, f"{SHARED}/*_few_shot.jsonl")
    for shard in list_sources(job):
        with pytest.raises(DataError, match="'messages_display'"):
            split_source(job, shard)


@pytest.mark.parametrize("change", ["grown", "gone"])
def test_file_that_changes_while_it_is_read_is_not_kept(tmp_path, change):
    source = tmp_path / "a.jsonl"
    source.write_text(plain_line(1) + "\n" + plain_line(2) + "\n")
    job = prepare_job(tmp_path, source, records_per_shard=1)
    (shard,) = list_sources(job)

    def interfere(_):
        if change == "grown":
            source.write_text(plain_line(3) + "\n")
        else:
            source.unlink(missing_ok=True)

    with pytest.raises(StoreError, match="changed while it was read"):
        split_source(job, shard, on_progress=interfere)
    source.write_text(plain_line(3) + "\n")
    (ref,) = split_all(job)
    assert (ref.version, ref.reused, ref.num_records) == (1, False, 1)
    (table,) = (tmp_path / "store" / "steps" / "split").glob("*/versions")
    assert table.parent.name == committed(ref).manifest.address


TURNS = '"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2"}]'


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (f'{{{TURNS},"template_kwargs":{{"x":1e999}}}}', DropReason.UNKNOWN_SHAPE),
        (f'{{{TURNS},"tools":"[NaN]"}}', DropReason.UNKNOWN_SHAPE),
        (f'{{{TURNS},"tools":"[\\"\\\\ud800\\"]"}}', DropReason.UNKNOWN_SHAPE),
        (f'{{{TURNS},"tools":"[{"1" * 5000}]"}}', DropReason.UNKNOWN_SHAPE),
        (f'{{{TURNS},"tools":"{"[" * 100000}"}}', DropReason.UNREADABLE),
        ('{"instruction":"w1","output":"w2","history":5}', DropReason.UNKNOWN_SHAPE),
    ],
)
def test_value_that_json_cannot_hold_costs_its_record_alone(tmp_path, bad, reason):
    source = tmp_path / "a.jsonl"
    source.write_text(f"{bad}\n{plain_line(1)}")
    (ref,) = split_all(prepare_job(tmp_path, source))
    assert [one.line for one in conversations(ref)] == [1]
    assert [(drop.line, drop.reason) for drop in drops(ref)] == [(0, reason)]


@pytest.mark.parametrize("value", [date(2024, 1, 1), Decimal("1.5"), b"x", float("nan")])
def test_parquet_value_that_json_cannot_hold_costs_its_record_alone(tmp_path, value):
    turns = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]
    frame = pl.DataFrame(
        {"messages": [turns, turns], "template_kwargs": [{"x": value}, {"x": None}]}
    )
    frame.write_parquet(tmp_path / "a.parquet")
    (ref,) = split_all(prepare_job(tmp_path, tmp_path / "a.parquet"))
    assert [one.line for one in conversations(ref)] == [1]
    (drop,) = drops(ref)
    assert (drop.line, drop.reason) == (0, DropReason.UNKNOWN_SHAPE)
    assert "JSON cannot hold" in drop.detail
