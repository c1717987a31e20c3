import base64
import hashlib
import re
from html.parser import HTMLParser

from megapack.steps.inspect.html import page_of
from tests.unit.steps.inspect.test_plain import TEXTS, group

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\"'</div><!--"


class Reading(HTMLParser):
    """Elements with attributes, scripts, and the text of each document."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.documents, self.policy = [], [], [], ""
        self.inside = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "details":
            self.documents.append({"attributes": attributes, "all": "", "trained": "", "sizes": 0})
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]
        if tag == "i" and self.documents:
            self.documents[-1]["sizes"] += int(attributes.get("data-n", 1))
        if tag not in ("meta", "input", "br", "img"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        assert self.inside.pop() == tag

    def handle_data(self, data):
        if "script" in self.inside:
            self.scripts.append(data)
        elif "details" in self.inside and "i" in self.inside:
            self.documents[-1]["all"] += data
            self.documents[-1]["trained"] += data if "b" in self.inside else ""


def page(*groups, texts=TEXTS, most=10_000, facts=("a fact",)):
    return "\n".join(page_of(groups, texts, title="t", facts=facts, most=most))


def test_hostile_content_is_text_and_nothing_else():
    shown = group(f"<u>{HOSTILE}", HOSTILE, source=HOSTILE)
    text = page(shown, facts=(HOSTILE, f"!{HOSTILE}"))
    reading = Reading(text)
    assert len(reading.scripts) == 1
    assert "alert" not in reading.scripts[0]
    assert "img" not in {tag for tag, _ in reading.elements}
    assert not [one for _, names in reading.elements for one in names if one.startswith("on")]
    (document,) = reading.documents
    assert document["all"] == f"<u>{HOSTILE}{HOSTILE}"
    assert document["trained"] == HOSTILE


def test_only_the_pages_own_script_may_run_and_nothing_is_fetched():
    text = page(group("u", "a"))
    reading = Reading(text)
    digest = base64.b64encode(hashlib.sha256(reading.scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in reading.policy
    assert "default-src 'none'" in reading.policy
    assert not re.search(r"(?:src|href)\s*=|url\(|https?:", text)


def test_every_token_has_its_element_and_id():
    shown = group("<u>é🙂", "ok\nyes<eot>")
    (document,) = Reading(page(shown)).documents
    ids = [int(one) for one in document["attributes"]["data-ids"].split()]
    assert ids == shown.documents[0].tokens.tolist()
    assert document["sizes"] == len(ids)
    assert document["attributes"]["data-start"] == "8"
    assert document["trained"] == "ok\nyes<eot>"


def test_hundred_documents_are_closed_and_small():
    text = page(*[group("u" * 200, "a" * 200)] * 100)
    reading = Reading(text)
    assert len(reading.documents) == 100
    assert all("open" not in one["attributes"] for one in reading.documents)
    assert len(text) < 100 * 400 * 16


def test_long_document_is_cut_with_a_note():
    text = page(group("u", "a" * 500), most=100)
    (document,) = Reading(text).documents
    assert document["sizes"] == 100
    assert document["attributes"]["data-cut"] == "yes"
    assert "401 more tokens, 401 of them trained, are not shown" in text
