import xml.etree.ElementTree as ET

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.steps.charts import Bars, binned, round_up, short
from megapack.steps.report_charts import charts
from megapack.steps.report_details import packing_details
from tests.support.documents import make_document
from tests.unit.steps.test_pack import packed

HOSTILE = "<img src=x onerror=alert(1)>|`"


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


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1e9))
def test_axis_ends_at_a_round_number_not_far_above(number):
    found = round_up(number)
    assert number <= found <= max(1, 2.5 * number)
    assert str(found).strip("0") in {"1", "2", "5"}


def test_chart_text_is_escaped():
    chart = Bars(title=HOSTILE, x_label="x", y_label=HOSTILE, edges=["0", "1"], counts=[3])
    assert "<img" not in chart.svg()
    ET.fromstring(chart.svg())


def test_short_numbers():
    assert [short(one) for one in (0, 12, 1500, 2_000_000)] == ["0", "12", "1.5k", "2M"]
