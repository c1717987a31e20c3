"""Exports, read back by readers written here from the other tools' own rules."""

import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

import megapack
import megapack.steps.export as export_step
from megapack.cli.main import main
from megapack.conversation.config import TokenizeConfig
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import ConfigError, DataError, StoreError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import IGNORE_INDEX, PackLayout
from megapack.records.packed_row import PackedRow
from megapack.steps.export import export
from megapack.steps.exports.bridge import BridgeExporter
from megapack.steps.exports.formats import ExportFormat
from megapack.steps.exports.plain import PlainExporter
from tests.support.chats import chat, stored
from tests.support.rows import make_row
from tests.support.toy_dataset import chat_lines, chatml_dataset, nemotron_dataset
from tests.support.toy_tokenizers import SPECIALS


def documents_of(row):
    """(ids, learnt) of each document of a row, by a loop over positions."""
    labels = row.labels().tolist()
    for start, length in zip(row.layout.slot_starts, row.layout.lengths, strict=True):
        ids = [int(row.tokens[start + i]) for i in range(length)]
        learnt = [False] + [labels[start + i] != IGNORE_INDEX for i in range(length - 1)]
        if row.final_label is not None:
            ids.append(row.final_label)
            learnt.append(labels[start + length - 1] != IGNORE_INDEX)
        yield ids, learnt


def rows_in_stored_order(ref, split):
    from megapack.store.reader import open_dataset

    with open_dataset(ref.uri, ref.version) as dataset:
        return list(dataset.rows(split, range(dataset.num_rows(split))))


def bridge_batches(path):
    """What Megatron-Bridge's collate makes of packed Parquet, one row at a time.

    Each document loses its last id as an input and its first as a label; the stored mask is
    cut like the inputs.
    """
    for record in pl.read_parquet(path).iter_rows(named=True):
        edges = [*record["seq_start_id"], len(record["input_ids"])]
        assert len(record["loss_mask"]) == edges[-1]
        assert set(record["loss_mask"]) <= {0, 1}
        yield [
            {
                "tokens": record["input_ids"][start : end - 1],
                "labels": record["input_ids"][start + 1 : end],
                "mask": record["loss_mask"][start : end - 1],
            }
            for start, end in pairwise(edges)
        ]


def same_documents_as_bridge_reads(rows, batches, *, multiple=1):
    for row, read in zip(rows, batches, strict=True):
        for (ids, learnt), got in zip(documents_of(row), read, strict=True):
            real = len(ids) - 1
            assert got["tokens"][:real] == ids[:-1]
            assert got["labels"][:real] == ids[1:]
            assert [bool(one) for one in got["mask"][:real]] == learnt[1:]
            assert not any(got["mask"][real:])
            assert len(got["tokens"]) % multiple == 0
            assert len(got["tokens"]) - real < multiple
        assert sum(len(one["tokens"]) for one in read) <= row.layout.row_length


def full_row():
    return PackedRow(
        tokens=np.arange(1, 9),
        target_runs=[5, 8],
        layout=PackLayout(row_length=8, lengths=[8], granularity=Granularity(segment=1, row=1)),
        document_ids=("d",),
        final_label=99,
    )


def test_bridge_reads_the_same_ids_labels_and_boundaries(tmp_path):
    ref = chatml_dataset(tmp_path)
    report = export(ref, str(tmp_path / "out"), ExportFormat.BRIDGE)
    assert report.files == ("train-00000.idx.parquet", "validation-00000.idx.parquet")
    for split, name in zip(("train", "validation"), report.files, strict=True):
        rows = rows_in_stored_order(ref, split)
        same_documents_as_bridge_reads(rows, list(bridge_batches(tmp_path / "out" / name)))
    schema = pl.read_parquet_schema(tmp_path / "out" / report.files[0])
    assert schema == {
        "input_ids": pl.List(pl.Int32),
        "loss_mask": pl.List(pl.Int8),
        "seq_start_id": pl.List(pl.Int32),
    }


@pytest.mark.parametrize("multiple", [1, 4, 8])
def test_bridge_documents_divide_by_the_multiple_of_context_parallelism(tmp_path, multiple):
    rows = [
        make_row(
            [1, 7, 8, 9, 17],
            seed=seed,
            granularity=Granularity(segment=multiple, row=16),
        )
        for seed in range(3)
    ]
    exporter = BridgeExporter(multiple=multiple, pad_id=77, end_id=None)
    (tmp_path / "rows.parquet").write_bytes(exporter.file(rows).data)
    read = list(bridge_batches(tmp_path / "rows.parquet"))
    for row, batch in zip(rows, read, strict=True):
        assert sum(sum(one["mask"]) for one in batch) == row.num_target_tokens
        assert all(len(one["tokens"]) % multiple == 0 for one in batch)
        assert sum(len(one["tokens"]) for one in batch) <= row.layout.row_length


def test_bridge_keeps_the_last_label_of_a_document_of_one_token_more_than_the_row(tmp_path):
    exporter = BridgeExporter(multiple=1, pad_id=0, end_id=None)
    (tmp_path / "rows.parquet").write_bytes(exporter.file([full_row()]).data)
    same_documents_as_bridge_reads([full_row()], list(bridge_batches(tmp_path / "rows.parquet")))


def test_bridge_counts_the_targets_that_its_reader_masks_after_an_end_token(tmp_path):
    """nemotron-nano-v2 learns the newline after its end token; the reader does not."""
    ref = nemotron_dataset(tmp_path, form="nemotron-nano-v2", lines=chat_lines(12))
    report = export(ref, str(tmp_path / "out"), ExportFormat.BRIDGE)
    answers = sum(line.count('"assistant"') for line in chat_lines(12))
    assert list(report.notes.values()) == [answers]
    assert "input is the end token" in next(iter(report.notes))


def test_plain_rows_read_back_are_the_documents(tmp_path):
    ref = chatml_dataset(tmp_path)
    report = export(ref, str(tmp_path / "out"), ExportFormat.HF)
    frame = pl.read_parquet(tmp_path / "out" / "train-*.parquet")
    assert frame.columns == ["input_ids", "labels", "position_ids", "seq_lengths"]
    rows = rows_in_stored_order(ref, "train")
    for row, record in zip(rows, frame.iter_rows(named=True), strict=True):
        documents = list(documents_of(row))
        assert record["input_ids"] == [i for ids, _ in documents for i in ids]
        assert record["labels"] == [
            i if one else IGNORE_INDEX
            for ids, learnt in documents
            for i, one in zip(ids, learnt, strict=True)
        ]
        assert record["position_ids"] == [p for ids, _ in documents for p in range(len(ids))]
        assert record["seq_lengths"] == [len(ids) for ids, _ in documents]
    assert report.num_rows == frame.height + pl.read_parquet(tmp_path / "out/validation-*").height


def test_plain_rows_keep_a_last_label(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(PlainExporter().file([full_row()]).data)
    record = next(pl.read_parquet(tmp_path / "rows.parquet").iter_rows(named=True))
    assert record["input_ids"] == [*range(1, 9), 99]
    assert record["labels"] == [IGNORE_INDEX] * 6 + [7, 8, 99]


def test_exports_hold_what_open_hands_out(tmp_path):
    ref = chatml_dataset(tmp_path)
    export(ref, str(tmp_path / "out"), ExportFormat.HF)
    stored_rows = {
        tuple(ids) for ids in pl.read_parquet(tmp_path / "out" / "train-*")["input_ids"].to_list()
    }
    opened = megapack.open(ref.uri)
    assert {tuple(one["input_ids"].tolist()) for one in opened.hf()} == stored_rows


@pytest.mark.parametrize("form", ["nemotron-h-aligned", "nemotron-nano-v2", "identity"])
def test_packed_records_are_tokenized_to_the_same_rows_again(tmp_path, form):
    lines = chat_lines(20)
    ref = nemotron_dataset(tmp_path, form=form, lines=lines)
    report = export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)
    records = [
        json.loads(line) for line in (tmp_path / "out" / report.files[0]).read_text().splitlines()
    ]
    rows = rows_in_stored_order(ref, "train")
    config = TokenizeConfig(
        format=form,
        long_documents="error",
        loss_on="all" if form == "identity" else "assistant",
    )
    files = read_tokenizer_files(str(tmp_path / "tokenizer"))
    again = ConversationTokenizer(encoder=HuggingFaceEncoder(files), config=config, limit=10**6)
    for row, record in zip(rows, records, strict=True):
        cuts = [i for i, m in enumerate(record["messages"]) if m["role"] == "system"]
        assert cuts[0] == 0
        short = {"system": "s", "user": "u", "assistant": "a"}
        chats = [
            chat(*[(short[m["role"]], m["content"]) for m in record["messages"][start:end]])
            for start, end in zip(cuts, [*cuts[1:], None], strict=True)
        ]
        outcome = again.tokenize([stored(one, form=form) for one in chats])
        got = [(d.tokens.tolist(), d.num_target_tokens) for d in outcome.documents]
        assert got == [(ids, sum(learnt)) for ids, learnt in documents_of(row)]
    placed = {json.dumps(one) for record in records for one in [record["messages"]]}
    assert len(placed) == len(rows)


def test_packed_records_put_the_only_conversation_without_a_system_message_first(tmp_path):
    lines = [*chat_lines(3), *chat_lines(1, seed=5, system=False)]
    ref = nemotron_dataset(
        tmp_path, form="nemotron-nano-v2", lines=lines, pack={"row_length": 2048}
    )
    report = export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)
    record = json.loads((tmp_path / "out" / report.files[0]).read_text())
    roles = [message["role"] for message in record["messages"]]
    assert roles[0] == "user"
    assert roles.count("system") == 3


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (chat_lines(4, system=False), "system message at its head"),
        (
            [
                json.dumps(
                    {
                        "messages": [
                            {"role": "system", "content": "w1"},
                            {"role": "user", "content": "w2"},
                            {"role": "assistant", "content": "w3"},
                            {"role": "system", "content": "w4"},
                            {"role": "user", "content": "w5"},
                            {"role": "assistant", "content": "w6"},
                        ]
                    }
                )
            ],
            "a system message after the first message",
        ),
        (
            [
                json.dumps(
                    {
                        "messages": [
                            {"role": "system", "content": "w1"},
                            {"role": "user", "content": "w2"},
                            {"role": "assistant", "content": "w3", "train": False},
                            {"role": "user", "content": "w5"},
                            {"role": "assistant", "content": "w6"},
                        ]
                    }
                )
            ],
            "loss switches",
        ),
    ],
    ids=["no system message", "second system message", "switches"],
)
def test_packed_records_refuse_what_a_loader_would_cut_or_read_otherwise(tmp_path, lines, found):
    ref = nemotron_dataset(tmp_path, form="nemotron-nano-v2", lines=lines)
    with pytest.raises(DataError, match=found):
        export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_packed_records_refuse_formats_and_supervision_that_loaders_do_not_have(tmp_path):
    ref = chatml_dataset(tmp_path / "a")
    with pytest.raises(ConfigError, match="found format 'chat_template'"):
        export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)
    tokenize = {"format": "nemotron-nano-v2", "long_documents": "drop", "loss_on": "all"}
    ref = nemotron_dataset(
        tmp_path / "b", form="nemotron-nano-v2", lines=chat_lines(3), tokenize=tokenize
    )
    with pytest.raises(ConfigError, match="loss_on = all; under format nemotron-nano-v2"):
        export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)


def test_packed_records_refuse_pieces_of_conversations(tmp_path):
    tokenize = {
        "format": "nemotron-nano-v2",
        "long_documents": "split",
        "max_document_tokens": 150,
    }
    ref = nemotron_dataset(
        tmp_path, form="nemotron-nano-v2", lines=chat_lines(8), tokenize=tokenize
    )
    with pytest.raises(ConfigError, match="pieces of split conversations"):
        export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)


def test_packed_records_refuse_when_the_conversations_are_gone(tmp_path):
    import shutil

    ref = nemotron_dataset(tmp_path, form="nemotron-nano-v2", lines=chat_lines(3))
    shutil.rmtree(tmp_path / "store" / "steps" / "split")
    with pytest.raises(ConfigError, match="one is gone"):
        export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)


def test_files_are_cut_by_tokens_and_hold_every_row_once(tmp_path, monkeypatch):
    ref = chatml_dataset(tmp_path)
    whole = export(ref, str(tmp_path / "whole"), ExportFormat.HF)
    monkeypatch.setattr(export_step, "FILE_TOKENS", 128)
    seen = []
    cut = export(ref, str(tmp_path / "cut"), ExportFormat.HF, on_rows=seen.append)
    assert len(cut.files) > len(whole.files)
    assert cut.num_rows == whole.num_rows == seen[-1]
    assert seen == sorted(set(seen))
    for split in ("train", "validation"):
        one, many = (pl.read_parquet(tmp_path / name / f"{split}-*") for name in ("whole", "cut"))
        assert one.equals(many)


def test_the_same_dataset_is_exported_to_the_same_bytes(tmp_path):
    ref = chatml_dataset(tmp_path)
    for form in (ExportFormat.BRIDGE, ExportFormat.HF):
        files = []
        for name in ("one", "two"):
            report = export(ref, str(tmp_path / f"{form}-{name}"), form)
            folder = tmp_path / f"{form}-{name}"
            files.append([(folder / file).read_bytes() for file in report.files])
        assert files[0] == files[1]


def test_an_export_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    ref = chatml_dataset(tmp_path)

    def fails(self, rows):
        raise StoreError("out of space")

    monkeypatch.setattr(PlainExporter, "file", fails)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StoreError, match="out of space"):
        export(ref, str(tmp_path / "out"), ExportFormat.HF)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_taken_place_is_refused(tmp_path):
    ref = chatml_dataset(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"found 1 objects, such as mine\.txt"):
        export(ref, str(tmp_path / "out"), ExportFormat.HF)
    assert (tmp_path / "out" / "mine.txt").read_text() == "x"


def test_the_command_exports_and_says_what_it_wrote(tmp_path, capsys):
    ref = chatml_dataset(tmp_path)
    assert main(["export", ref.uri, str(tmp_path / "out"), "--to", "hf"]) == 0
    assert "export to=hf" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "export.json").read_text())
    assert summary["digest"] == ref.digest
    assert main(["export", ref.uri, str(tmp_path / "out"), "--to", "hf"]) == 2
    assert "expected nothing at" in capsys.readouterr().err


def test_end_tokens_of_answers_are_learnt_in_every_export(tmp_path):
    """Also when the pad token is the end token."""
    ref = chatml_dataset(
        tmp_path, special={"pad_token": "<eot>"}, pack_for={"context_parallel_size": 2}
    )
    end, opens = SPECIALS["<eot>"], SPECIALS["<a>"]
    export(ref, str(tmp_path / "hf"), ExportFormat.HF)
    export(ref, str(tmp_path / "bridge"), ExportFormat.BRIDGE)
    for record in pl.read_parquet(tmp_path / "hf" / "*.parquet").iter_rows(named=True):
        assert record["labels"].count(end) == record["input_ids"].count(opens)
    for batch in bridge_batches(tmp_path / "bridge" / "*.parquet"):
        for one in batch:
            learnt = [label for label, on in zip(one["labels"], one["mask"], strict=True) if on]
            assert learnt.count(end) == one["tokens"].count(opens)
