"""A tokenizer's vocabulary as a map, and how two of them differ."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice

from tokenizers import Tokenizer

from megapack.conversation.tokenizer_files import TokenizerFiles, json_object
from megapack.errors import ConfigError

Vocabulary = Mapping[str, int]
_SHOWN = 3


def vocabulary_of(files: TokenizerFiles) -> dict[str, int]:
    """Id of every token, added ones included, by token; sorted by id.

    Raises:
        ConfigError: `tokenizer.json` cannot be loaded.
    """
    state = json_object(files.tokenizer, where=f"{files.uri}/tokenizer.json")
    try:
        loaded = Tokenizer.from_str(json.dumps(state | {"truncation": None, "padding": None}))
    except Exception as error:
        raise ConfigError(f"expected a valid tokenizer.json in {files.uri}: {error}.") from error
    found: dict[str, int] = loaded.get_vocab(with_added_tokens=True)
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def differences(expected: Vocabulary, found: Vocabulary) -> Iterator[str]:
    """What differs between two token-to-id maps, by falling use: lower ids first.

    >>> list(differences({"a": 0, "b": 1}, {"a": 0, "b": 2}))
    ["'b': expected 1, found 2"]
    """
    tokens = {**expected, **found}
    for token in sorted(tokens, key=lambda one: (expected.get(one, found.get(one, 0)), one)):
        if expected.get(token) != found.get(token):
            yield (
                f"{token!r}: expected {expected.get(token, 'no such token')}, found "
                f"{found.get(token, 'no such token')}"
            )


def first_differences(expected: Vocabulary, found: Vocabulary) -> str:
    """The first differences as text with their number; empty when the maps are equal."""
    told = list(islice(differences(expected, found), _SHOWN))
    count = sum(expected.get(token) != found.get(token) for token in {**expected, **found})
    return f"{count} tokens differ, first {'; '.join(told)}" if told else ""
