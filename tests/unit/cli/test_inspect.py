import os
import re
import sys
from pathlib import Path

import pytest

from megapack.cli import main as cli
from megapack.steps.prepare import prepare
from tests.support.documents import documents_table, make_document
from tests.support.prepare_jobs import line, plain_line, prepare_job


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset of twenty short conversations and three that are dropped; its job."""
    folder = tmp_path_factory.mktemp("made")
    lines = [plain_line(number) for number in range(20)]
    lines += ["no json", line(("user", "w1"), ("narrator", "w2")), line(("user", "w3"))]
    source = folder / "chats.jsonl"
    source.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    job = prepare_job(folder, source, validation_fraction=0.0, pack={"row_length": 32})
    return job, prepare(job).dataset


def inspected(capsys, *arguments, code=0):
    assert cli.main(["inspect", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def documents_in(text):
    return re.findall(r"document ([0-9a-f]{32})", text)


def test_inspect_shows_three_documents_with_trained_text_and_place(made, capsys):
    _, ref = made
    text = inspected(capsys, ref.uri)
    assert len(documents_in(text)) == 3
    assert "«trained: tokens the model learns to say»" in text
    assert re.search(r"⟦<u>⟧ w\d+⟦<eot>⟧⟦<a>⟧« w\d+ w\d+⟦<eot>⟧»", text)
    assert re.search(r"chats\.jsonl:\d+ \| \d+ tokens, 3 trained", text)
    assert "20 documents of" in text
    assert "3 documents dropped" in text
    assert "\x1b" not in text


def test_inspect_draws_the_same_sample_for_the_same_seed(made, capsys):
    _, ref = made
    first, again = (inspected(capsys, ref.uri, "--sample", 5) for _ in range(2))
    other = inspected(capsys, ref.uri, "--sample", 5, "--seed", 1)
    assert first == again
    assert documents_in(first) != documents_in(other)
    assert len(set(documents_in(inspected(capsys, ref.uri, "--sample", 500)))) == 20


def test_inspect_of_rows_shows_every_document_of_them(made, capsys):
    _, ref = made
    rows = range(ref.num_rows)
    text = inspected(capsys, ref.uri, "--rows", ",".join(map(str, rows)))
    assert len(set(documents_in(text))) == 20
    assert re.findall(r"^row (\d+) of train", text, re.MULTILINE) == [str(row) for row in rows]


def test_inspect_finds_a_document_by_its_first_digits(made, capsys):
    _, ref = made
    wanted = documents_in(inspected(capsys, ref.uri, "--sample", 20))[7]
    assert documents_in(inspected(capsys, ref.uri, "--document", wanted[:8])) == [wanted]
    assert "found none. It may have been dropped" in inspected(
        capsys, ref.uri, "--document", "f" * 32, code=2
    )
    assert "at least 6 digits" in inspected(capsys, ref.uri, "--document", "f", code=2)


@pytest.mark.parametrize("version", ["0", "-1", "7"])
def test_inspect_of_a_version_that_is_not_there_is_one_line(made, capsys, version):
    _, ref = made
    error = inspected(capsys, ref.uri, "--version", version, code=2)
    assert error.startswith("megapack: ")
    assert error.count("\n") == 1


def test_inspect_of_a_row_that_is_not_there_is_one_line(made, capsys):
    _, ref = made
    error = inspected(capsys, ref.uri, "--rows", "999", code=2)
    assert f"expected row numbers in [0, {ref.num_rows})" in error
    assert error.count("\n") == 1


def test_inspect_takes_the_store_of_a_job_for_its_only_dataset(made, capsys):
    job, ref = made
    assert f"dataset {ref.uri} version 1" in inspected(capsys, job.store)


def test_inspect_of_a_store_with_two_datasets_names_them(tmp_path, capsys):
    source = tmp_path / "chats.jsonl"
    source.write_text(plain_line(1) + "\n")
    for name in ("one", "two"):
        prepare(prepare_job(tmp_path, source, name=name, validation_fraction=0.0))
    error = inspected(capsys, tmp_path / "store", code=2)
    assert "found 2 under datasets/" in error
    assert "store/datasets/one, " in error


def test_inspect_shows_dropped_records_with_their_text(made, capsys):
    _, ref = made
    text = inspected(capsys, ref.uri, "--drops")
    assert text.startswith("3 of 23 documents were dropped\n")
    assert re.search(r"chats\.jsonl:21: expected JSON.*\n    no json\n", text)
    assert "chats.jsonl:22: " in text
    assert '"narrator"' in text
    assert "what to do: Rename the role" in text


def test_dropped_records_of_a_source_that_is_gone_are_still_listed(tmp_path, capsys):
    source = tmp_path / "chats.jsonl"
    source.write_text(plain_line(1) + "\nno json\n")
    ref = prepare(prepare_job(tmp_path, source, validation_fraction=0.0)).dataset
    source.unlink()
    text = inspected(capsys, ref.uri, "--drops")
    assert "chats.jsonl:2: expected JSON" in text
    assert "(the file cannot be read now: " in text


def moved(tmp_path):
    """A dataset, and the folder of its tokenizer."""
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(f"{plain_line(number)}\n" for number in range(4)))
    job = prepare_job(tmp_path, source, validation_fraction=0.0)
    return Path(job.tokenizer), prepare(job).dataset


def test_without_its_tokenizer_ids_are_shown_and_another_can_be_named(tmp_path, capsys):
    folder, ref = moved(tmp_path)
    elsewhere = folder.rename(tmp_path / "elsewhere")
    text = inspected(capsys, ref.uri)
    assert "Token ids are shown. Name the tokenizer with --tokenizer" in text
    assert re.search(r"«\d+ \d+ \d+ »", text)
    named = inspected(capsys, ref.uri, "--tokenizer", elsewhere)
    assert "⟦<eot>⟧»" in named
    assert "differs" not in named


def test_tokenizer_that_has_changed_is_not_used_unless_it_is_named(tmp_path, capsys):
    folder, ref = moved(tmp_path)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"w3"', '"x3"'))
    text = inspected(capsys, ref.uri)
    assert "has changed since the data was made" in text
    assert re.search(r"«\d+ \d+ \d+ »", text)
    named = inspected(capsys, ref.uri, "--tokenizer", folder)
    assert "the text below may be wrong" in named
    assert "⟦<eot>⟧»" in named


def test_named_tokenizer_that_is_not_there_is_one_line(made, tmp_path, capsys):
    _, ref = made
    error = inspected(capsys, ref.uri, "--tokenizer", tmp_path / "none", code=2)
    assert error.startswith("megapack: ")
    assert error.count("\n") == 1


def test_inspect_reads_a_table_of_documents(tmp_path, capsys):
    table = documents_table(str(tmp_path / "t"), [make_document(i, 9) for i in range(6)], kept=6)
    text = inspected(capsys, table.uri, "--sample", 2)
    assert len(documents_in(text)) == 2
    assert re.search(r"f\.jsonl:\d \| 9 tokens", text)
    assert "expected packed rows for --rows" in inspected(capsys, table.uri, "--rows", "0", code=2)


def test_inspect_writes_one_html_page(made, tmp_path, capsys):
    _, ref = made
    file = tmp_path / "look.html"
    assert cli.main(["inspect", ref.uri, "--sample", "20", "--html", str(file)]) == 0
    assert capsys.readouterr().out == ""
    text = file.read_text(encoding="utf-8")
    assert text.count("<details") == 20
    assert "20 documents of" in text


def test_html_page_that_cannot_be_written_is_one_line(made, tmp_path, capsys):
    _, ref = made
    error = inspected(capsys, ref.uri, "--html", tmp_path / "no" / "look.html", code=2)
    assert error.startswith("megapack: could not write ")


def test_inspect_into_a_closed_pipe_is_no_failure(made, monkeypatch, capsys):
    _, ref = made
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert cli.main(["inspect", ref.uri]) == 0
    assert capsys.readouterr().err == ""


def test_terminal_without_unicode_gets_escapes_and_no_traceback(made, monkeypatch, tmp_path):
    _, ref = made
    with (tmp_path / "out").open("w", encoding="ascii") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        assert cli.main(["inspect", ref.uri]) == 0
    assert "\\xab w" in (tmp_path / "out").read_text()


def test_colours_need_a_terminal_and_can_be_refused(made, monkeypatch, capsys):
    _, ref = made
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32;4m" in inspected(capsys, ref.uri)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in inspected(capsys, ref.uri)


def test_inspect_at_a_line_shows_the_documents_placed_from_it(made, capsys):
    _, ref = made
    text = inspected(capsys, ref.uri, "--at", "chats.jsonl:5")
    assert len(documents_in(text)) == 1
    assert re.search(r"/chats\.jsonl:5 \|", text)
    assert "chats.jsonl:5: placed 1 time\n" in text
    assert "« w5 w6⟦<eot>⟧»" in text


def test_inspect_at_a_line_says_why_it_was_dropped(made, capsys):
    _, ref = made
    text = inspected(capsys, ref.uri, "--at", "chats.jsonl:22")
    assert re.search(r"dropped: \S+/chats\.jsonl:22: unknown_role: ", text)
    assert "chats.jsonl:22: not placed" in text
    assert not documents_in(text)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("chats.jsonl:24", "expected a record that was placed or dropped, found none"),
        ("hats.jsonl:1", "expected a file that the dataset was made from, found "),
        ("chats.jsonl", "expected FILE:LINE, with lines counted from 1"),
        ("chats.jsonl:0", "expected FILE:LINE, with lines counted from 1"),
    ],
)
def test_inspect_at_a_place_that_is_none_says_what_is_wrong(made, capsys, place, told):
    _, ref = made
    assert told in inspected(capsys, ref.uri, "--at", place, code=2)


def test_inspect_of_a_source_draws_its_documents_alone(tmp_path, capsys):
    sources = []
    for name, numbers in (("a", range(20)), ("b", range(20, 24))):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{plain_line(n)}\n" for n in numbers))
        sources.append({"uri": str(tmp_path / f"{name}.jsonl"), "name": name})
    ref = prepare(prepare_job(tmp_path, *sources, validation_fraction=0.0)).dataset
    text = inspected(capsys, ref.uri, "--source", "b", "--sample", 9)
    assert len(documents_in(text)) == 4
    assert set(re.findall(r"(\w+)\.jsonl:\d", text)) == {"b"}
    error = inspected(capsys, ref.uri, "--source", "b", "--rows", "0", code=2)
    assert "--source goes with --sample" in error
    error = inspected(capsys, ref.uri, "--source", "c", code=2)
    assert "expected a source with documents in train, found a, b." in error


def test_an_export_is_called_what_it_is(made, tmp_path, capsys):
    _, ref = made
    assert cli.main(["export", ref.uri, str(tmp_path / "out"), "--to", "hf"]) == 0
    capsys.readouterr()
    for command in ("inspect", "report"):
        assert cli.main([command, str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert "expected a dataset, found an export (export.json). Check it with megapack" in error
        assert error.count("\n") == 1


def test_inspect_of_equal_documents_says_that_there_are_more_places(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text("".join(f"{plain_line(n)}\n" for n in (1, 2, 1, 1)))
    ref = prepare(prepare_job(tmp_path, tmp_path / "x.jsonl", validation_fraction=0.0)).dataset
    text = inspected(capsys, ref.uri, "--sample", 9)
    assert len(re.findall(r"x\.jsonl:1 and 2 more places \|", text)) == 3
    assert len(re.findall(r"x\.jsonl:2 \|", text)) == 1
