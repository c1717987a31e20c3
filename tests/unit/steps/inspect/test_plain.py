import numpy as np
import pytest

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
    assert "«aaaaaaaaaa»" in text
    assert "… 2,990 more tokens, 2,990 of them trained (--max-tokens shows more)" in text


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
