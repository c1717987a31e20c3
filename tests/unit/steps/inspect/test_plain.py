from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.steps.inspect.pieces import around_trained
from megapack.steps.inspect.plain import Style, lines_of, visible
from megapack.steps.inspect.shown import Group, ShownDocument, Slot
from tests.support.toy_tokenizers import bytes_tokenizer
from tests.unit.conversation.test_token_text import texts_of

TOKENIZER = bytes_tokenizer()
TEXTS = texts_of(TOKENIZER)


def group(before, answer, after="", *, source="s"):
    """One document: `before`, then `answer` trained, then `after`."""
    parts = [TOKENIZER.encode(text, add_special_tokens=False).ids for text in (before, answer)]
    tail = TOKENIZER.encode(after, add_special_tokens=False).ids
    tokens = np.array([*parts[0], *parts[1], *tail], np.int32)
    trained = np.zeros(tokens.size, np.bool_)
    trained[len(parts[0]) : len(parts[0]) + len(parts[1])] = True
    slot = Slot(start=8, length=tokens.size + 2, positions=tokens.size)
    document = ShownDocument(
        document_id="ab" * 16, source=source, tokens=tokens, trained=trained, slot=slot
    )
    return Group(title="row 0", documents=(document,))


def printed(shown, *, style=Style.PLAIN, most=1000, texts=TEXTS):
    return "\n".join(lines_of([shown], texts, style=style, most=most))


def test_trained_text_stands_between_marks_and_control_tokens_in_brackets():
    text = printed(group("<u>hi<eot>", "yes\nno<eot>", "\n"))
    assert "⟦<u>⟧hi⟦<eot>⟧«yes↵\n  no⟦<eot>⟧»↵" in text
    assert "source s | 12 tokens, 7 trained (58%) | positions 8-19, slot to 21" in text


def test_colours_end_before_each_line_break():
    text = printed(group("<u>hi", "yes\nno"), style=Style.COLOUR)
    assert "\x1b[32;4myes↵\x1b[0m\n  \x1b[32;4mno\x1b[0m" in text
    assert "«" not in text


def test_without_a_tokenizer_ids_are_shown():
    text = printed(group("<u>", "<a>"), texts=None)
    assert "3 «4 »" in text


def test_long_document_is_cut_with_a_note():
    text = printed(group("u" * 10, "a" * 3000), most=20)
    assert "«aaaaaaaaaa»\n  … 2,990 tokens left out, 2,990 of them trained" in text


def test_long_stretch_that_is_not_trained_is_left_out_but_never_an_answer():
    text = printed(group("u" * 3000, "yes", "v" * 500), most=400)
    assert f"  {'u' * 40}\n  … 2,920 tokens left out, none of them trained" in text
    assert f"\n  {'u' * 40}«yes»{'v' * 40}\n  … 420 tokens left out" in text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 150)), min_size=1), st.integers(1, 900))
def test_shown_spans_are_in_order_within_the_limit_and_hold_answers_first(stretches, most):
    trained = np.concatenate([np.full(size, kind) for kind, size in stretches])
    document = ShownDocument(
        document_id="d", source="", tokens=np.zeros(trained.size, np.int32), trained=trained
    )
    spans = around_trained(document, most=most)
    assert all(start < end for start, end in spans)
    assert all(end < following for (_, end), (following, _) in pairwise(spans))
    shown = sum(end - start for start, end in spans)
    assert shown <= most
    if trained.size <= most:
        assert spans == [(0, trained.size)]
    elif shown < most:
        kept = np.zeros(trained.size, np.bool_)
        for start, end in spans:
            kept[start:end] = True
        assert kept[trained].all()


@pytest.mark.parametrize(
    ("typed", "safe"),
    [
        ("\x1b]0;owned\x07", "␛]0;owned␇"),
        ("a\u202eb", "a\\u202eb"),
        ("\x7f\x9b2J\u2028", "␡\\u009b2J\\u2028"),
        ("tab\there", "tab\there"),
    ],
)
def test_content_cannot_act_on_a_terminal(typed, safe):
    assert visible(typed) == safe
    assert safe in printed(group(typed, "x", source=typed))


def test_source_names_cannot_act_on_a_terminal():
    assert "\x1b[2J" not in printed(group("u", "x", source="\x1b[2J"))
