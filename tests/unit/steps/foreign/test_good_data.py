"""Good packed data of every kind raises no alarm, with the tokenizer and without."""

import pytest

from megapack.conversation.config import LossOn, PromptFormat
from megapack.errors import ConfigError
from megapack.steps.export import export
from megapack.steps.exports.formats import ExportFormat
from megapack.steps.foreign.audit import ForeignAudit, PackedShape, audit_foreign
from tests.support.foreign_data import read_rows, write_rows
from tests.support.toy_dataset import chat_lines, chatml_dataset, nemotron_dataset

SHAPES = {ExportFormat.BRIDGE: PackedShape.BRIDGE, ExportFormat.HF: PackedShape.PLAIN}


def made(tmp_path, form, **changes):
    if form == "chat_template":
        return chatml_dataset(tmp_path, **changes)
    return nemotron_dataset(tmp_path, form=form, lines=chat_lines(30), **changes)


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("to", [ExportFormat.BRIDGE, ExportFormat.HF])
@pytest.mark.parametrize(
    "form", ["chat_template", "nemotron-h-aligned", "nemotron-nano-v2", "identity"]
)
def test_exports_raise_no_alarm(tmp_path, form, to, cp):
    ref = made(tmp_path, form, pack_for={"context_parallel_size": cp})
    exported = export(ref, str(tmp_path / "out"), to)
    loss_on = LossOn.ALL if form == "identity" else LossOn.ASSISTANT
    for tokenizer in (None, str(tmp_path / "tokenizer")):
        report = audit_foreign(
            ForeignAudit(
                uri=str(tmp_path / "out"),
                tokenizer=tokenizer,
                format=PromptFormat(form),
                loss_on=loss_on,
            )
        )
        assert report.violations == ()
        assert report.shape is SHAPES[to]
        assert report.num_rows == exported.num_rows
        assert (len(report.unchecked) > 0) == (tokenizer is None)


@pytest.mark.parametrize("form", ["nemotron-h-aligned", "nemotron-nano-v2", "identity"])
def test_packed_records_raise_no_alarm(tmp_path, form):
    ref = made(tmp_path, form)
    export(ref, str(tmp_path / "out"), ExportFormat.PACKED_JSONL)
    for tokenizer in (None, str(tmp_path / "tokenizer")):
        report = audit_foreign(
            ForeignAudit(
                uri=str(tmp_path / "out"),
                tokenizer=tokenizer,
                format=PromptFormat(form),
                loss_on=LossOn.ALL if form == "identity" else LossOn.ASSISTANT,
                row_length=512,
            )
        )
        assert report.violations == ()
        assert report.shape is PackedShape.MESSAGES
        assert (len(report.unchecked) > 0) == (tokenizer is None)


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".arrow", ".pq"])
def test_other_forms_of_files_are_read(tmp_path, suffix):
    ref = chatml_dataset(tmp_path)
    to = ExportFormat.BRIDGE if suffix == ".npy" else ExportFormat.HF
    export(ref, str(tmp_path / "out"), to)
    rows = read_rows(tmp_path / "out")
    write_rows(tmp_path / "other" / f"rows{suffix}", rows)
    report = audit_foreign(
        ForeignAudit(uri=str(tmp_path / "other"), tokenizer=str(tmp_path / "tokenizer"))
    )
    assert report.violations == report.unchecked == ()
    assert report.num_rows == len(rows)


def test_padding_at_row_ends_raises_no_alarm_when_the_pad_token_is_the_end_token(tmp_path):
    """Rows padded later: by position with the mask of attention, or by length."""
    ref = chatml_dataset(tmp_path, special={"pad_token": "<eot>"})
    export(ref, str(tmp_path / "out"), ExportFormat.HF)
    rows = []
    for row in read_rows(tmp_path / "out"):
        pads = 70 - len(row["input_ids"])
        rows.append(
            {
                "input_ids": row["input_ids"] + [5] * pads,
                "labels": row["labels"] + [-100] * pads,
                "position_ids": row["position_ids"] + list(range(pads)),
                "seq_lengths": row["seq_lengths"],
            }
        )
    uri = write_rows(tmp_path / "padded.parquet", rows)
    for tokenizer in (None, str(tmp_path / "tokenizer")):
        assert audit_foreign(ForeignAudit(uri=uri, tokenizer=tokenizer)).violations == ()


def test_boundaries_may_be_said_in_any_of_the_known_ways(tmp_path):
    ref = chatml_dataset(tmp_path)
    export(ref, str(tmp_path / "out"), ExportFormat.HF)
    kinds = {"positions": [], "offsets": [], "numbers": [], "masks": []}
    for row in read_rows(tmp_path / "out"):
        lengths = row["seq_lengths"]
        offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        numbers = [i + 1 for i, length in enumerate(lengths) for _ in range(length)]
        plain = {"input_ids": row["input_ids"], "labels": row["labels"]}
        trained = [int(label != -100) for label in row["labels"]]
        kinds["positions"].append(plain | {"position_ids": row["position_ids"]})
        kinds["offsets"].append(plain | {"cu_seqlens": [*offsets, offsets[-1], offsets[-1]]})
        kinds["numbers"].append(
            {name: [*column, 0] for name, column in (plain | {"attention_mask": numbers}).items()}
        )
        kinds["masks"].append(
            {
                "input_ids": row["input_ids"],
                "assistant_masks": trained,
                "completion_mask": [1] * len(trained),
                "seq_lengths": lengths,
            }
        )
    for name, rows in kinds.items():
        for row in rows if name == "numbers" else []:
            row["labels"][-1] = -100
        uri = write_rows(tmp_path / f"{name}.parquet", rows)
        report = audit_foreign(ForeignAudit(uri=uri, tokenizer=str(tmp_path / "tokenizer")))
        assert report.violations == (), name
        assert report.num_rows == len(rows)


def test_what_cannot_be_checked_is_said(tmp_path):
    ref = chatml_dataset(tmp_path)
    export(ref, str(tmp_path / "out"), ExportFormat.HF)
    rows = [
        {name: row[name] for name in ("input_ids", "labels")} for row in read_rows(tmp_path / "out")
    ]
    report = audit_foreign(ForeignAudit(uri=write_rows(tmp_path / "rows.parquet", rows)))
    assert report.violations == ()
    assert any("boundaries" in what for what in report.unchecked)
    assert any("--tokenizer" in what for what in report.unchecked)
    assert report.lines()[-1].startswith("audit data='Hugging Face packed rows'")


def test_data_of_no_known_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="found nothing"):
        audit_foreign(ForeignAudit(uri=str(tmp_path / "absent")))
    (tmp_path / "rows.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(ConfigError, match="found text"):
        audit_foreign(ForeignAudit(uri=str(tmp_path / "rows.jsonl")))
    (tmp_path / "empty.jsonl").write_text("no json\n")
    with pytest.raises(ConfigError, match="no record that can be read"):
        audit_foreign(ForeignAudit(uri=str(tmp_path / "empty.jsonl")))
