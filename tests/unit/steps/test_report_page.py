import json

from megapack.steps.prepare import prepare
from megapack.steps.report_page import report_markdown, report_page
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
