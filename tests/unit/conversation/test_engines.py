import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from megapack.conversation import fast_engine
from megapack.conversation.byte_places import ByteLengths
from megapack.conversation.checked_encoder import CheckedEncoder
from megapack.conversation.config import Engine
from megapack.conversation.distinct_segments import DistinctSegments
from megapack.conversation.engines import Engines
from megapack.conversation.hugging_face import HuggingFaceEncoder, tokenizer_state
from megapack.conversation.placed_engine import PlacedEngine
from megapack.conversation.render import Render
from megapack.conversation.target_runs import token_mask
from megapack.conversation.text_engine import EngineUnusableError
from megapack.conversation.tokenized import tokenize_renders
from tests.support.byte_tokenizers import (
    CONTROL,
    NASTY,
    changed,
    files_of,
    nasty_texts,
    same_encoding,
    trained_tokenizer,
)
from tests.support.toy_tokenizers import (
    bytes_tokenizer,
    encoder_of,
    lower_case,
    marked_words_tokenizer,
    words_tokenizer,
)

needs_fastokens = pytest.mark.skipif(
    fast_engine.fastokens is None, reason="fastokens is not installed"
)
TRAINED = trained_tokenizer()
COMPOSING = changed(TRAINED, normalizer=normalizers.NFC())


def state_of(tokenizer):
    return tokenizer_state(files_of(tokenizer)) | {"post_processor": None}


def reference_of(tokenizer):
    return HuggingFaceEncoder(files_of(tokenizer))


REFERENCES = {"trained": reference_of(TRAINED), "composing": reference_of(COMPOSING)}


def engine_of(kind, name):
    tokenizer = TRAINED if name == "trained" else COMPOSING
    make = {"fast": fast_of, "distinct": distinct_of, "placed": placed_of}[kind]
    return make(tokenizer, REFERENCES[name])


def fast_of(tokenizer, reference):
    return fast_engine.fast_engine(state_of(tokenizer), reference=reference)


def placed_of(tokenizer, reference):
    lengths = ByteLengths.of(state_of(tokenizer))
    return PlacedEngine(reference.flat, name="placed", lengths=lengths, reference=reference)


def distinct_of(tokenizer, reference):
    return DistinctSegments(state_of(tokenizer), engine=reference)


ENGINES = [
    pytest.param("fast", "trained", marks=needs_fastokens),
    pytest.param("fast", "composing", marks=needs_fastokens),
    ("distinct", "trained"),
    ("placed", "trained"),
    ("placed", "composing"),
]
MADE = {}


def made_engine(kind, name):
    if (kind, name) not in MADE:
        MADE[kind, name] = engine_of(kind, name)
    return MADE[kind, name]


@pytest.mark.parametrize(("kind", "name"), ENGINES)
@settings(max_examples=80, deadline=None)
@given(texts=st.lists(nasty_texts(), max_size=5))
def test_ids_and_places_equal_the_reference_on_hard_text(kind, name, texts):
    assert same_encoding(made_engine(kind, name).encode(texts), REFERENCES[name].encode(texts))


@pytest.mark.parametrize(("kind", "name"), ENGINES)
def test_every_hard_piece_beside_every_other_equals_the_reference(kind, name):
    texts = [f"{a}{b}{a}" for a in (*NASTY, *CONTROL) for b in (*NASTY, *CONTROL)]
    assert same_encoding(made_engine(kind, name).encode(texts), REFERENCES[name].encode(texts))


@needs_fastokens
def test_long_runs_equal_the_reference():
    texts = [" " * 20_000, "\n" * 5_000 + "a", "é" * 5_000, "a\u0301" * 3_000, "🙂" * 3_000]
    assert same_encoding(
        made_engine("fast", "trained").encode(texts), REFERENCES["trained"].encode(texts)
    )


@pytest.mark.parametrize(("kind", "name"), ENGINES)
@settings(max_examples=50, deadline=None)
@given(data=st.data(), texts=st.lists(nasty_texts(), min_size=1, max_size=4))
def test_supervised_runs_equal_the_rule_per_character(kind, name, data, texts):
    renders = [
        Render(
            text=text,
            spans=data.draw(st.none() | spans_in(len(text))),
            repeated=data.draw(st.integers(0, len(text))),
        )
        for text in texts
    ]
    encoder = CheckedEncoder(REFERENCES[name], engines=[made_engine(kind, name)])
    for render, found in zip(renders, tokenize_renders(renders, encoder=encoder), strict=True):
        (want,) = REFERENCES[name].encode([render.text])
        spans = ((render.repeated, len(render.text)),) if render.spans is None else render.spans
        mask = token_mask(want, length=len(render.text), spans=spans)
        mask[:1] = False
        assert np.array_equal(found.tokens, want.ids)
        assert np.array_equal(found.mask, mask)
        assert found.num_targets == int(mask.sum())
        assert found.num_repeated == int((want.ends <= render.repeated).sum())


@st.composite
def spans_in(draw, length):
    count = min(6, length + 1) // 2 * 2
    edges = sorted(draw(st.sets(st.integers(0, length), min_size=0, max_size=count)))
    return tuple(zip(edges[::2], edges[1::2], strict=False))


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param("fast", "trained", marks=needs_fastokens), ("distinct", "trained")],
)
def test_supervised_tokens_decode_to_exactly_the_answer(kind, name):
    encoder = CheckedEncoder(REFERENCES[name], engines=[made_engine(kind, name)])
    for asked, answer in (
        ("é", "🙂 ok\u202f…"),
        ("e\u0301", "🙂 ok\u202f…"),
        ("é", "cafe\u0301 naïve"),
        ("é🙂", "\u202f"),
    ):
        head = f"<SPECIAL_11>{asked}<SPECIAL_12>"
        text = f"{head}{answer}<SPECIAL_12>"
        render = Render(text=text, spans=((len(head), len(text)),))
        (found,) = tokenize_renders([render], encoder=encoder)
        assert encoder.decode(found.tokens[found.mask]) == f"{answer}<SPECIAL_12>"


def test_turn_that_begins_with_newlines_is_encoded_in_its_place():
    # Plain text before the turn, so cutting there would give other tokens than the whole.
    text = "<SPECIAL_11>User\n\n\nhi<SPECIAL_12>"
    whole = REFERENCES["trained"].encode([text])
    cut = REFERENCES["trained"].encode(["<SPECIAL_11>User\n", "\n\nhi<SPECIAL_12>"])
    assert whole.ids.tolist() != cut.ids.tolist()
    assert same_encoding(made_engine("distinct", "trained").encode([text]), whole)


def test_marked_word_keeps_its_id_inside_the_conversation():
    tokenizer = marked_words_tokenizer("Say it The sky")
    text = "<u>Say it<a>The sky"
    encoder = Engines.load(files_of(tokenizer), choice=Engine.AUTO).checked()
    assert encoder.engine == "reference"
    (found,) = encoder.encode([text])
    (want,) = encoder_of(tokenizer).encode([text])
    assert found.ids.tolist() == want.ids.tolist()
    alone = encoder.encode(["The sky"])[0].ids.tolist()
    assert found.ids.tolist()[-len(alone) :] != alone


def test_repeated_segments_are_encoded_once_a_batch():
    asked = []

    class Counting:
        name = "counting"

        def encode(self, texts):
            asked.extend(texts)
            return REFERENCES["trained"].encode(texts)

    turns = [f"<|im_start|>hi<|im_end|>turn {number % 3}<|im_end|>" for number in range(9)]
    engine = DistinctSegments(state_of(TRAINED), engine=Counting())
    assert same_encoding(engine.encode(turns), REFERENCES["trained"].encode(turns))
    assert asked == ["hi", "turn 0", "turn 1", "turn 2"]


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (marked_words_tokenizer("a b"), "Metaspace"),
        (lower_case(changed(TRAINED)), "normalizer"),
        (changed(TRAINED, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)), "space"),
    ],
)
def test_segments_are_refused_where_a_tokenizer_looks_beyond_them(tokenizer, why):
    with pytest.raises(EngineUnusableError, match=why):
        distinct_of(tokenizer, None)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_segments_are_refused_for_added_tokens_that_look_around(flag):
    tokenizer = changed(TRAINED)
    tokenizer.add_special_tokens([AddedToken("<odd>", **{flag: True})])
    with pytest.raises(EngineUnusableError, match=rf"'<odd>' has {flag}"):
        distinct_of(tokenizer, None)


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (words_tokenizer("a b"), "WhitespaceSplit may change"),
        (lower_case(changed(TRAINED)), "normalizer is Lowercase"),
        (changed(TRAINED, normalizer=normalizers.NFKC()), "normalizer is NFKC"),
        (changed(TRAINED, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)), "ByteL"),
        (changed(TRAINED, pre_tokenizer=pre_tokenizers.Digits()), "does not end in ByteLevel"),
    ],
)
def test_lengths_are_refused_where_bytes_may_change(tokenizer, why):
    with pytest.raises(EngineUnusableError, match=why):
        ByteLengths.of(state_of(tokenizer))


def test_lengths_are_refused_for_models_that_are_no_byte_symbols():
    state = state_of(TRAINED)
    for changes, why in (
        ({"dropout": 0.1}, "dropout"),
        ({"byte_fallback": True}, "falls back"),
        ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix"),
        ({"type": "Unigram"}, "Unigram"),
        ({"vocab": {"a": 0}}, "lacks 255 of the 256"),
    ):
        with pytest.raises(EngineUnusableError, match=why):
            ByteLengths.of(state | {"model": state["model"] | changes})


def test_lengths_that_do_not_add_up_are_named():
    lengths = ByteLengths.of(state_of(TRAINED))
    batch = REFERENCES["trained"].encode(["ab", "é", "cd"])
    _, wrong = lengths.places(["ab", "é", "cd"], batch.ids, batch.tokens)
    assert wrong.tolist() == []
    _, wrong = lengths.places(["ab", "éé", "cde"], batch.ids, batch.tokens)
    assert wrong.tolist() == [1, 2]
    unknown = np.array([10**6], dtype=np.int32)
    _, wrong = lengths.places(["a"], unknown, np.array([0, 1], dtype=np.int64))
    assert wrong.tolist() == [0]


@needs_fastokens
def test_text_that_a_token_strips_goes_to_the_reference():
    tokenizer = changed(TRAINED)
    tokenizer.add_special_tokens([AddedToken("<odd>", lstrip=True)])
    reference = reference_of(tokenizer)
    texts = ["a  <odd>b", "plain é", "a<odd>", "<odd> \n"]
    assert same_encoding(fast_of(tokenizer, reference).encode(texts), reference.encode(texts))


@needs_fastokens
@settings(max_examples=30, deadline=None)
@given(text=nasty_texts())
def test_typed_control_tokens_stay_text_under_any_engine(text):
    assume(not any(character >= "\U000f0000" for character in text))
    encoder = CheckedEncoder(REFERENCES["trained"], engines=[made_engine("fast", "trained")])
    typed, _ = encoder.control.protect(encoder.control.hide(text), ())
    assert same_encoding(
        encoder.encode_protected([typed]), REFERENCES["trained"].encode_protected([typed])
    )


def test_encoded_batch_is_a_sequence_of_texts():
    batch = REFERENCES["trained"].encode(["ab", "", "é <unk>"])
    assert len(batch) == 3
    assert [one.ids.size for one in batch] == [np.diff(batch.tokens)[i] for i in range(3)]
    assert batch[-1].starts.tolist()[0] == 0
    assert [one.ends.size for one in batch[1:]] == [0, batch[2].ids.size]
    with pytest.raises(IndexError):
        batch[3]
    assert len(REFERENCES["trained"].encode([])) == 0


def test_byte_tokenizer_of_tests_is_what_saved_ones_are():
    state = json.loads(bytes_tokenizer().to_str())
    assert ByteLengths.of(state | {"post_processor": None}).by_id.max() >= 1
