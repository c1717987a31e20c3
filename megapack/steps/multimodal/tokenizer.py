"""The tokenizer of a multimodal job: ids of plain texts, and of the tokens that delimit them.

A control token that somebody typed into a text is text: only what megapack writes delimits. Nothing
here starts a thread, so it works in a forked data worker.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from megapack.conversation.control import ControlTokens
from megapack.conversation.hugging_face import load_tokenizer, tokenizer_state, twin_state
from megapack.conversation.tokenizer_files import TokenizerFiles, read_tokenizer_files
from megapack.errors import ConfigError, DataError
from megapack.jobs.multimodal import MultimodalJob, SpecialTokenNames
from megapack.multimodal.config import SpecialTokens
from megapack.records.multimodal_sample import Int32


class MultimodalTokenizer:
    """Encodes plain texts.

    Attributes:
        special: ids of the delimiting tokens.
        vocab_size: one more than the largest id.
        digest: SHA-256 over the tokenizer's files.
    """

    def __init__(self, files: TokenizerFiles, names: SpecialTokenNames) -> None:
        """Load a tokenizer.

        Raises:
            ConfigError: it cannot be loaded, a delimiting token is not in its vocabulary, or two of
                them are one.
        """
        state = tokenizer_state(files)
        vocabulary = _vocabulary(state, uri=files.uri)
        self.special = _special(names, vocabulary, uri=files.uri)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.digest = files.digest
        self._uri = files.uri
        added = state.get("added_tokens") or []
        control = ControlTokens(
            dict.fromkeys(
                [*(token["content"] for token in added if token["special"]), *_names(names)]
            )
        )
        self._tokenizer = load_tokenizer(twin_state(state, control), uri=files.uri)
        self._private = re.compile(f"[{''.join(control.twins.values())}]").search

    def encode(self, text: str) -> Int32:
        """Ids of a text, int32 [n]; nothing is put around them.

        Raises:
            DataError: it is no text in Unicode (a lone surrogate), or holds a private character
                that stands for a control token here.
            ConfigError: the tokenizer cannot encode any text.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(f"expected text in Unicode, found {error}.") from error
        if found := self._private(text):
            raise DataError(
                f"expected text without private characters, found U+{ord(found[0]):X} at "
                f"character {found.start()}. Remove it."
            )
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:
            raise ConfigError(
                f"expected a tokenizer.json in {self._uri} that encodes any text: {error}. Give it "
                "an unknown token, or name another tokenizer."
            ) from error
        return np.array(ids, dtype=np.int32)


def open_tokenizer(job: MultimodalJob) -> MultimodalTokenizer:
    """The tokenizer of a job.

    Raises:
        ConfigError: there is none, it cannot be loaded, or it lacks a delimiting token.
        StoreError: the store failed.
    """
    return MultimodalTokenizer(read_tokenizer_files(job.tokenizer), job.special_tokens)


def _names(names: SpecialTokenNames) -> list[str]:
    return [names.bos, names.eos, names.start_of_image, names.end_of_image]


def _vocabulary(state: Mapping[str, Any], *, uri: str) -> dict[str, int]:
    try:
        vocab = state["model"]["vocab"]
        if not isinstance(vocab, dict):
            vocab = {text: at for at, (text, _) in enumerate(vocab)}
        return vocab | {token["content"]: token["id"] for token in state.get("added_tokens") or []}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"expected a tokenizer.json with a model and its vocabulary in {uri}, found neither or "
            f"one that is damaged ({error!r}). Save the tokenizer again."
        ) from error


def _special(names: SpecialTokenNames, vocabulary: Mapping[str, int], *, uri: str) -> SpecialTokens:
    ids: dict[str, int] = {}
    for field in SpecialTokenNames.model_fields:
        token: str = getattr(names, field)
        if token not in vocabulary:
            near = difflib.get_close_matches(token, [t for t in vocabulary if "<" in t], n=3)
            raise ConfigError(
                f"special_tokens.{field}: expected a token of the vocabulary in {uri}, found "
                f"{token!r}, which is not in it. The nearest there are {near}. Name one of "
                "them, or add the token to the tokenizer."
            )
        ids[field] = vocabulary[token]
    for one, other in (("bos", "eos"), ("start_of_image", "end_of_image")):
        if ids[one] == ids[other]:
            raise ConfigError(
                f"special_tokens: expected {one} and {other} to differ, found {ids[one]} for both."
            )
    return SpecialTokens(**ids)
