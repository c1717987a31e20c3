import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.packing.given import plan_as_given
from tests.support.packing_problems import rows_of


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), max_size=12),
    st.integers(12, 20),
    st.randoms(use_true_random=False),
)
def test_each_record_is_one_row_or_comes_back_whole(records, capacity, random):
    numbers = random.sample(range(1000), len(records))
    lengths = [length for record in records for length in record]
    owner = [number for number, record in zip(numbers, records, strict=True) for _ in record]
    plan, not_placed = plan_as_given(owner, lengths, capacity)
    expected, left_out, document = [], [], 0
    for record in records:
        own = list(range(document, document + len(record)))
        document += len(record)
        if sum(record) <= capacity:
            expected.append(own)
        else:
            left_out += own
    assert rows_of(plan) == expected
    assert not_placed.tolist() == left_out
    assert sorted([*plan.document.tolist(), *left_out]) == list(range(len(lengths)))


def test_record_of_exactly_the_capacity_fits_and_one_more_does_not():
    plan, not_placed = plan_as_given([0, 0, 1, 1], [5, 3, 5, 4], 8)
    assert rows_of(plan) == [[0, 1]]
    assert not_placed.tolist() == [2, 3]


def test_record_in_two_places_is_refused():
    with pytest.raises(ContractError, match="found record 7 in more than one place"):
        plan_as_given([7, 8, 7], [1, 1, 1], 8)


def test_record_numbers_must_match_the_documents():
    with pytest.raises(ContractError, match="found 1 for 2 documents"):
        plan_as_given([7], [1, 1], 8)
