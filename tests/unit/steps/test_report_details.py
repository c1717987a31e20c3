import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.records.drops import DropReason
from megapack.steps.charts import Bars, binned, short
from megapack.steps.drop_advice import ADVICE
from megapack.steps.prepare import prepare
from megapack.steps.report_charts import charts
from megapack.steps.report_details import SHARE_BINS, packing_details
from megapack.steps.report_origin import Origin, origin
from megapack.steps.report_page import report_markdown, report_page
from megapack.store.source_excerpts import excerpts
from tests.support.documents import make_document
from tests.support.prepare_jobs import line, plain_line, prepare_job
from tests.unit.steps.test_pack import LENGTHS, packed, rows_of

HOSTILE = "<img src=x onerror=alert(1)>|`"


def sourced():
    names = ("a", HOSTILE, "c")
    return [replace(make_document(i, n), source=names[i % 3]) for i, n in enumerate(LENGTHS)]


def test_details_equal_a_loop_over_rows(tmp_path):
    _, _, ref = packed(tmp_path, documents=sourced())
    lengths, fill, shares, sources = Counter(), Counter(), Counter(), {}
    for row in rows_of(ref):
        fill[row.num_real_tokens] += 1
        counted = row.loss_mask()
        for at, name in enumerate(row.sources):
            start, size = int(row.layout.slot_starts[at]), int(row.layout.lengths[at])
            targets = int(counted[start : start + size].sum())
            lengths[size] += 1
            shares[min(SHARE_BINS - 1, targets * SHARE_BINS // size)] += 1
            sources[name] = np.add(sources.get(name, (0, 0, 0)), (1, size, targets))
    details = packing_details(ref)
    assert {n: int(c) for n, c in enumerate(details.lengths) if c} == dict(lengths)
    assert {n: int(c) for n, c in enumerate(details.fill) if c} == dict(fill)
    assert {n: int(c) for n, c in enumerate(details.shares) if c} == dict(shares)
    found = {one.name: [one.documents, one.tokens, one.targets] for one in details.sources}
    assert found == {name: counts.tolist() for name, counts in sources.items()}
    assert [one.name for one in details.sources] == sorted(sources)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(0, 3))
def test_bars_hold_every_count_once(counts, low):
    array = np.array([0] * low + counts, np.int64)
    edges, heights = binned(array, low=low)
    assert sum(heights) == sum(counts)
    assert len(edges) == len(heights) + 1
    assert len(heights) <= 40


def test_charts_are_svg_with_all_documents_and_rows(tmp_path):
    _, _, ref = packed(tmp_path)
    details = packing_details(ref)
    lengths, fill, shares = charts(details)
    assert (sum(lengths.counts), sum(shares.counts)) == (11, 11)
    assert sum(fill.counts) == ref.num_rows
    for chart in (lengths, fill, shares):
        root = ET.fromstring(chart.svg())
        assert root.tag.endswith("svg")
        titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
        assert len(titles) == len(chart.counts)


def test_chart_of_rows_that_are_all_full_has_its_bar_at_the_end(tmp_path):
    _, _, ref = packed(tmp_path, documents=[make_document(i, 32) for i in range(8)])
    _, fill, _ = charts(packing_details(ref))
    assert fill.counts[-1] == ref.num_rows
    assert fill.edges[-1] == "100%"


def test_chart_text_is_escaped():
    chart = Bars(title=HOSTILE, x_label="x", y_label=HOSTILE, edges=["0", "1"], counts=[3])
    assert "<img" not in chart.svg()
    ET.fromstring(chart.svg())


def test_short_numbers():
    assert [short(one) for one in (0, 12, 1500, 2_000_000)] == ["0", "12", "1.5k", "2M"]


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


def test_every_reason_has_advice():
    assert set(ADVICE) == set(DropReason)


def test_origin_says_what_splitting_lost(tmp_path):
    turns = [("user", "w1"), ("assistant", " ".join(["w3"] * 20))] * 4
    turns += [("user", "w2"), ("assistant", " ".join(["w4"] * 90))]
    source = tmp_path / "chats.jsonl"
    source.write_text(f"{plain_line(1)}\n{line(*turns)}\n")
    job = prepare_job(
        tmp_path, source, tokenize={"long_documents": "split"}, validation_fraction=0.0
    )
    ref = prepare(job).dataset
    found = origin(ref)
    assert (found.conversations, found.split_conversations, found.lost_exchanges) == (2, 1, 1)
    assert "1 exchanges fitted in no piece and were lost" in found.sentences()
    # The exchange: user token, word, end, answer token, 90 words, end.
    assert found.lost_tokens == 95
    assert Origin(conversations=3).sentences() == []


def test_origin_is_unknown_when_its_tables_are_not_those(tmp_path):
    _, _, ref = packed(tmp_path)
    assert origin(ref) is None


def test_excerpts_stop_at_the_last_line_wanted(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"zero\r\n\nt\xffwo\nthree\n")
    assert excerpts(str(file), [0, 2, 9]) == {0: "zero", 2: "t\ufffdwo"}
