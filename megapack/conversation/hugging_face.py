"""The reference engine: the `tokenizers` library on a tokenizer's own `tokenizer.json`.

Post-processing is taken off: it would add BOS where the template already wrote one, and trims the
offsets of white space, which loses their place. What it puts in front is read off once, on ids.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from megapack.conversation.control import ControlTokens
from megapack.conversation.encoder import Encoded, EncodedBatch, characters_of, offsets_of
from megapack.conversation.tokenizer_files import TokenizerFiles, json_object
from megapack.errors import ConfigError
from megapack.layout.runs import Int32, Int64


class HuggingFaceEncoder:
    """An `Encoder` on `tokenizers.Tokenizer`."""

    name = "reference"

    def __init__(self, files: TokenizerFiles) -> None:
        """Load the tokenizer.

        Raises:
            ConfigError: `tokenizer.json` cannot be loaded.
        """
        self._files = files
        state = tokenizer_state(files)
        whole = load_tokenizer(state, uri=files.uri)
        added = state.get("added_tokens") or []
        self._control = ControlTokens(
            token["content"] for token in sorted(added, key=lambda t: t["id"]) if token["special"]
        )
        self._bos_ids = _prefix_ids(
            whole, probe=added[0]["content"] if added else "a", uri=files.uri
        )
        self._tokenizer = whole
        if state.get("post_processor") is not None:
            self._tokenizer = load_tokenizer(state | {"post_processor": None}, uri=files.uri)
        self._twin: Tokenizer | None = None
        self._asked: dict[str, int | None] = {}
        self._vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)

    @property
    def digest(self) -> str:
        """SHA-256 over the tokenizer's files."""
        return self._files.digest

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return max(self._vocabulary.values(), default=-1) + 1

    @property
    def bos_ids(self) -> Int32:
        """int32 [0 or more]: what the tokenizer's post-processor puts in front."""
        return self._bos_ids

    @property
    def control(self) -> ControlTokens:
        """Added tokens marked special."""
        return self._control

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Named special tokens."""
        return self._files.special_tokens

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Jinja texts by name."""
        return self._files.chat_templates

    def token_id(self, token: str) -> int | None:
        """Id of a token's text, checked by a round trip: unknown ones must not become `<unk>`."""
        if token not in self._asked:
            found = self._vocabulary.get(token)
            known = found is not None and self._tokenizer.id_to_token(found) == token
            self._asked[token] = found if known else None
        return self._asked[token]

    def encode(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts."""
        return self._encode(self._tokenizer, texts)

    def flat(self, texts: Sequence[str]) -> tuple[Int32, Int64]:
        """Ids alone, which takes a third less time.

        Returns:
            int32 [T], tokens of the texts; int64 [N+1], where those of each begin.
        """
        try:
            batch = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:
            raise _cannot_encode(error, uri=self._files.uri) from error
        sizes = np.fromiter(map(len, batch), dtype=np.int64, count=len(batch))
        ids = chain.from_iterable(encoding.ids for encoding in batch)
        return np.fromiter(ids, dtype=np.int32, count=int(sizes.sum())), offsets_of(sizes)

    def encode_protected(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts of `ControlTokens.protect`."""
        if self._twin is None:
            state = twin_state(tokenizer_state(self._files), self._control)
            self._twin = load_tokenizer(state, uri=self._files.uri)
        return self._encode(self._twin, texts)

    def _encode(self, tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedBatch:
        try:
            batch = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:
            raise _cannot_encode(error, uri=self._files.uri) from error
        return EncodedBatch.of(map(_encoded, batch), characters=characters_of(texts))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        text: str = self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)
        return text


def _encoded(encoding: Encoding) -> Encoded:
    count = len(encoding)
    edges = chain.from_iterable(encoding.offsets)
    offsets = np.fromiter(edges, dtype=np.int32, count=2 * count).reshape(-1, 2)
    ids = np.fromiter(encoding.ids, dtype=np.int32, count=count)
    return Encoded(ids=ids, starts=offsets[:, 0], ends=offsets[:, 1])


def tokenizer_state(files: TokenizerFiles) -> dict[str, Any]:
    """The tokenizer as JSON, without the truncation and padding that it may have been saved with.

    Parsed anew for each engine: kept in memory, a large one takes more room than the tokenizer.
    """
    state = json_object(files.tokenizer, where=f"{files.uri}/tokenizer.json")
    return state | {"truncation": None, "padding": None}


def load_tokenizer(state: Mapping[str, Any], *, uri: str) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, parsed.

    Raises:
        ConfigError: it is not valid.
    """
    try:
        return Tokenizer.from_str(json.dumps(state))
    except Exception as error:
        raise ConfigError(f"expected a valid tokenizer.json in {uri}: {error}.") from error


def _cannot_encode(error: Exception, *, uri: str) -> ConfigError:
    return ConfigError(
        f"expected a tokenizer.json in {uri} that encodes any text: {error}. Give it an unknown "
        "token, or name another tokenizer."
    )


def _prefix_ids(tokenizer: Tokenizer, *, probe: str, uri: str) -> Int32:
    """Ids in front of a text that encodes to something, as the post-processor makes them."""
    try:
        bare = tokenizer.encode(probe, add_special_tokens=False).ids
        full = tokenizer.encode(probe, add_special_tokens=True).ids
    except Exception as error:
        raise _cannot_encode(error, uri=uri) from error
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return np.array(full[:start], dtype=np.int32)
    return np.zeros(0, dtype=np.int32)


def twin_state(state: Mapping[str, Any], control: ControlTokens) -> dict[str, Any]:
    """The same tokenizer with every control token renamed to its private character.

    Ids stay: the name changes in the list of added tokens and in the model's vocabulary alike, so
    that no word of the vocabulary is left that a typed control token could still hit.
    """
    twin: dict[str, Any] = dict(state, post_processor=None)
    names = control.twins
    twin["added_tokens"] = [
        dict(token, content=names.get(token["content"], token["content"]))
        for token in state.get("added_tokens") or []
    ]
    model = twin["model"] = dict(state["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(text, text): i for text, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return twin
