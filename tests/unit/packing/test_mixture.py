import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from megapack.errors import ConfigError, ContractError, DataError
from megapack.packing.config import BlendConfig
from megapack.packing.hash_order import hash_order
from megapack.packing.mixture import copies


def name(i):
    return hashlib.sha256(str(i).encode()).hexdigest()[:32]


@st.composite
def blends(draw):
    """Documents of up to four sources (ids may repeat), with weights."""
    sources = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 12), min_size=sources, max_size=sources))
    source = [s for s, size in enumerate(sizes) for _ in range(size)]
    ids = [name(draw(st.integers(0, 30))) for _ in source]
    tokens = [draw(st.integers(1, 50)) for _ in source]
    weights = draw(
        st.lists(st.sampled_from([0.1, 0.5, 1, 2.5, 3]), min_size=sources, max_size=sources)
    )
    return ids, source, tokens, weights


def run(problem, *, seed=0, **blend):
    ids, source, tokens, weights = problem
    config = BlendConfig(**{"max_epochs": 1e6, **blend})
    return copies(ids, source, tokens, weights=weights, blend=config, seed=seed)


def sums(counts, source, amounts, sources):
    return [
        sum(int(c) * a for c, s, a in zip(counts, source, amounts, strict=True) if s == index)
        for index in range(sources)
    ]


TOTALS = st.one_of(st.sampled_from(["first_exhausted", "last_exhausted"]), st.integers(1, 300))


@given(blends())
def test_epochs_read_each_source_as_often_as_its_weight(problem):
    _, source, _, weights = problem
    counts = run(problem, unit="epochs")
    for index, weight in enumerate(weights):
        own = counts[np.array(source) == index]
        assert set(own.tolist()) <= {int(weight), int(weight) + 1}
        assert abs(int(own.sum()) - Fraction(str(weight)) * own.size) <= Fraction(1, 2)


@given(blends(), TOTALS, st.sampled_from(["documents", "tokens"]))
def test_shares_are_within_half_a_document_of_the_weights(problem, total, unit):
    ids, source, tokens, weights = problem
    amounts = tokens if unit == "tokens" else [1] * len(ids)
    found = sums(run(problem, unit=unit, total=total), source, amounts, len(weights))
    available = sums([1] * len(ids), source, amounts, len(weights))
    share = [Fraction(str(w)) / sum(Fraction(str(v)) for v in weights) for w in weights]
    if total == "first_exhausted":
        wanted = min(a / s for a, s in zip(available, share, strict=True))
    elif total == "last_exhausted":
        wanted = max(a / s for a, s in zip(available, share, strict=True))
    else:
        wanted = total
    for index, placed in enumerate(found):
        longest = max(a for a, s in zip(amounts, source, strict=True) if s == index)
        assert abs(placed - share[index] * wanted) <= Fraction(longest, 2)


@given(blends(), st.sampled_from(["documents", "tokens"]))
def test_first_exhausted_repeats_nothing_and_uses_a_source_up(problem, unit):
    counts = run(problem, unit=unit, total="first_exhausted")
    source = np.array(problem[1])
    assert counts.max() <= 1
    assert any(counts[source == s].all() for s in set(problem[1]))


@given(blends(), st.sampled_from(["documents", "tokens"]))
def test_last_exhausted_leaves_nothing_out_and_reads_a_source_once(problem, unit):
    counts = run(problem, unit=unit, total="last_exhausted")
    source = np.array(problem[1])
    assert counts.min() >= 1
    assert any((counts[source == s] == 1).all() for s in set(problem[1]))


BLENDS = st.sampled_from(
    [
        {"unit": "epochs"},
        {"unit": "tokens", "total": "first_exhausted"},
        {"unit": "documents", "total": 40},
    ]
)


@given(blends(), BLENDS, st.randoms(use_true_random=False), st.integers(0, 2**70))
def test_reading_order_does_not_change_which_ids_are_placed(problem, blend, random, seed):
    ids, source, tokens, weights = problem
    # Equal ids are equal content, so they have one length.
    tokens = [int(i[:4], 16) % 50 + 1 for i in ids]
    counts = run((ids, source, tokens, weights), seed=seed, **blend)
    order = random.sample(range(len(ids)), len(ids))
    mixed = ([ids[i] for i in order], [source[i] for i in order], [tokens[i] for i in order])
    again = run((*mixed, weights), seed=seed, **blend)
    placed = sorted(zip(source, ids, counts.tolist(), strict=True))
    assert sorted(zip(mixed[1], mixed[0], again.tolist(), strict=True)) == placed


@given(blends(), st.sampled_from([0.5, 1.5]))
def test_another_source_does_not_change_what_is_chosen_first(problem, weight):
    ids, source, tokens, weights = problem
    alone = run(problem, unit="epochs")
    more = (
        [*ids, name("new"), name("newer")],
        [*source, len(weights), len(weights)],
        [*tokens, 5, 5],
        [*weights, weight],
    )
    assert run(more, unit="epochs")[: len(ids)].tolist() == alone.tolist()
    # With shares the amount changes, but never the order in which documents are taken.
    before = run(problem, unit="documents", total="first_exhausted")
    after = run(more, unit="documents", total="first_exhausted")[: len(ids)]
    for index in range(len(weights)):
        own = np.array(source) == index
        smaller, larger = sorted((before[own], after[own]), key=lambda c: int(c.sum()))
        assert (smaller <= larger).all()


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(0, 9))
def test_hash_order_keeps_equal_ids_together_in_input_order(numbers, seed):
    ids = [name(i) for i in numbers]
    order = hash_order(ids, seed).tolist()
    assert sorted(order) == list(range(len(ids)))
    for number in set(numbers):
        at = [place for place, i in enumerate(order) if numbers[i] == number]
        assert at == list(range(at[0], at[0] + len(at)))
        assert [order[p] for p in at] == [i for i, n in enumerate(numbers) if n == number]


def test_hash_order_is_spread_evenly_and_moves_with_the_seed():
    ids = [name(i) for i in range(4000)]
    first = hash_order(ids, 0)
    assert (hash_order(ids, 1) != first).any()
    chosen = set(first[:1000].tolist())
    quarters = [sum(i in chosen for i in range(q * 1000, q * 1000 + 1000)) for q in range(4)]
    assert all(abs(count - 250) < 70 for count in quarters)
    other = set(hash_order(ids, 1)[:1000].tolist())
    assert abs(len(chosen & other) - 250) < 70


@given(st.integers(0, 2**130))
def test_hash_order_is_that_of_plain_integer_arithmetic(seed):
    def mix(bits):
        bits = (bits + 0x9E3779B97F4A7C15) % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return bits ^ bits >> 31

    ids = [name(i) for i in range(20)]

    def key(i):
        high, low = int(ids[i][:16], 16), int(ids[i][16:], 16)
        return mix(mix(high ^ mix(seed % 2**64)) ^ low ^ mix(seed // 2**64 % 2**64))

    assert hash_order(ids, seed).tolist() == sorted(range(20), key=key)


def test_weight_of_two_and_a_half_is_twice_and_half_of_them_a_third_time():
    ids = [name(i) for i in range(10)]
    blend = BlendConfig(unit="epochs")
    counts = copies(ids, [0] * 10, [7] * 10, weights=[2.5], blend=blend, seed=0)
    assert sorted(counts.tolist()) == [2] * 5 + [3] * 5


def test_weight_zero_leaves_a_source_out():
    ids = [name(i) for i in range(4)]
    counts = run((ids, [0, 0, 1, 1], [5] * 4, [0, 1]), unit="tokens", total="first_exhausted")
    assert counts.tolist() == [0, 0, 1, 1]


def test_repetition_over_the_limit_is_refused_naming_the_source():
    ids = [name(i) for i in range(101)]
    problem = (ids, [0] * 100 + [1], [5] * 101, [1, 1])
    with pytest.raises(ConfigError, match=r"max_epochs = 10 times, found .*\{1: 100.0\}"):
        run(problem, unit="documents", total="last_exhausted", max_epochs=10)


def test_source_with_a_share_but_no_documents_is_refused():
    with pytest.raises(DataError, match=r"found none in sources \[1\]"):
        run(([name(0)], [0], [5], [1, 1]), unit="documents", total="first_exhausted")


@pytest.mark.parametrize("weights", [[-1.0, 2.0], [0.0, 0.0], [float("nan"), 1.0]])
def test_weights_that_weigh_nothing_are_refused(weights):
    with pytest.raises(ConfigError, match="expected weights of 0 or more"):
        run(([name(0)], [0], [5], weights), unit="epochs")


@pytest.mark.parametrize(
    ("ids", "source", "message"),
    [
        ([name(0)], [0, 0], "found 1, 2 and 1"),
        ([name(0)], [1], r"expected source indices in \[0, 1\)"),
        (["g" * 32], [0], "expected document ids of 32 hex digits"),
        ([name(0)[:30] + "  "], [0], "expected document ids of 32 hex digits"),
        (["abc"], [0], "found 'abc'"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(ids, source, message):
    with pytest.raises(ContractError, match=message):
        copies(ids, source, [5], weights=[1], blend=BlendConfig(unit="epochs"), seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "tokens"}, "Say first_exhausted"),
        ({"unit": "epochs", "total": 5}, "expected none with unit = epochs"),
        ({"unit": "tokens", "total": 0}, "greater than or equal to 1"),
    ],
)
def test_blend_says_how_much_where_weights_are_shares(settings, message):
    with pytest.raises(ValidationError, match=message):
        BlendConfig(**settings)
