from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from megapack.conversation.token_text import TokenTexts
from megapack.conversation.tokenizer_files import TokenizerFiles
from tests.support.toy_tokenizers import SPECIALS, bytes_tokenizer, words_tokenizer


def texts_of(tokenizer):
    return TokenTexts(
        TokenizerFiles(
            uri="memory",
            tokenizer=tokenizer.to_str().encode(),
            special_tokens={},
            chat_templates={},
            digest="0" * 64,
        )
    )


def shown(pieces):
    return [(piece.text, piece.count, piece.control) for piece in pieces]


BYTES = bytes_tokenizer()
TEXTS = texts_of(BYTES)


def ids_of(text):
    return BYTES.encode(text, add_special_tokens=False).ids


def test_tokens_of_one_character_are_one_piece():
    pieces = TEXTS.pieces(ids_of("é🙂a"))
    assert shown(pieces) == [("é", 2, False), ("🙂", 4, False), ("a", 1, False)]


def test_character_cut_by_a_control_token_or_the_end_shows_as_damaged():
    first, second = ids_of("é")
    pieces = TEXTS.pieces([first, SPECIALS["<eot>"], second])
    assert shown(pieces) == [("\ufffd", 1, False), ("<eot>", 1, True), ("\ufffd", 1, False)]
    assert shown(TEXTS.pieces([*ids_of("a"), first])) == [("a", 1, False), ("\ufffd", 1, False)]


def test_character_is_cut_where_the_caller_breaks():
    pieces = TEXTS.pieces(ids_of("aé"), breaks=[2])
    assert shown(pieces) == [("a", 1, False), ("\ufffd", 1, False), ("\ufffd", 1, False)]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_pieces_of_whole_text_join_to_it_and_count_every_token(text):
    ids = ids_of(text)
    pieces = TEXTS.pieces(ids)
    assert sum(piece.count for piece in pieces) == len(ids)
    # Control tokens typed in the text become control tokens here, with the same letters.
    assert "".join(piece.text for piece in pieces) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=30))
def test_any_ids_are_shown_and_counted(ids):
    pieces = TEXTS.pieces(ids)
    assert sum(piece.count for piece in pieces) == len(ids)
    assert all(piece.text for piece in pieces)


def test_id_outside_the_vocabulary_is_named():
    assert shown(TEXTS.pieces([9999])) == [("<no token 9999>", 1, False)]


def test_byte_fallback_tokens_of_one_character_are_one_piece():
    names = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}
    names |= {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    model = models.BPE(vocab=names, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    ids = tokenizer.encode("a é a").ids
    pieces = texts_of(tokenizer).pieces(ids)
    assert "".join(piece.text for piece in pieces) == " a é a"
    assert ("é", 2, False) in shown(pieces)


def test_tokens_without_a_decoder_stand_apart():
    tokenizer = words_tokenizer("a b")
    pieces = texts_of(tokenizer).pieces(tokenizer.encode("a b <eot>").ids)
    assert shown(pieces) == [(" a", 1, False), (" b", 1, False), ("<eot>", 1, True)]
