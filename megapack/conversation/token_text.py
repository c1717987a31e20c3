"""What single tokens say, for people who look at data: text by token, never cut inside a character.

Tokens of byte-level and byte-fallback vocabularies may hold part of a character. Those of one
character are shown as one piece, as they only mean something together; bytes that make no
character become U+FFFD. A token's text is that in the middle of a text, so one with a word mark
begins with its space. Loads the tokenizer once; costs a dictionary look-up a token after that.
"""

import codecs
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from megapack.conversation.tokenizer_files import TokenizerFiles, json_object
from megapack.errors import ConfigError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LATIN_1 = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """Tokens that are shown as one: one token, or those of one character.

    Attributes:
        text: what they say.
        count: how many tokens.
        control: whether it is a token that the tokenizer calls special.
    """

    text: str
    count: int
    control: bool


class TokenTexts:
    """Texts of the tokens of one tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Load the tokenizer.

        Raises:
            ConfigError: `tokenizer.json` cannot be loaded.
        """
        state = json_object(files.tokenizer, where=f"{files.uri}/tokenizer.json")
        self._tokenizer = _load(state, uri=files.uri)
        self._added = {
            int(token["id"]): (str(token["content"]), bool(token["special"]))
            for token in state.get("added_tokens") or []
        }
        kinds = _kinds(state.get("decoder"))
        self._byte_level = _bytes_of_characters() if "ByteLevel" in kinds else None
        self._fallback = "ByteFallback" in kinds
        self._known: dict[int, bytes] = {}
        self._context = self._probe()

    def pieces(self, ids: Sequence[int], breaks: Sequence[int] = ()) -> list[TextPiece]:
        """Ids as pieces of text; the counts of all pieces sum to the number of ids.

        Args:
            ids: token ids.
            breaks: indices before which a piece ends even inside a character.
        """
        found: list[TextPiece] = []
        stops = set(breaks)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text, count = "", 0
        for index, token in enumerate(ids):
            control = self._is_control(token)
            if count and (control or index in stops):
                text += decoder.decode(b"", final=True)
                found.append(TextPiece(text=text, count=count, control=False))
                text, count = "", 0
            if control:
                found.append(TextPiece(text=self._added[token][0], count=1, control=True))
                continue
            text += decoder.decode(self._bytes(token))
            count += 1
            if not decoder.getstate()[0]:
                found.append(TextPiece(text=text, count=count, control=False))
                text, count = "", 0
        if count:
            text += decoder.decode(b"", final=True)
            found.append(TextPiece(text=text, count=count, control=False))
        return found

    def _is_control(self, token: int) -> bool:
        return self._added.get(token, ("", False))[1]

    def _bytes(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._look_up(token)
        return self._known[token]

    def _look_up(self, token: int) -> bytes:
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return f"<no token {token}>".encode()
        if token in self._added:
            return name.encode()
        table = self._byte_level
        if table is not None and all(character in table for character in name):
            return bytes(table[character] for character in name)
        byte = _BYTE.fullmatch(name) if self._fallback else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        before, context = self._context
        text: str = self._tokenizer.decode([*before, token], skip_special_tokens=False)
        return text.removeprefix(context).encode()

    def _probe(self) -> tuple[list[int], str]:
        """An ordinary token to stand before another, so that its word mark is not stripped."""
        for text in ("a", "the", "w"):
            ids = [
                token
                for token in self._tokenizer.encode(text, add_special_tokens=False).ids
                if token not in self._added
            ]
            if ids:
                return ids[:1], self._tokenizer.decode(ids[:1], skip_special_tokens=False)
        return [], ""


def _load(state: dict[str, Any], *, uri: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(state | {"truncation": None, "padding": None}))
    except Exception as error:
        raise ConfigError(f"expected a valid tokenizer.json in {uri}: {error}.") from error


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    """Types of a decoder and of those in its sequence."""
    if decoder is None:
        return set()
    inner = decoder.get("decoders") or []
    return {str(decoder["type"])}.union(*(_kinds(one) for one in inner))


def _bytes_of_characters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    plain += range(ord("®"), ord("ÿ") + 1)
    table = {chr(byte): byte for byte in plain}
    moved = [byte for byte in range(_LATIN_1) if byte not in plain]
    return table | {chr(_LATIN_1 + at): byte for at, byte in enumerate(moved)}
