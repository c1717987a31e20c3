import pytest

from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.conversation.prompt import prompt_format, resolve_pad_id
from megapack.errors import ConfigError
from tests.support.toy_tokenizers import encoder_of, words_tokenizer


def pad(form, *, tokenizer=None, special_tokens=None, **config):
    encoder = encoder_of(tokenizer or words_tokenizer("hi"), special_tokens=special_tokens)
    settings = TokenizeConfig(long_documents="drop", **config)
    return resolve_pad_id(PromptFormat(form), encoder=encoder, config=settings)


def test_unknown_format_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"nemotron-h-aligned, nemotron-nano-v2, identity, chat"):
        prompt_format("default")
    assert prompt_format("identity") is PromptFormat.IDENTITY


@pytest.mark.parametrize(
    ("form", "special_tokens", "expected"),
    [
        ("chat_template", {"pad_token": "<pad>", "eos_token": "</s>"}, 0),
        ("chat_template", {"eos_token": "</s>"}, 2),
        ("chat_template", {"pad_token": "<gone>", "unk_token": "<unk>"}, 1),
        ("chat_template", {}, 0),
        ("nemotron-nano-v2", {"pad_token": "<pad>"}, 1),
        ("nemotron-h-aligned", {"pad_token": "<eot>"}, 5),
    ],
)
def test_pad_id_is_the_first_that_exists(form, special_tokens, expected):
    assert pad(form, special_tokens=special_tokens) == expected


def test_pad_token_of_the_job_wins_and_must_exist():
    assert pad("nemotron-nano-v2", pad_token="<eot>") == 5
    with pytest.raises(ConfigError, match=r"found '<none>', which it lacks"):
        pad("chat_template", pad_token="<none>")
