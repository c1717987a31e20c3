import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.errors import ContractError
from megapack.store.token_planes import join_tokens, num_planes, split_tokens, token_lists

_VOCABULARIES = st.sampled_from([1, 2, 65_536, 65_537, 131_072, 152_064, 262_144, 2**31 - 1])


def _joined(low: bytes, high: bytes, count: int) -> list[int]:
    out = np.full(count, -7, dtype=np.int32)
    join_tokens(low, high, out=out)
    return out.tolist()


@settings(deadline=None)
@given(_VOCABULARIES, st.data())
def test_ids_round_trip(vocab_size, data):
    ids = data.draw(st.lists(st.integers(0, vocab_size - 1), max_size=40))
    low, high = split_tokens(np.array(ids, dtype=np.int32), vocab_size=vocab_size)
    assert len(low) == 2 * len(ids)
    assert len(high) == num_planes(vocab_size) * -(-len(ids) // 8)
    assert _joined(low, high, len(ids)) == ids


def test_planes_bit_by_bit():
    ids = [3 << 16 | 5, 1 << 16, 2 << 16, 65_535, 0, 0, 0, 0, 1 << 16]
    low, high = split_tokens(np.array(ids, dtype=np.int32), vocab_size=262_144)
    assert np.frombuffer(low, "<u2").tolist() == [5, 0, 0, 65_535, 0, 0, 0, 0, 0]
    assert high == bytes([0b011, 0b1, 0b101, 0b0])


@pytest.mark.parametrize("ids", [[-1], [131_072], [0, 1 << 20]])
def test_id_that_the_planes_cannot_hold_is_refused(ids):
    with pytest.raises(ContractError, match=r"ids in \[0, 131072\) with a vocabulary of 131072"):
        split_tokens(np.array(ids, dtype=np.int32), vocab_size=131_072)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (b"\0" * 4, b"", "expected 3, the sum of the slots, found 2"),
        (b"\0" * 5, b"", "found 2.5"),
        (b"\0" * 6, b"\0" * 16, "planes of 1 bytes for 3 tokens, found 16 bytes"),
    ],
)
def test_damaged_columns_are_refused(low, high, message):
    with pytest.raises(ContractError, match=message):
        _joined(low, high, 3)


def test_token_lists_of_columns():
    low, high = split_tokens(np.array([1, 70_000], dtype=np.int32), vocab_size=131_072)
    frame = pl.DataFrame({"tokens": [low, b""], "tokens_high": [high, b""]})
    assert token_lists(frame).to_list() == [[1, 70_000], []]
