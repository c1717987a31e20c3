"""Each fault, planted alone in otherwise good data, is found, named and placed, and nothing else.

The good data are exports of toy chats on TW: `<a>` (4) opens an answer, `<eot>` (5) ends it.
"""

import json
from itertools import pairwise

import numpy as np
import pytest

from megapack.cli.main import main
from megapack.conversation.config import LossOn
from megapack.steps.export import export
from megapack.steps.exports.formats import ExportFormat
from megapack.steps.foreign.audit import ForeignAudit, audit_foreign
from megapack.steps.foreign.faults import Fault
from tests.support.foreign_data import answers, planted, read_rows, write_rows
from tests.support.toy_dataset import chatml_dataset

IGNORED = -100
PAD, END, OPEN = 0, 5, 4
ROW = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A dataset for cp 2, so that Bridge documents are padded, and its exports."""
    folder = tmp_path_factory.mktemp("data")
    ref = chatml_dataset(
        folder, chats=60, special={"pad_token": "<eot>"}, pack_for={"context_parallel_size": 2}
    )
    for to in (ExportFormat.HF, ExportFormat.BRIDGE):
        export(ref, str(folder / to), to)
    return folder


def found(tmp_path, data, rows, *, tokenizer=True, **changes):
    uri = write_rows(tmp_path / "rows.parquet", rows)
    folder = str(data / "tokenizer") if tokenizer else None
    return audit_foreign(ForeignAudit(uri=uri, tokenizer=folder, **changes))


def only(report, fault, *, count=1, says=()):
    """The report has this fault alone, that often, and its first line says these things."""
    assert dict(report.counts) == {fault: count}
    assert report.violations[0].startswith(f"{fault} rows.parquet row {ROW}")
    for text in says:
        assert text in report.violations[0]


def relabel(row, mask):
    row["labels"] = [i if on else IGNORED for i, on in zip(row["input_ids"], mask, strict=True)]


def hf_mask(row):
    return [label != IGNORED for label in row["labels"]]


def first_answer(row):
    """Start and end of the first answer, in tokens."""
    return answers(hf_mask(row))[0]


# A fault with one way to plant it in Hugging Face rows, and what its line says.


def loses_an_end_token(row):
    row["labels"][first_answer(row)[1] - 1] = IGNORED


def loses_all_end_tokens(row):
    row["labels"] = [IGNORED if label == END else label for label in row["labels"]]


def rolled(row, by):
    """The mask of every document moved by one, and none over its edge."""
    mask = np.array(hf_mask(row))
    edges = np.cumsum([0, *row["seq_lengths"]])
    for start, end in pairwise(edges):
        mask[start:end] = np.roll(mask[start:end], by)
        mask[start] = False
    relabel(row, mask.tolist())


def starts_one_late(row):
    rolled(row, 1)


def starts_one_early(row):
    rolled(row, -1)


def crosses(row):
    start = row["seq_lengths"][0]
    row["labels"][start] = row["input_ids"][start]


def positions_run_on(row):
    row["position_ids"] = list(range(len(row["position_ids"])))


def lengths_do_not_add_up(row):
    row["seq_lengths"][-1] -= 1


def mask_is_all_ones(row):
    row["labels"] = list(row["input_ids"])
    starts = np.cumsum([0, *row["seq_lengths"][:-1]])
    for start in starts:
        row["labels"][start] = IGNORED


def mask_is_all_zeros(row):
    row["labels"] = [IGNORED] * len(row["labels"])


def labels_are_shifted_already(row):
    row["labels"] = [*row["labels"][1:], IGNORED]


def a_label_is_another_id(row):
    at = first_answer(row)[0]
    row["labels"][at] += 1


def an_id_is_too_large(row):
    row["input_ids"][0] = 4000


def positions_are_shorter(row):
    row["position_ids"].pop()


@pytest.mark.parametrize("tokenizer", [True, False], ids=["tokenizer", "no tokenizer"])
@pytest.mark.parametrize(
    ("plant", "fault", "says"),
    [
        (loses_an_end_token, Fault.LOST_END_TOKEN, ["document 0", "never learns to stop"]),
        (starts_one_late, Fault.SHIFTED_MASK, ["document 0", "one token late"]),
        (starts_one_early, Fault.SHIFTED_MASK, ["document 0", "one token early"]),
        (crosses, Fault.LABEL_CROSSES_DOCUMENTS, ["learnt from the document before it"]),
        (positions_run_on, Fault.BAD_POSITIONS, ["document 1", "counted from 0"]),
        (lengths_do_not_add_up, Fault.BAD_BOUNDARIES, ["add up to"]),
        (mask_is_all_ones, Fault.ALL_TRAINED, ["document 0"]),
        (mask_is_all_zeros, Fault.NOTHING_TRAINED, ["document 0"]),
        (labels_are_shifted_already, Fault.SHIFTED_LABELS, ["shifted twice"]),
        (a_label_is_another_id, Fault.LABEL_VALUE, ["the id at its position"]),
        (positions_are_shorter, Fault.LENGTHS_DIFFER, ["position_ids"]),
    ],
)
def test_a_fault_in_one_plain_row_is_found_alone(tmp_path, data, plant, fault, says, tokenizer):
    rows = planted(read_rows(data / "hf"), ROW, plant)
    report = found(tmp_path, data, rows, tokenizer=tokenizer)
    documents = len(rows[ROW]["seq_lengths"])
    expected = {
        Fault.BAD_POSITIONS: documents - 1,
        Fault.ALL_TRAINED: documents,
        Fault.NOTHING_TRAINED: documents,
        Fault.SHIFTED_MASK: len(answers(hf_mask(read_rows(data / "hf")[ROW]))),
    }
    only(report, fault, count=expected.get(fault, 1), says=says)


def test_an_id_outside_the_vocabulary_is_found_with_the_tokenizer(tmp_path, data):
    rows = planted(read_rows(data / "hf"), ROW, an_id_is_too_large)
    only(found(tmp_path, data, rows), Fault.ID_OUTSIDE_VOCABULARY, says=["found 4000"])
    without = found(tmp_path, data, rows, tokenizer=False)
    assert not without.counts
    assert any("ids outside the vocabulary" in what for what in without.unchecked)


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (loses_all_end_tokens, Fault.LOST_END_TOKEN),
        (starts_one_late, Fault.SHIFTED_MASK),
        (starts_one_early, Fault.SHIFTED_MASK),
    ],
)
def test_a_fault_in_every_answer_is_found_with_the_tokenizer(tmp_path, data, plant, fault):
    rows = read_rows(data / "hf")
    number = sum(len(answers(hf_mask(row))) for row in rows)
    for row in rows:
        plant(row)
    report = found(tmp_path, data, rows)
    assert dict(report.counts) == {fault: number}
    assert report.violations[-1] == f"{fault} and {number - 10} more"
    without = found(tmp_path, data, rows, tokenizer=False)
    assert any("throughout" in what for what in without.unchecked)
    if plant is starts_one_late:
        assert dict(without.counts) == {fault: number}


def padded(rows, length=70):
    """Rows padded later to one length, with the end token, which is the pad token too."""
    for row in rows:
        pads = length - len(row["input_ids"])
        row["input_ids"] += [END] * pads
        row["labels"] += [IGNORED] * pads
        row["position_ids"] += list(range(pads))
    return rows


@pytest.mark.parametrize("tokenizer", [True, False], ids=["tokenizer", "no tokenizer"])
def test_padding_that_trains_is_found_also_where_the_pad_token_is_the_end_token(
    tmp_path, data, tokenizer
):
    def trains(row):
        row["labels"][-3:] = row["input_ids"][-3:]

    rows = planted(padded(read_rows(data / "hf")), ROW, trains)
    report = found(tmp_path, data, rows, tokenizer=tokenizer)
    only(report, Fault.PADDING_TRAINS, says=["3 of"])


def test_padding_that_trains_is_found_by_the_mask_of_attention(tmp_path, data):
    rows = read_rows(data / "hf")
    for row in rows:
        row["attention_mask"] = [1] * len(row["input_ids"]) + [0, 0]
        row["input_ids"] += [PAD, PAD]
        row["labels"] += [IGNORED, IGNORED]
        row["position_ids"] += [0, 1]

    def trains(row):
        row["labels"][-1] = PAD

    report = found(tmp_path, data, planted(rows, ROW, trains), tokenizer=False)
    only(report, Fault.PADDING_TRAINS, says=["1 of 2"])


def test_padding_at_position_0_is_found(tmp_path, data):
    """Trainers that take boundaries from positions read each such pad as a document."""
    rows = [
        {name: row[name] for name in ("input_ids", "labels", "position_ids")}
        for row in read_rows(data / "hf")
    ]

    def pads(row):
        row["input_ids"] += [PAD] * 4096
        row["labels"] += [IGNORED] * 4096
        row["position_ids"] += [0] * 4096

    report = found(tmp_path, data, planted(rows, ROW, pads))
    only(report, Fault.BAD_POSITIONS, says=["4096 documents of one token"])


def test_positions_that_restart_from_the_second_document_on_alone_are_found(tmp_path, data):
    """Documents numbered by the mask of attention; the third runs on from the second."""
    rows = []
    for row in read_rows(data / "hf"):
        numbers = [i + 1 for i, n in enumerate(row["seq_lengths"]) for _ in range(n)]
        rows.append({name: row[name] for name in row if name != "seq_lengths"})
        rows[-1]["attention_mask"] = numbers

    def runs_on(row):
        second = row["attention_mask"].index(2)
        count = len(row["position_ids"]) - second
        row["position_ids"][second:] = list(range(5, 5 + count))

    report = found(tmp_path, data, planted(rows, ROW, runs_on))
    assert set(report.counts) == {Fault.BAD_POSITIONS}
    assert "document 1" in report.violations[0]


@pytest.mark.parametrize("value", [2, -1, 151643])
@pytest.mark.parametrize("name", ["assistant_masks", "completion_mask"])
def test_a_mask_value_other_than_0_and_1_is_found(tmp_path, data, name, value):
    rows = [
        {
            "input_ids": row["input_ids"],
            name: [int(on) for on in hf_mask(row)],
            "seq_lengths": row["seq_lengths"],
        }
        for row in read_rows(data / "hf")
    ]

    def odd(row):
        row[name][2] = value

    report = found(tmp_path, data, planted(rows, ROW, odd))
    only(report, Fault.MASK_VALUE, says=[f"{name}[2]", f"found {value}"])


def test_rows_without_labels_or_masks_train_on_everything(tmp_path, data):
    rows = [
        {"input_ids": row["input_ids"], "seq_lengths": row["seq_lengths"]}
        for row in read_rows(data / "hf")
    ]
    assert set(found(tmp_path, data, rows).counts) == {Fault.ALL_TRAINED}
    assert not found(tmp_path, data, rows, loss_on=LossOn.ALL).counts


def test_a_token_that_does_not_train_is_found_where_all_should(tmp_path, data):
    rows = read_rows(data / "hf")
    for row in rows:
        mask_is_all_ones(row)

    def end_is_lost(row):
        row["labels"][-1] = IGNORED

    def hole(row):
        row["labels"][3] = IGNORED

    for plant, fault in ((end_is_lost, Fault.LOST_END_TOKEN), (hole, Fault.NOT_ALL_TRAINED)):
        report = found(tmp_path, data, planted(rows, ROW, plant), loss_on=LossOn.ALL)
        only(report, fault)


# Megatron-Bridge: the mask is target-aligned, so value t decides on id t + 1.


def bridge_answer(row):
    return answers(row["loss_mask"])[0]


def bridge_loses_an_end_token(row):
    row["loss_mask"][bridge_answer(row)[1] - 1] = 0


def bridge_mask_is_token_aligned(row):
    """What a mask is before it is rolled by one."""
    row["loss_mask"] = [0, *row["loss_mask"][:-1]]


def bridge_mask_is_rolled_twice(row):
    row["loss_mask"] = [*row["loss_mask"][1:], 0]


def bridge_boundaries_fall(row):
    row["seq_start_id"] = [0, len(row["input_ids"]) - 1, 3]


def bridge_boundary_stands_beyond_the_end(row):
    row["seq_start_id"][-1] = len(row["input_ids"])


def bridge_boundaries_do_not_begin_at_0(row):
    row["seq_start_id"][0] = 1


def bridge_mask_is_padded_with_the_end_token(row):
    row["loss_mask"][-1] = 151643


def bridge_mask_is_shorter(row):
    row["loss_mask"].pop()


def bridge_is_all_ones(row):
    row["loss_mask"] = [1] * len(row["loss_mask"])


def bridge_is_all_zeros(row):
    row["loss_mask"] = [0] * len(row["loss_mask"])


@pytest.mark.parametrize("suffix", [".parquet", ".npy"])
@pytest.mark.parametrize("tokenizer", [True, False], ids=["tokenizer", "no tokenizer"])
@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (bridge_loses_an_end_token, Fault.LOST_END_TOKEN),
        (bridge_mask_is_token_aligned, Fault.SHIFTED_MASK),
        (bridge_mask_is_rolled_twice, Fault.SHIFTED_MASK),
        (bridge_boundaries_fall, Fault.BAD_BOUNDARIES),
        (bridge_boundary_stands_beyond_the_end, Fault.BAD_BOUNDARIES),
        (bridge_boundaries_do_not_begin_at_0, Fault.BAD_BOUNDARIES),
        (bridge_mask_is_padded_with_the_end_token, Fault.MASK_VALUE),
        (bridge_mask_is_shorter, Fault.LENGTHS_DIFFER),
        (bridge_is_all_zeros, Fault.NOTHING_TRAINED),
    ],
)
def test_a_fault_in_one_bridge_row_is_found_alone(tmp_path, data, plant, fault, tokenizer, suffix):
    rows = planted(read_rows(data / "bridge"), ROW, plant)
    uri = write_rows(tmp_path / f"rows{suffix}", rows)
    folder = str(data / "tokenizer") if tokenizer else None
    report = audit_foreign(ForeignAudit(uri=uri, tokenizer=folder))
    # A mask that comes late also falls on the padding behind the last answer.
    assert set(report.counts) - {Fault.PADDING_TRAINS} == {fault}
    assert report.violations[0].startswith(f"{fault} rows{suffix} row {ROW}")


def test_bridge_rows_of_ones_train_prompts_and_padding(tmp_path, data):
    rows = planted(read_rows(data / "bridge"), ROW, bridge_is_all_ones)
    report = found(tmp_path, data, rows)
    assert set(report.counts) <= {Fault.ALL_TRAINED, Fault.PADDING_TRAINS}
    assert Fault.ALL_TRAINED in report.counts


def test_bridge_padding_that_trains_is_found(tmp_path, data):
    """The end token pads; of several at a document's end the first one may be its own."""
    rows = read_rows(data / "bridge")
    number, at = next(
        (number, end)
        for number, row in enumerate(rows)
        for end in [*row["seq_start_id"][1:], len(row["input_ids"])]
        if row["input_ids"][end - 3 : end] == [END] * 3
    )

    def trains(row):
        row["loss_mask"][at - 2] = 1

    report = found(tmp_path, data, planted(rows, number, trains))
    assert dict(report.counts) == {Fault.PADDING_TRAINS: 1}
    assert f"row {number} " in report.violations[0]


def test_the_value_at_the_last_id_of_a_bridge_document_says_nothing(tmp_path, data):
    """The reader never looks at it, and its own preparation leaves ones there."""
    rows = read_rows(data / "bridge")
    for row in rows:
        for end in [*row["seq_start_id"][1:], len(row["input_ids"])]:
            row["loss_mask"][end - 1] = 1
    assert not found(tmp_path, data, rows).counts


def test_a_begin_token_inside_a_document_is_a_lost_boundary(tmp_path, data):

    from tests.support.toy_dataset import WORDS
    from tests.support.toy_tokenizers import (
        MARKED_TEMPLATE,
        save_tokenizer,
        with_bos,
        words_tokenizer,
    )

    tokenizer = save_tokenizer(
        with_bos(words_tokenizer(WORDS)),
        tmp_path / "tokenizer",
        template=MARKED_TEMPLATE,
        eos_token="<eot>",
        bos_token="</s>",
    )
    rows = read_rows(data / "hf")
    for row in rows:
        edges = np.cumsum([0, *row["seq_lengths"]])
        for name, value in (("input_ids", 2), ("labels", IGNORED)):
            pieces = [[value, *row[name][a:b]] for a, b in pairwise(edges)]
            row[name] = [one for piece in pieces for one in piece]
        row["seq_lengths"] = [n + 1 for n in row["seq_lengths"]]
        del row["position_ids"]
    uri = write_rows(tmp_path / "good.parquet", rows)
    assert not audit_foreign(ForeignAudit(uri=uri, tokenizer=tokenizer)).counts

    def merged(row):
        first, second, *others = row["seq_lengths"]
        row["seq_lengths"] = [first + second, *others]

    uri = write_rows(tmp_path / "rows.parquet", planted(rows, ROW, merged))
    report = audit_foreign(ForeignAudit(uri=uri, tokenizer=tokenizer))
    only(report, Fault.BAD_BOUNDARIES, says=["a boundary is missing"])
    assert json.dumps(report.lines())


def test_the_command_exits_with_1_and_says_which_row_and_what_was_expected(tmp_path, data, capsys):
    rows = planted(read_rows(data / "hf"), ROW, loses_an_end_token)
    uri = write_rows(tmp_path / "rows.parquet", rows)
    options = ["audit", uri, "--tokenizer", str(data / "tokenizer")]
    assert main(options) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"lost_end_token rows.parquet row {ROW} document 0 position ")
    assert "expected the end of the answer, id 5, learnt" in first
    assert last.endswith("violations=1 lost_end_token=1")
    good = write_rows(tmp_path / "good.parquet", read_rows(data / "hf"))
    assert main(["audit", good, "--tokenizer", str(data / "tokenizer")]) == 0
    assert main(["audit", str(data / "store" / "datasets" / "dataset")]) == 0
