import os
import re
import sys

import pytest

from megapack.cli import main as cli
from megapack.steps.prepare import prepare
from tests.support.documents import documents_table, make_document
from tests.support.prepare_jobs import plain_line, prepare_job
from tests.unit.steps.test_admission import made, weighted
from tests.unit.steps.test_admission import packed as blended
from tests.unit.steps.test_pack import packed


def test_report_says_what_came_in_was_placed_and_dropped_and_why(tmp_path, capsys):
    _, _, ref = packed(tmp_path)
    assert cli.main(["report", ref.uri]) == 0
    printed = capsys.readouterr().out
    assert "came in: 12 documents\n" in printed
    assert "placed: 11 documents, in rows of 32 positions" in printed
    assert "dropped: 1 document (8.3%)\n  longer_than_row: 1, 34 tokens\n" in printed
    assert "what to do: Raise pack.row_length" in printed
    assert "first: f.jsonl:4: expected at most row_length + 1 = 33 tokens, found 34." in printed
    assert re.search(r"  s +11 +151 +100\.0%", printed)
    assert "reused" not in printed


def test_report_writes_one_html_page_with_pictures(tmp_path, capsys):
    _, _, ref = packed(tmp_path)
    file = tmp_path / "report.html"
    assert cli.main(["report", ref.uri, "--html", str(file)]) == 0
    assert capsys.readouterr().out == ""
    text = file.read_text(encoding="utf-8")
    for title in (
        "Length of documents",
        "How full rows are",
        "Share of a document that is trained",
    ):
        assert f">{title}</text>" in text
    assert "<code>longer_than_row</code>: 1 document, 34 tokens" in text
    assert '<td>longer_than_row</td><td class="n">1</td>' in text
    assert '<td>s</td><td class="n">151</td><td class="bars"><span style="width:100.0%">' in text
    assert "script-src" in text
    assert not re.search(r"(?:src|href)\s*=|url\(", text)


def test_audit_exits_with_zero_when_sound(tmp_path, capsys):
    _, _, ref = packed(tmp_path)
    assert cli.main(["audit", ref.uri, "--version", "1"]) == 0
    assert "violations=0" in capsys.readouterr().out


def test_audit_exits_with_one_when_a_law_is_broken(tmp_path, capsys):
    from megapack.store.manifest import Contents
    from megapack.store.versions import commit, read_version

    _, _, ref = packed(tmp_path)
    old = read_version(ref.uri).manifest
    contents = Contents(
        schema_id=old.schema_id,
        kind=old.kind,
        parts=old.parts,
        counts={**old.counts, "num_rows": 99},
        drops=old.drop_ledger(),
        packed=old.packed_info(),
    )
    commit(ref.uri, contents.manifest())
    assert cli.main(["audit", ref.uri]) == 1
    assert "manifest num_rows: expected" in capsys.readouterr().out


def test_missing_dataset_is_one_line_and_exit_code_two(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("megapack: ")
    assert error.count("\n") == 1


def test_report_of_something_else_names_it(tmp_path, capsys, monkeypatch):
    documents_table(str(tmp_path / "table"), [make_document(1, 5)], kept=1)
    monkeypatch.chdir(tmp_path)
    for command in ("report", "audit"):
        assert cli.main([command, "table"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("megapack: table: expected a packed dataset, found a version of")


def test_audit_of_a_missing_part_exits_with_one(tmp_path, capsys):
    from megapack.store.location import open_location
    from megapack.store.versions import read_version

    _, _, ref = packed(tmp_path)
    part = read_version(ref.uri).manifest.parts[0]
    open_location(ref.uri).delete(part.key)
    assert cli.main(["audit", ref.uri]) == 1
    captured = capsys.readouterr()
    assert f"{part.key}: expected {part.size} bytes, found nothing" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("command", ["report", "audit"])
def test_output_that_nobody_reads_on_is_no_failure(tmp_path, monkeypatch, capsys, command):
    _, _, ref = packed(tmp_path)
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert cli.main([command, ref.uri]) == 0
    assert "roken" not in capsys.readouterr().err


def test_report_lists_drops_with_file_and_line_as_editors_count(tmp_path, capsys):
    _, _, ref = packed(tmp_path)
    assert cli.main(["report", ref.uri, "--drops"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("f.jsonl:4: longer_than_row: expected at most row_length + 1 = 33")


def test_report_of_a_blend_adds_up_and_shows_what_was_asked_for(tmp_path, capsys):
    documents = [made(i, 5) for i in range(8)] + [made(i, 7, source="b") for i in range(8, 12)]
    pack = {"row_length": 32, "blend": {"unit": "epochs"}}
    ref = blended(tmp_path, documents, sources=weighted(0.5, 2.25), pack=pack)
    assert cli.main(["report", ref.uri]) == 0
    printed = capsys.readouterr().out
    assert "came in: 12 documents\n" in printed
    assert "placed: 13 documents (5 of them placed again by the blend), in rows of 32" in printed
    assert "left out as the job asks: 4 documents (33.3%)\n  left_out_by_blend: 4, 20" in printed
    assert "dropped: 0 documents (0.0%)\n" in printed
    assert re.search(r"  a +4 .* 0\.5 epochs\n  b +9 .* 2\.25 epochs\n", printed)
    assert cli.main(["report", ref.uri, "--html", str(tmp_path / "x.html")]) == 0
    text = (tmp_path / "x.html").read_text()
    assert "4 documents left out as the job asks, 0 documents dropped" in text
    assert "<td>of these, placed again by the blend</td>" in text
    assert "<td>2.25 epochs</td>" in text


def test_report_of_shares_shows_the_share_reached_on_the_training_side(tmp_path, capsys):
    documents = [made(i, 5 + i % 9) for i in range(200)]
    documents += [made(i, 5, source="b") for i in range(200, 260)]
    blend = {"unit": "documents", "total": "first_exhausted"}
    pack = {"row_length": 32, "blend": blend}
    changes = {"sources": weighted(3, 1), "pack": pack, "validation_fraction": 0.3}
    ref = blended(tmp_path, documents, **changes)
    assert cli.main(["report", ref.uri]) == 0
    printed = capsys.readouterr().out
    assert "asked for  reached (documents in train)" in printed
    (asked, reached) = re.search(r"  a .* (\d+\.\d)% +(\d+\.\d)%\n", printed).groups()
    assert asked == "75.0"
    assert abs(float(reached) - 75) < 1


def test_report_and_inspect_say_what_is_trained(tmp_path, capsys):
    (tmp_path / "chats.jsonl").write_text("".join(f"{plain_line(i)}\n" for i in range(4)))
    tokenize = {"long_documents": "split", "loss_turns": "last", "loss_parts": ["content"]}
    job = prepare_job(
        tmp_path, tmp_path / "chats.jsonl", validation_fraction=0.0, tokenize=tokenize
    )
    uri = prepare(job).dataset.uri
    line = (
        "settings: format chat_template; loss_on assistant; loss_turns last; loss_parts content; "
        "row_length 64; long_documents split"
    )
    page = tmp_path / "page.html"
    for command in ("report", "inspect"):
        assert cli.main([command, uri]) == 0
        assert f"{line}\n" in capsys.readouterr().out
        assert cli.main([command, uri, "--html", str(page)]) == 0
        assert f"{line}</p>" in page.read_text()
