"""The commands over packed rows of text and images, which are not mistaken for rows of tokens."""

import pytest

from megapack.cli import main as cli
from tests.support.shapes_rows import pack_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    pack_job(folder).save(folder / "job.json")
    return folder


@pytest.fixture(scope="module", autouse=True)
def packed(folder):
    pictures = str(folder / "pictures")
    assert cli.main(["pack-multimodal", str(folder / "job.json"), "--pictures", pictures]) == 0
    assert len(list((folder / "pictures").glob("row-*.png"))) == 3


def told(capsys, *arguments, code=0):
    assert cli.main(list(arguments)) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def test_packing_again_reuses_and_a_wrong_field_is_named(folder, capsys):
    assert cli.main(["pack-multimodal", str(folder / "job.json")]) == 0
    assert "nothing had changed" in capsys.readouterr().err
    wrong = ["pack-multimodal", str(folder / "job.json"), "--set", "stream.limits.max_tokens=0"]
    assert "stream.limits.max_tokens" in told(capsys, *wrong, code=2)


def test_an_older_job_again_is_told_to_be_published_again(tmp_path, folder, capsys):
    again = ["pack-multimodal", str(folder / "job.json"), "--set", f"store={tmp_path}"]
    assert cli.main(again) == 0
    assert cli.main([*again, "--set", "stream.seed=1"]) == 0
    capsys.readouterr()
    assert cli.main(again) == 0
    told = capsys.readouterr().err
    assert "its content was published again as version 3" in told
    assert "stood there already" not in told


def test_inspect_shows_rows_with_words_and_where_they_come_from(folder, capsys):
    store = str(folder / "store")
    text = told(capsys, "inspect", store, "--rows", "1")
    assert text.startswith("row 1 of ")
    assert "sample 0: " in text
    assert "text (causal " in text
    assert "vae (noise " in text
    assert "missing_image" in told(capsys, "inspect", store, "--drops")
    told(capsys, "inspect", store, "--rows", "0", "--html", str(folder / "look.html"))
    page = (folder / "look.html").read_text()
    assert page.count("data:image/png") == 1
    assert "row 9999" not in page
    assert "choice of documents" in told(capsys, "inspect", store, "--sample", "3", code=2)


def test_audit_report_and_versions_read_it_and_export_refuses_it(folder, capsys):
    store = str(folder / "store")
    assert "violations=0" in told(capsys, "audit", store)
    assert "rejected group=editing reason=too_few_images samples=1" in told(capsys, "report", store)
    assert len(told(capsys, "report", store, "--drops").splitlines()) >= 5
    assert "prepared whole" in told(capsys, "report", store, "--versions")
    refused = told(capsys, "export", store, str(folder / "out"), "--to", "hf", code=2)
    assert "rows of text and images" in refused
