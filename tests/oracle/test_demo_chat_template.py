"""The demo's chat template and tokenizer as transformers and Megatron-core read them."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from infra.demo import conversations
from infra.demo.build import build_demo
from infra.demo.reading import read_topics
from infra.demo.talks import Conversation, Library

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")
SIZE = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    return build_demo(out, size=SIZE, vocabulary_size=1024).folder / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def talks() -> list[Conversation]:
    made = conversations.generate(Library.of(read_topics()), size=SIZE)
    return [talk for file_talks in made.values() for talk in file_talks]


def _render(tokenizer: Any, messages: list, **settings: Any) -> Any:
    return tokenizer.apply_chat_template(messages, **settings)


def test_folder_loads_with_its_special_tokens(tokenizer: Any) -> None:
    assert len(tokenizer) == 1024
    assert (tokenizer.unk_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.bos_token is None


def test_each_assistant_turn_is_supervised_up_to_its_end_token(
    tokenizer: Any, talks: list[Conversation]
) -> None:
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for talk in talks:
        made = _render(
            tokenizer,
            list(talk.messages),
            tools=list(talk.tools) or None,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        pairs = list(zip(made["input_ids"], made["assistant_masks"], strict=True))
        runs = [
            [token for token, _ in group]
            for supervised, group in itertools.groupby(pairs, key=lambda pair: pair[1])
            if supervised
        ]
        assert len(runs) == sum(message["role"] == "assistant" for message in talk.messages)
        for run, message in zip(
            runs, (m for m in talk.messages if m["role"] == "assistant"), strict=True
        ):
            text = tokenizer.decode(run)
            assert run[-1] == end
            assert text.startswith(("<think>\n", "<tool_call>\n")) or (
                text == f"{message['content']}<|im_end|>"
            )


def test_template_writes_reasoning_calls_and_results(tokenizer: Any) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Add é."},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    text = _render(tokenizer, messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou may call these tools:\n"
        '{"type": "function", "function": {"name": "add"}}\n'
        'Write a call as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n'
        "<|im_start|>user\nAdd é.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nHm.\n</think>\n\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_refuses_an_unknown_role(tokenizer: Any) -> None:
    with pytest.raises(Exception, match=r"Expected one of the roles .*; found narrator\."):
        _render(tokenizer, [{"role": "narrator", "content": "x"}], tokenize=False)


@pytest.mark.parametrize(
    ("prompt_format", "pad"),
    [("nemotron-nano-v2", "<unk>"), ("nemotron-h-aligned", "<SPECIAL_233>"), ("default", "<pad>")],
)
def test_megatron_reads_the_folder_with_its_pad_token(
    folder: Path, tokenizer: Any, talks: list[Conversation], prompt_format: str, pad: str
) -> None:
    sft = pytest.importorskip("megatron.core.tokenizers.text.libraries.sft_tokenizer")
    made = sft.SFTTokenizer(str(folder), prompt_format)
    assert made.pad_id == tokenizer.convert_tokens_to_ids(pad)
    plain = [talk for talk in talks if not talk.tools][:20]
    for talk in plain:
        tokens, targets = made.tokenize_conversation(
            list(talk.messages), return_target=True, add_generation_prompt=False
        )
        supervised = tokenizer.decode(targets[targets != sft.IGNORE_INDEX])
        for message in talk.messages:
            if message["role"] == "assistant":
                assert message["content"].strip() in supervised
        if prompt_format == "nemotron-nano-v2":
            assert "<SPECIAL_11>" not in supervised
            assert "Assistant\n" not in supervised
        assert len(tokens) == len(targets)
