"""What benchmarks work on, and how peers are imported and compared."""

import base64
import sys

import numpy as np
import pytest

from benchmarks.alone import import_alone
from benchmarks.inputs import Lengths, TokenRow, draw_lengths, token_rows
from benchmarks.peers_loader import RowTensors, expected_supervision, supervision
from benchmarks.peers_store import PlainNumpy, stored_bytes
from benchmarks.tekken import convert

SPECIALS = 20


def tekken():
    """A tokenizer file with all bytes and two words, in the form of the large one."""
    words = [bytes([byte]) for byte in range(256)] + [b"ab", b"abc", b"cut away"]
    return {
        "config": {
            "pattern": r"\w+|[^\w]",
            "default_num_special_tokens": SPECIALS,
            "default_vocab_size": len(words) - 1 + SPECIALS,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode()}
            for rank, word in enumerate(words)
        ],
    }


def two_documents():
    """Tokens 1 2 3 | 4 5, of which 2, 3 and 5 are supervised."""
    return TokenRow(
        np.array([1, 2, 3, 4, 5], np.int32),
        np.array([0, 1, 1, 0, 1], np.uint8),
        np.array([3, 2], np.int32),
    )


@pytest.mark.parametrize("kind", list(Lengths))
def test_lengths_follow_from_the_seed_and_fit_the_capacity(kind):
    first, again, other = (draw_lengths(kind, 2000, 4096, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.min() >= 1
    assert first.max() <= 4096


def test_few_lengths_are_at_most_32():
    assert np.unique(draw_lengths(Lengths.FEW, 5000, 4096)).size <= 32


def test_rows_are_full_and_begin_each_document_unsupervised():
    tokenizer = convert(tekken())
    rows = token_rows(tokenizer, rows=2, row_length=4096)
    for row in rows:
        assert row.tokens.size == row.mask.size == row.lengths.sum() == 4096
        assert not row.mask[np.cumsum(row.lengths) - row.lengths].any()
        assert 0 < row.mask.mean() < 1
    text = tokenizer.decode(rows[0].tokens.tolist())
    assert text.isprintable() or "\n" in text


def test_converted_tokenizer_gives_ranks_after_the_specials():
    tokenizer = convert(tekken())
    ids = tokenizer.encode("<SPECIAL_12>abc ab\u00e9").ids
    assert ids == [
        12,
        257 + SPECIALS,
        32 + SPECIALS,
        256 + SPECIALS,
        195 + SPECIALS,
        169 + SPECIALS,
    ]
    assert tokenizer.decode(ids) == "abc ab\u00e9"
    assert tokenizer.get_vocab_size() == 258 + SPECIALS


def test_supervision_is_the_same_for_two_layouts_of_one_row():
    row = two_documents()
    expected = [[0, 0, 1, 2], [0, 1, 2, 3], [1, 0, 4, 5]]
    whole = RowTensors(
        row.tokens, [2, 3, -100, 5, -100], [1, 1, 0, 1, 0], [0, 1, 2, 0, 1], [0, 3, 5]
    )
    shortened = RowTensors(
        [[1, 2, 4, 0]], [[2, 3, 5, 0]], [[1, 1, 1, 0]], [[0, 1, 0, 0]], [0, 2, 3]
    )
    assert expected_supervision(row).tolist() == expected
    assert supervision(whole).tolist() == expected
    assert supervision(shortened).tolist() == expected


def test_supervision_differs_when_a_label_crosses_documents():
    row = two_documents()
    crossing = RowTensors(row.tokens, [2, 3, 4, 5, 0], [1, 1, 1, 1, 0], [0, 1, 2, 0, 1], [0, 3, 5])
    assert not np.array_equal(supervision(crossing), expected_supervision(row))


def test_stored_rows_come_back_as_they_were(tmp_path):
    rows = [two_documents(), TokenRow(*(np.flip(field) for field in _fields(two_documents())))]
    PlainNumpy().write(rows, tmp_path)
    found = list(PlainNumpy().read(tmp_path))
    for row, other in zip(rows, found, strict=True):
        for one, two in zip(_fields(row), _fields(other), strict=True):
            np.testing.assert_array_equal(one, two)
    assert stored_bytes(tmp_path) == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """A package whose `__init__` breaks, with one file that works and one that needs another."""
    inner = tmp_path / "fake_peer" / "packing"
    inner.mkdir(parents=True)
    (tmp_path / "fake_peer" / "__init__.py").write_text("import a_package_that_is_not_there\n")
    (inner / "__init__.py").write_text("raise RuntimeError\n")
    (inner / "rows.py").write_text("from fake_peer.config import Settings\nANSWER = Settings\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "fake_peer"]:
        del sys.modules[name]


@pytest.mark.usefixtures("peer")
def test_one_file_is_imported_without_its_packages():
    stand_in = {"fake_peer.config": {"Settings": 42}}
    assert import_alone("fake_peer.packing.rows", stand_ins=stand_in).ANSWER == 42


@pytest.mark.usefixtures("peer")
def test_file_that_needs_what_is_not_there_is_an_import_error():
    with pytest.raises(ImportError, match=r"fake_peer\.config"):
        import_alone("fake_peer.packing.rows")


def test_package_that_is_not_installed_is_an_import_error():
    with pytest.raises(ImportError, match="a_package_that_is_not_there"):
        import_alone("a_package_that_is_not_there.packing")


def _fields(row):
    return row.tokens, row.mask, row.lengths
