import numpy as np
import pytest

from megapack.errors import ConfigError, DataError
from megapack.jobs.multimodal import GroupKind, SpecialTokenNames
from megapack.steps.multimodal.tokenizer import open_tokenizer
from tests.support.multimodal_sources import DELIMITERS, multimodal_job, sample_group
from tests.support.toy_tokenizers import bytes_tokenizer, save_tokenizer, with_bos


def opened(folder, **names):
    group = sample_group(GroupKind.TEXT_TO_IMAGE, "none")
    return open_tokenizer(multimodal_job(folder, group, special_tokens=SpecialTokenNames(**names)))


@pytest.fixture
def plain(tmp_path):
    made = bytes_tokenizer(specials=DELIMITERS)
    save_tokenizer(with_bos(made, token="<|im_start|>"), tmp_path / "tokenizer")
    return made


def test_ids_are_those_of_the_text_alone(tmp_path, plain):
    tokenizer = opened(tmp_path)
    ids = tokenizer.encode("a é\n")
    assert ids.dtype == np.int32
    assert plain.decode(ids.tolist(), skip_special_tokens=False) == "a é\n"
    assert len(ids) == 5
    assert tokenizer.encode("").tolist() == []
    special = tokenizer.special
    found = [special.bos, special.eos, special.start_of_image, special.end_of_image]
    assert found == [plain.token_to_id(token) for token in DELIMITERS]
    assert tokenizer.vocab_size == max(plain.get_vocab().values()) + 1
    assert len(tokenizer.digest) == 64


def test_a_delimiter_that_somebody_typed_is_text(tmp_path, plain):
    tokenizer = opened(tmp_path)
    typed = "a <|im_end|><|vision_start|>"
    ids = tokenizer.encode(typed).tolist()
    assert not set(ids) & {plain.token_to_id(token) for token in DELIMITERS}
    assert plain.decode(ids, skip_special_tokens=False) == typed
    # The library alone would end the text there.
    assert plain.token_to_id("<|im_end|>") in plain.encode(typed).ids


@pytest.mark.parametrize("text", ["\ud800", "a\U000f0000"])
def test_text_that_cannot_be_told_from_what_we_write_costs_its_record(tmp_path, text):
    with pytest.raises(DataError, match="expected text"):
        opened(tmp_path).encode(text)
    assert len(opened(tmp_path).encode("\U000fffff")) == 4


def test_delimiters_are_tokens_of_the_vocabulary_and_differ(tmp_path):
    with pytest.raises(ConfigError, match=r"tokens\.bos: .* found '<\|im_begin\|>'.*nearest .*im_"):
        opened(tmp_path, bos="<|im_begin|>")
    with pytest.raises(ConfigError, match="expected bos and eos to differ"):
        opened(tmp_path, bos="<|im_end|>")


@pytest.mark.parametrize("text", ["{}", '{"model": {"vocab": null}}', '{"model": {"vocab": [1]}}'])
def test_a_tokenizer_without_a_vocabulary_is_refused_by_name(tmp_path, plain, text):
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"expected a tokenizer\.json with a model"):
        opened(tmp_path)
