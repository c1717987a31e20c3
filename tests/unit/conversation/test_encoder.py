import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from megapack.conversation.encoder import Encoded
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.target_runs import token_mask
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import ConfigError
from tests.support.toy_tokenizers import (
    SPECIALS,
    bytes_tokenizer,
    encoder_of,
    save_tokenizer,
    with_bos,
    words_tokenizer,
)


def encoded(offsets):
    array = np.array(offsets, dtype=np.int32).reshape(-1, 2)
    return Encoded(ids=np.zeros(len(array), np.int32), starts=array[:, 0], ends=array[:, 1])


def test_token_is_supervised_when_it_overlaps_a_supervised_character():
    found = token_mask(
        encoded([(0, 2), (2, 4), (4, 4), (4, 6), (6, 7), (7, 7)]), length=7, spans=[(3, 5)]
    )
    assert found.tolist() == [False, True, True, True, False, False]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12),
    st.lists(st.integers(0, 9), min_size=2, max_size=6, unique=True),
)
def test_mask_equals_the_definition_for_any_tokens_and_spans(pairs, edges):
    offsets = [(min(pair), max(pair)) for pair in pairs]
    edges = sorted(edges)[: len(edges) // 2 * 2]
    spans = list(zip(edges[::2], edges[1::2], strict=True))
    inside = {c for low, high in spans for c in range(low, high)}
    expected = [bool(inside & set(range(a, b) or [a])) for a, b in offsets]
    assert token_mask(encoded(offsets), length=9, spans=spans).tolist() == [
        want and a < 9 for want, (a, _) in zip(expected, offsets, strict=True)
    ]


def test_offsets_of_split_characters_and_white_space_are_whole():
    encoder = encoder_of(bytes_tokenizer())
    text = "é  🙂\u202f"
    (found,) = encoder.encode([text])
    assert found.starts.tolist() == [0, 0, 1, 2, 3, 3, 3, 3, 4, 4, 4]
    assert found.ends.tolist() == [1, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5]


def test_engine_adds_nothing_and_truncates_nothing():
    tokenizer = with_bos(words_tokenizer("hi"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    encoder = encoder_of(tokenizer)
    assert encoder.encode(["hi hi hi"])[0].ids.tolist() == [8, 8, 8]
    assert encoder.bos_ids.tolist() == [SPECIALS["</s>"]]
    assert encoder_of(words_tokenizer("hi")).bos_ids.tolist() == []
    assert encoder.encode([""])[0].ids.tolist() == []


def test_unknown_token_has_no_id_instead_of_the_unknown_ones():
    encoder = encoder_of(words_tokenizer("hi"))
    assert encoder.token_id("<eot>") == 5
    assert encoder.token_id("<SPECIAL_10>") is None
    assert encoder.vocabulary_size == 9


def test_tokenizer_folder_gives_names_templates_and_a_digest(tmp_path):
    tokenizer = words_tokenizer("hi")
    folder = save_tokenizer(
        tokenizer,
        tmp_path / "t",
        template="{{ 1 }}",
        eos_token={"content": "</s>"},
        pad_token="<pad>",
        chat_template="old",
    )
    files = read_tokenizer_files(folder)
    assert files.special_tokens == {"eos_token": "</s>", "pad_token": "<pad>"}
    assert files.chat_templates == {"default": "{{ 1 }}"}
    again = read_tokenizer_files(save_tokenizer(tokenizer, tmp_path / "u", template="{{ 2 }}"))
    assert files.digest != again.digest


def test_missing_and_broken_tokenizers_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"expected a tokenizer folder with tokenizer.json at"):
        read_tokenizer_files(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"expected a valid tokenizer.json in"):
        HuggingFaceEncoder(read_tokenizer_files(str(tmp_path)))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"expected JSON in .*tokenizer_config.json"):
        read_tokenizer_files(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\noid x", "git-lfs pointer"),
        ("tokenizer.json", b"\xff\xfe\x00", "expected JSON in .*tokenizer.json"),
        ("tokenizer.json", b"[]", "expected a JSON object in .*tokenizer.json, found list"),
        ("tokenizer_config.json", b"[]", "JSON object in .*tokenizer_config.json, found list"),
        ("tokenizer_config.json", b'{"chat_template": [{"x": 1}]}', "tokenizer_config.json: expec"),
        ("tokenizer_config.json", b'{"chat_template": ["a"]}', "tokenizer_config.json: expected"),
        ("tokenizer_config.json", b'{"chat_template": 7}', "tokenizer_config.json: expected"),
        ("chat_template.jinja", b"\xe9", "expected UTF-8 in .*chat_template.jinja"),
    ],
)
def test_broken_file_of_a_tokenizer_folder_is_named(tmp_path, name, content, words):
    folder = save_tokenizer(words_tokenizer("hi"), tmp_path / "t")
    (tmp_path / "t" / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        HuggingFaceEncoder(read_tokenizer_files(folder))


def test_tokenizer_of_an_unknown_scheme_is_refused():
    with pytest.raises(ConfigError, match="found scheme 'hf'"):
        read_tokenizer_files("hf://some/tokenizer")


def test_tokenizer_that_cannot_encode_a_text_is_a_wrong_job():
    with pytest.raises(ConfigError, match=r"that encodes any text: .*UNK"):
        encoder_of(Tokenizer(models.WordLevel({"b": 0}, unk_token="<unk>")))
    encoder = encoder_of(Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>")))
    with pytest.raises(ConfigError, match=r"that encodes any text: .*UNK"):
        encoder.encode(["c"])
