"""A byte-level BPE tokenizer trained on the demo's text, as a Hugging Face style folder.

Any text survives encoding and decoding: nothing is normalised, and the 256 byte symbols are all
in the vocabulary. Digits stand alone. Control tokens cover ChatML and Megatron-core's Nemotron
formats; the tags for thinking and tools are added tokens that decoding does not skip.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from infra.demo.talks import Conversation
from infra.demo.topics import DemoError

UNKNOWN, PAD, END_OF_TEXT = "<unk>", "<pad>", "<|endoftext|>"
CONTROL_TOKENS = (
    UNKNOWN,
    PAD,
    END_OF_TEXT,
    "<|im_start|>",
    "<|im_end|>",
    "<SPECIAL_10>",
    "<SPECIAL_11>",
    "<SPECIAL_12>",
    "<SPECIAL_233>",
)
"""Ids from 0. Nemotron formats need the last four; nemotron-h-aligned pads with `<SPECIAL_233>`."""
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Ids after the control tokens; added tokens, but not special ones."""

_WORDS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEADERS = {
    "system": ("system\n", "System\n"),
    "user": ("user\n", "User\n"),
    "assistant": ("assistant\n", "Assistant\n"),
    "tool": ("tool\n", "tool\n"),
}
_MODEL_MAX_LENGTH = 8192
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(conversations: Iterable[Conversation], *, vocabulary_size: int) -> Tokenizer:
    """Train a tokenizer.

    Args:
        conversations: The text; role headers are added to it, so that each is one token.
        vocabulary_size: Ids in all, control tokens and tags included.

    Returns:
        The tokenizer; the same for the same conversations.

    Raises:
        DemoError: The text is too small for `vocabulary_size`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[
            AddedToken(token, special=True, normalized=False) for token in (*CONTROL_TOKENS, *TAGS)
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(conversations), trainer)
    if tokenizer.get_vocab_size() != vocabulary_size:
        raise DemoError(
            f"Expected a vocabulary of {vocabulary_size}; the text gives only "
            f"{tokenizer.get_vocab_size()}. Use more conversations or a smaller vocabulary."
        )
    return _with_plain_tags(tokenizer)


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The files of the tokenizer's folder, by name."""
    template = _TEMPLATE.read_text(encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "pad_token": PAD,
        "eos_token": END_OF_TEXT,
        "model_max_length": _MODEL_MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
        "chat_template.jinja": template.encode(),
    }


def _texts(conversations: Iterable[Conversation]) -> Iterator[str]:
    for conversation in conversations:
        yield from (json.dumps(tool, ensure_ascii=False) for tool in conversation.tools)
        for message in conversation.messages:
            yield from _HEADERS[message["role"]]
            yield message.get("content") or ""
            yield message.get("reasoning_content") or ""
            yield from (call["function"]["arguments"] for call in message.get("tool_calls", ()))


def _with_plain_tags(tokenizer: Tokenizer) -> Tokenizer:
    """Clear the special flag of the tags: a trainer marks all its added tokens as special."""
    state: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] not in TAGS
    return Tokenizer.from_str(json.dumps(state))
