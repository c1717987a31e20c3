"""Peers of tokenizing: a conversation to ids and the mask of what is supervised.

Each maker loads a tokenizer folder and gives a function from OpenAI messages to `Tokenized`, so all
results can be compared position by position. Makers raise ImportError when the peer is not there.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Messages = Sequence[Mapping[str, str]]


class Tokenized(NamedTuple):
    """One conversation.

    Attributes:
        ids: int32 [n].
        mask: bool [n], aligned with ids: True where the token itself is supervised.
    """

    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]


Tokenize = Callable[[Messages], Tokenized]


def megatron_sft(folder: Path, prompt_format: str) -> Tokenize:
    """megatron-core's `SFTTokenizer`: the whole conversation, then each turn again for the mask.

    Args:
        folder: the tokenizer.
        prompt_format: `nemotron-h-aligned`, `nemotron-nano-v2`, `identity` or `default`.
    """
    from megatron.core.tokenizers.text.libraries import sft_tokenizer

    tokenizer = sft_tokenizer.SFTTokenizer(str(folder), prompt_format)

    def work(messages: Messages) -> Tokenized:
        ids, target = tokenizer.tokenize_conversation(
            list(messages), return_target=True, add_generation_prompt=False
        )
        return Tokenized(ids.astype(np.int32), target != sft_tokenizer.IGNORE_INDEX)

    return work


def hugging_face(folder: Path) -> Tokenize:
    """What TRL runs for `assistant_only_loss`: `apply_chat_template` with the assistant mask.

    The template of the folder must have `{% generation %}`. TRL's own work around this call, the
    map of `datasets` included, is left out, which favours the peer.
    """
    transformers = import_module("transformers")

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))

    def work(messages: Messages) -> Tokenized:
        found = tokenizer.apply_chat_template(
            list(messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return _of_lists(found["input_ids"], found["assistant_masks"])

    return work


def trl_dataset(folder: Path) -> Callable[[Sequence[Messages]], list[Tokenized]]:
    """TRL's `SFTTrainer` path over a `datasets` table: its `_tokenize` in `map`, as published.

    Takes all conversations at once. The cache of `datasets` is off.
    """
    datasets = import_module("datasets")
    transformers = import_module("transformers")
    sft_trainer = import_module("trl.trainer.sft_trainer")

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    datasets.disable_caching()
    datasets.disable_progress_bars()

    def of_row(row: Mapping[str, Messages]) -> dict[str, list[int]]:
        made = sft_trainer._tokenize(tokenizer, row["messages"], return_assistant_tokens_mask=True)
        return {name: made[name] for name in ("input_ids", "assistant_masks")}

    def work(conversations: Sequence[Messages]) -> list[Tokenized]:
        table = datasets.Dataset.from_dict({"messages": [list(each) for each in conversations]})
        made = table.map(of_row, remove_columns=["messages"]).with_format("numpy")
        return [_of_lists(row["input_ids"], row["assistant_masks"]) for row in made]

    return work


def _of_lists(ids: Sequence[int], mask: Sequence[int]) -> Tokenized:
    return Tokenized(np.asarray(ids, np.int32), np.asarray(mask) != 0)
