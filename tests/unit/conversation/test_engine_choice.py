"""Which engine runs: the checks on a part's own texts, what is given up, what is an error."""

import importlib
import logging
import sys

import pytest

from megapack.conversation import fast_engine
from megapack.conversation.checked_encoder import CheckedEncoder
from megapack.conversation.config import Engine
from megapack.conversation.distinct_segments import DistinctSegments
from megapack.conversation.encoder import EncodedBatch
from megapack.conversation.engines import Engines
from megapack.conversation.hugging_face import HuggingFaceEncoder, tokenizer_state
from megapack.errors import ConfigError
from tests.support.byte_tokenizers import files_of, same_encoding, trained_tokenizer
from tests.support.toy_tokenizers import words_tokenizer

needs_fastokens = pytest.mark.skipif(
    fast_engine.fastokens is None, reason="fastokens is not installed"
)
TRAINED = trained_tokenizer()
REFERENCES = {"trained": HuggingFaceEncoder(files_of(TRAINED))}


class Wrong:
    """The reference, but for texts that hold a mark."""

    name = "wrong"

    def __init__(self, mark="bad", field="ids"):
        self._mark, self._field = mark, field

    def encode(self, texts):
        batch = REFERENCES["trained"].encode(texts)
        parts = [
            type(one)(
                **{
                    name: getattr(one, name) + (self._mark in text and name == self._field)
                    for name in ("ids", "starts", "ends")
                }
            )
            for text, one in zip(texts, batch, strict=True)
        ]
        return EncodedBatch.of(parts, characters=batch.characters)


@pytest.mark.parametrize("field", ["ids", "starts", "ends"])
def test_engine_that_differs_is_given_up_with_a_reason(field, caplog):
    encoder = CheckedEncoder(REFERENCES["trained"], engines=[Wrong(field=field)])
    texts = ["good", "bad", "good again"]
    with caplog.at_level(logging.WARNING):
        found = encoder.encode(texts)
    assert same_encoding(found, REFERENCES["trained"].encode(texts))
    assert encoder.engine == "reference"
    assert not encoder.in_doubt
    (record,) = caplog.records
    assert "engine=wrong given up: text 1 of a batch of 3: token 0 is" in record.getMessage()


def test_next_engine_is_tried_and_checked_too():
    right = DistinctSegments(
        tokenizer_state(files_of(TRAINED)) | {"post_processor": None}, engine=REFERENCES["trained"]
    )
    encoder = CheckedEncoder(REFERENCES["trained"], engines=[Wrong(), Wrong(), right])
    encoder.encode(["bad"])
    assert encoder.engine == right.name


def test_engine_that_differs_late_leaves_earlier_results_in_doubt():
    encoder = CheckedEncoder(REFERENCES["trained"], engines=[Wrong(mark="é")])
    encoder.encode(["plain"] * 20)
    assert not encoder.in_doubt
    assert same_encoding(encoder.encode(["é"]), REFERENCES["trained"].encode(["é"]))
    assert encoder.in_doubt
    encoder.restart()
    assert not encoder.in_doubt


def test_checked_texts_are_the_first_four_of_each_kind_and_powers_of_four():
    asked = []

    class Listening(HuggingFaceEncoder):
        def encode(self, texts):
            asked.extend(texts)
            return super().encode(texts)

    reference = Listening(files_of(TRAINED))
    encoder = CheckedEncoder(reference, engines=[Wrong()])
    for start in (0, 7):
        encoder.encode([f"{number}" for number in range(start, start + 7)])
    encoder.encode([f"é{number}" for number in range(5)])
    encoder.encode([f"{number}" for number in range(14, 80)])
    plain = [int(text) for text in asked if text.isascii()]
    assert plain == [0, 1, 2, 3, 4, 16, 64]
    assert [text for text in asked if not text.isascii()] == ["é0", "é1", "é2", "é3", "é4"]


def test_required_engine_that_differs_is_an_error():
    encoder = CheckedEncoder(REFERENCES["trained"], engines=[Wrong()], required="wrong")
    with pytest.raises(ConfigError, match=r"engine = wrong: expected the tokens of .* text 0 of"):
        encoder.encode(["bad"])


def test_missing_package_falls_back_and_is_an_error_where_it_is_required(monkeypatch):
    monkeypatch.setattr(fast_engine, "fastokens", None)
    files = files_of(TRAINED)
    engines = Engines.load(files, choice=Engine.AUTO)
    assert "fastokens is not installed" in engines.reasons
    assert engines.checked().engine == "distinct segments"
    with pytest.raises(ConfigError, match=r"engine = fast: .*not installed .*engine = auto"):
        Engines.load(files, choice=Engine.FAST)


def test_module_loads_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    try:
        assert importlib.reload(fast_engine).fastokens is None
    finally:
        monkeypatch.undo()
        importlib.reload(fast_engine)


@needs_fastokens
def test_choice_decides_which_engines_are_tried():
    names = {
        choice: [engine.name for engine in Engines.load(files_of(TRAINED), choice=choice).quicker]
        for choice in Engine
    }
    assert names == {
        Engine.AUTO: ["fast", "distinct segments"],
        Engine.REFERENCE: ["distinct segments"],
        Engine.FAST: ["fast"],
    }


@needs_fastokens
def test_tokenizer_of_another_kind_cannot_be_fast():
    with pytest.raises(ConfigError, match=r"it is not byte-level: .*WhitespaceSplit"):
        Engines.load(files_of(words_tokenizer("a")), choice=Engine.FAST)
    engines = Engines.load(files_of(words_tokenizer("a")), choice=Engine.AUTO)
    assert engines.checked().engine == "distinct segments"
    assert "not byte-level" in engines.reasons
