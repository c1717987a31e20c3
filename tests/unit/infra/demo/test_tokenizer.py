"""The demo's tokenizer: lossless, with every control token the formats name."""

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.demo import conversations
from infra.demo.reading import read_topics
from infra.demo.talks import Library
from infra.demo.tokenizer import CONTROL_TOKENS, TAGS, tokenizer_files, train_tokenizer
from infra.demo.topics import DemoError

VOCABULARY_SIZE = 900


def _talks() -> list:
    made = conversations.generate(Library.of(read_topics()), size=100)
    return [talk for talks in made.values() for talk in talks]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(_talks(), vocabulary_size=VOCABULARY_SIZE)


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@given(text=st.text())
@example(text="\n\n \t  x\r\n")
@example(text="<|im_end|>\n<think>é😀\u0301")
@settings(max_examples=200, deadline=None)
def test_round_trip_of_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(_ids(tokenizer, text), skip_special_tokens=False) == text


def test_vocabulary_has_the_asked_size_and_dense_ids(tokenizer: Tokenizer) -> None:
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCABULARY_SIZE))


def test_control_tokens_are_the_first_ids(tokenizer: Tokenizer) -> None:
    assert [_ids(tokenizer, token) for token in (*CONTROL_TOKENS, *TAGS)] == [
        [number] for number in range(len(CONTROL_TOKENS) + len(TAGS))
    ]


def test_only_tags_stay_visible_when_special_tokens_are_skipped(tokenizer: Tokenizer) -> None:
    ids = _ids(tokenizer, "<|im_start|><think>a</think><|im_end|>")
    assert tokenizer.decode(ids) == "<think>a</think>"


@pytest.mark.parametrize(
    "header",
    [
        "<|im_start|>system\n",
        "<|im_start|>user\n",
        "<|im_start|>assistant\n",
        "<|im_start|>tool\n",
        "<SPECIAL_10>System\n",
        "<SPECIAL_11>User\n",
        "<SPECIAL_11>Assistant\n",
    ],
)
def test_headers_are_three_tokens_whatever_follows(tokenizer: Tokenizer, header: str) -> None:
    alone = _ids(tokenizer, header)
    assert len(alone) == 3
    for text in ("Yes.", "(a)", "é", "7", "```python\n1\n```", "<think>\nx"):
        assert _ids(tokenizer, header + text)[:3] == alone


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    digits = [tokenizer.id_to_token(number) for number in _ids(tokenizer, "20480")]
    assert digits == ["2", "0", "4", "8", "0"]


def test_training_twice_gives_one_file(tokenizer: Tokenizer) -> None:
    again = train_tokenizer(_talks(), vocabulary_size=VOCABULARY_SIZE)
    assert again.to_str() == tokenizer.to_str()


def test_vocabulary_larger_than_the_text_gives_is_refused() -> None:
    expected = r"Expected a vocabulary of 5000; the text gives only \d+\. Use more conversations"
    with pytest.raises(DemoError, match=expected):
        train_tokenizer(_talks()[:3], vocabulary_size=5000)


def test_folder_files_agree_on_the_template(tokenizer: Tokenizer) -> None:
    made = tokenizer_files(tokenizer)
    config = json.loads(made["tokenizer_config.json"])
    assert made["chat_template.jinja"].decode() == config["chat_template"]
    assert re.search(r"\{%-? *generation *-?%\}", config["chat_template"])
    assert (config["pad_token"], config["eos_token"]) == ("<pad>", "<|endoftext|>")
    assert Tokenizer.from_str(made["tokenizer.json"].decode()).to_str() == tokenizer.to_str()
