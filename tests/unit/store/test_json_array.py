import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.errors import DataError
from megapack.store.json_array import read_array

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def chunks(data, size):
    return iter([data[at : at + size] for at in range(0, len(data), size)])


def read(data, size=5):
    return list(read_array(chunks(data, size), uri="a.json"))


@given(
    values=st.lists(JSON, max_size=5),
    size=st.integers(1, 9),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    bom=st.booleans(),
)
def test_array_in_pieces_equals_the_array_read_at_once(values, size, indent, ascii_only, bom):
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode() + b" \n"
    found = read(data, size)
    assert [record.line for record in found] == list(range(len(values)))
    assert [record.value for record in found if not record.error] == values


@given(
    elements=st.lists(
        st.sampled_from(
            [
                b'{"a": "],["}',
                b"1 1",
                b"NaN",
                b'"\xff"',
                b'["\\ud800"]',
                b'"\\"["',
                b"tru",
                b'{"a" 1}',
                b"",
            ]
        ),
        min_size=2,
        max_size=6,
    ),
    size=st.integers(1, 9),
)
def test_bad_elements_cost_themselves_for_any_pieces(elements, size):
    data = b"[" + b", ".join(elements) + b"]"
    found = read(data, size)
    assert len(found) == len(elements)
    good = {b'{"a": "],["}', b'"\\"["'}
    for record, element in zip(found, elements, strict=True):
        assert bool(record.error) == (element not in good)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("data", [b"[1, 2", b"[1, 2,", b'["a, b', b'[{"a": "}, 1]', b"[", b"[1] x"])
def test_array_without_an_end_or_with_more_behind_it_is_refused(data, size):
    with pytest.raises(DataError, match=r"a\.json: expected"):
        read(data, size)


@pytest.mark.parametrize(("data", "value"), [(b' {"a": [1]} ', {"a": [1]}), (b"3", 3)])
def test_other_value_is_one_record(data, value):
    assert [(one.line, one.value) for one in read(data)] == [(0, value)]


def test_memory_is_that_of_an_element_and_a_chunk():
    element = json.dumps({"text": "x" * 10_000}).encode()

    def pieces():
        yield b"["
        for _ in range(2000):
            yield element + b","
        yield element + b"]"

    tracemalloc.start()
    count = sum(1 for _ in read_array(pieces(), uri="a.json"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2001
    assert peak < 500_000
