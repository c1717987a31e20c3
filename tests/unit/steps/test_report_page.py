import json

from megapack.steps.prepare import prepare
from megapack.steps.report import packing_report
from megapack.steps.report_details import packing_details
from megapack.steps.report_page import report_markdown, report_page
from megapack.steps.report_text import report_text
from megapack.steps.retain import retain
from tests.support.chain import refreshed
from tests.support.prepare_jobs import plain_line, prepare_job
from tests.unit.steps.test_pack import packed
from tests.unit.steps.test_report_details import sourced


def test_page_and_markdown_escape_sources_and_drops(tmp_path):
    _, _, ref = packed(tmp_path, documents=sourced())
    assert "<img" not in "\n".join(report_page(ref))
    markdown = report_markdown(ref)
    assert "<img" not in markdown
    assert "onerror=alert(1)&gt;&#124;" in markdown
    assert markdown.count("](data:image/svg+xml;base64,") == 3


def test_page_shows_dropped_records_as_text(tmp_path):
    source = tmp_path / "chats.jsonl"
    hostile = json.dumps({"messages": "</pre><script>alert(1)</script>"})
    source.write_text(f"{plain_line(1)}\n{hostile}\n")
    ref = prepare(prepare_job(tmp_path, source, validation_fraction=0.0)).dataset
    text = "\n".join(report_page(ref))
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text


def test_report_of_a_refresh_says_what_changed_and_survives_retired_versions(tmp_path):
    source = tmp_path / "chats.jsonl"
    job = prepare_job(tmp_path, source, validation_fraction=0.0)
    for numbers in (range(4), range(6)):
        source.write_text("".join(f"{plain_line(number)}\n" for number in numbers))
        ref = refreshed(job)
    retain(job, keep_versions=1, min_age_s=0)
    text = "\n".join(report_page(ref))
    assert "documents added=2 removed=0" in text
    assert ">retired<" in text
    lines = report_text(packing_report(ref), packing_details(ref), {}, None)
    lines = list(lines)
    assert "  documents added=2 removed=0" in lines
    assert "  documents in rows kept as they were=4" in lines
    assert not any("packed again" in line for line in lines)
