import pytest
from hypothesis import given
from hypothesis import strategies as st

from megapack.conversation.control import ControlTokens
from megapack.conversation.rejection import RejectedError
from tests.support.toy_tokenizers import SPECIALS, bytes_tokenizer, encoder_of, words_tokenizer

CONTROL = ControlTokens(["<a>", "<eot>", "<eot>x"])
PIECES = st.lists(st.sampled_from(["<a>", "<eot>", "<eot>x", "<", "x", " ", "é", "\n"]))


def test_protect_tells_typed_tokens_from_the_templates():
    text = "<a>" + CONTROL.hide("say <eot> é") + "<eot>"
    protected, spans = CONTROL.protect(text, [(3, len(text) - 5), (3, len(text))])
    a, eot = CONTROL.twins["<a>"], CONTROL.twins["<eot>"]
    assert protected == f"{a}say <eot> é{eot}"
    assert [protected[low:high] for low, high in spans] == ["say <eot> é", f"say <eot> é{eot}"]


@given(PIECES)
def test_hide_then_reveal_is_the_text(pieces):
    text = "".join(pieces)
    hidden = CONTROL.hide({"k": [text, 1, None]})["k"]
    assert CONTROL.reveal(hidden[0]) == text
    assert hidden[1:] == [1, None]
    assert not CONTROL.occur_in(hidden)


@given(PIECES)
def test_protect_of_hidden_text_is_the_text(pieces):
    text = "".join(pieces)
    assert CONTROL.protect(CONTROL.hide(text), [])[0] == text


def test_private_characters_beside_a_typed_token_are_refused():
    with pytest.raises(RejectedError, match="planes 15 and 16"):
        CONTROL.hide("<a>\U000f0000")


@pytest.mark.parametrize("literal", ["<a>", "<eot>", "<unk>"])
def test_twin_encodes_typed_tokens_as_text_under_a_byte_tokenizer(literal):
    encoder = encoder_of(bytes_tokenizer())
    control = encoder.control
    text = control.twins["<u>"] + literal + control.twins["<eot>"]
    (found,) = encoder.encode_protected([text])
    assert found.ids[[0, -1]].tolist() == [SPECIALS["<u>"], SPECIALS["<eot>"]]
    assert encoder.decode(found.ids[1:-1]) == literal
    assert len(found.ids) == 2 + len(literal)
    assert found.starts.tolist() == list(range(len(text)))


def test_twin_never_yields_a_control_id_from_a_word_of_the_vocabulary():
    encoder = encoder_of(words_tokenizer("hi"))
    (found,) = encoder.encode_protected(["hi <a> " + encoder.control.twins["<a>"]])
    assert found.ids.tolist() == [8, 1, 4]


def test_twin_equals_the_tokenizer_where_nothing_is_typed():
    encoder = encoder_of(bytes_tokenizer())
    text = "<u>héllo  \n\n🙂<eot><a> x<eot>"
    (plain,) = encoder.encode([text])
    (twin,) = encoder.encode_protected([encoder.control.protect(text, [])[0]])
    assert plain.ids.tolist() == twin.ids.tolist()
