"""A document of ten rows through a whole preparation under each policy, and the report on it."""

import pytest

from megapack.errors import DataError
from megapack.records.drops import DropReason
from megapack.steps.drop_examples import first_drops
from megapack.steps.report import packing_report
from megapack.steps.report_details import packing_details
from megapack.steps.report_origin import origin
from megapack.steps.report_text import report_text
from tests.support.chain import prepared
from tests.support.prepare_jobs import line, plain_line, prepare_job

ROW = 32
ANSWER = " ".join(f"w{number}" for number in range(27))
"""With its headers, end tokens and a question of a word, an exchange of one row."""
TEN_ROWS = line(*[("user", "w1"), ("assistant", ANSWER)] * 10)
ONE_TURN = line(("user", "w1"), ("assistant", " ".join(["w2"] * (10 * ROW - 5))))


def made(tmp_path, record, policy):
    source = tmp_path / "a.jsonl"
    source.write_text(f"{plain_line(1)}\n{record}\n")
    job = prepare_job(
        tmp_path,
        source,
        tokenize={"long_documents": policy},
        pack={"row_length": ROW},
        validation_fraction=0.0,
    )
    ref = prepared(job)
    text = report_text(
        packing_report(ref), packing_details(ref), first_drops(ref, most=1), origin(ref)
    )
    return ref, packing_report(ref), "\n".join(text)


def test_split_makes_a_document_of_each_exchange_and_loses_nothing(tmp_path):
    ref, report, _ = made(tmp_path, TEN_ROWS, "split")
    assert (report.documents_in, report.documents_placed, report.drops.total) == (11, 11, 0)
    assert ref.num_target_tokens == 3 + 10 * 28
    assert ref.num_rows == 11


def test_truncate_keeps_the_first_row_and_counts_the_rest(tmp_path):
    ref, report, text = made(tmp_path, TEN_ROWS, "truncate")
    assert (report.documents_in, report.documents_placed, report.drops.total) == (2, 2, 0)
    assert ref.num_target_tokens == 3 + 28
    assert "1 document cut off at the end" in text
    assert f"{10 * ROW - (ROW + 1)} tokens of kept conversations in no document" in text


@pytest.mark.parametrize(
    ("record", "policy"), [(TEN_ROWS, "drop"), (ONE_TURN, "drop"), (ONE_TURN, "split")]
)
def test_drop_and_a_turn_that_cannot_be_split_are_counted_with_their_tokens(
    tmp_path, record, policy
):
    ref, report, text = made(tmp_path, record, policy)
    assert (report.documents_in, report.documents_placed) == (2, 1)
    assert dict(report.drops.documents) == {DropReason.TOO_LONG: 1}
    assert dict(report.drops.tokens) == {DropReason.TOO_LONG: 10 * ROW}
    assert "too_long: 1" in text
    assert ref.num_target_tokens == 3


def test_error_stops_and_publishes_nothing(tmp_path):
    with pytest.raises(DataError, match=rf"expected at most {ROW + 1} tokens, found {10 * ROW}"):
        made(tmp_path, TEN_ROWS, "error")
    assert not list((tmp_path / "store").glob("datasets/*/versions/*"))


def test_lengths_around_the_row_are_placed_or_dropped_with_a_reason(tmp_path):
    source = tmp_path / "a.jsonl"
    lengths = (7, ROW, ROW + 1, ROW + 2, 6)
    source.write_text(
        "\n".join(
            line(("user", "w1"), ("assistant", " ".join(["w2"] * (length - 5))))
            for length in lengths
        )
    )
    limits = {"long_documents": "drop", "max_document_tokens": 2 * ROW}
    job = prepare_job(
        tmp_path, source, tokenize=limits, pack={"row_length": ROW}, validation_fraction=0.0
    )
    ref = prepared(job)
    report = packing_report(ref)
    assert (report.documents_in, report.documents_placed) == (5, 4)
    assert dict(report.drops.documents) == {DropReason.LONGER_THAN_ROW: 1}
    assert dict(report.drops.tokens) == {DropReason.LONGER_THAN_ROW: ROW + 2}
    assert ref.num_target_tokens == sum(n - 4 for n in lengths if n <= ROW + 1)
