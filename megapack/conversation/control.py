"""Control tokens that people typed: kept apart from those that the template writes.

A tokenizer finds `<|im_end|>` in a text whoever wrote it. To tell the two apart, every literal in
a conversation's own strings becomes one private character before rendering (`hide`); whatever
literal the render then holds is the template's. `protect` turns the template's literals into other
private characters, which stand for the control tokens in a twin of the tokenizer, and the hidden
ones back into text, which the twin has no token for. Control tokens are the added tokens marked
special; tags such as `<think>` that are not special mean the same whoever writes them.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

from megapack.conversation.messages import Json
from megapack.conversation.rejection import RejectedError
from megapack.records.drops import DropReason

_TWIN = 0xF0000
_HIDDEN = 0x100000
_PLANE = 0xFFFE
_BEGINNING, _MOST_LETTERS = 4, 32
_PRIVATE = re.compile(f"[{chr(_TWIN)}-{chr(_HIDDEN + _PLANE)}]")


class ControlTokens:
    """The control tokens of one tokenizer.

    Attributes:
        literals: their texts, in order of id.
        twins: the character that stands for each in the twin tokenizer.
    """

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = tuple(text for text in literals if text and not text.isspace())[:_PLANE]
        self.twins = {text: chr(_TWIN + index) for index, text in enumerate(self.literals)}
        self._hidden = {text: chr(_HIDDEN + index) for index, text in enumerate(self.literals)}
        longest_first = sorted(self.literals, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # Looking for how they begin rules out most texts; characters that JSON escapes are looked
        # for as it writes them. Patterns that begin with one letter are searched for at the speed
        # of a search for that letter, 7 times as fast as one pattern of all.
        written = (json.dumps(text, ensure_ascii=False)[1:-1] for text in self.literals)
        beginnings: dict[str, set[str]] = {}
        for text in (*self.literals, *written):
            beginnings.setdefault(text[0], set()).add(re.escape(text[1:_BEGINNING]))
        self._searches = [
            re.compile(f"{re.escape(first)}(?:{'|'.join(sorted(rest))})").search
            for first, rest in beginnings.items()
        ]
        # Rewritten in a protected text: template literals -> twins, hidden ones -> literals.
        self._rewrites = self.twins | {mark: text for text, mark in self._hidden.items()}
        self._marked = re.compile(
            f"{self._pattern.pattern}|[{chr(_HIDDEN)}-{chr(_HIDDEN + _PLANE)}]"
        )

    def may_occur_in(self, text: str) -> bool:
        """False when a text holds no control token; also for the JSON of a value, as text."""
        if len(self._searches) > _MOST_LETTERS:
            return True
        return any(search(text) for search in self._searches)

    def occur_in(self, value: Json) -> bool:
        """Whether any string inside a JSON value (keys included) holds a control token."""
        if isinstance(value, str):
            return self.may_occur_in(value) and self._pattern.search(value) is not None
        if isinstance(value, Mapping):
            return any(self.occur_in(key) or self.occur_in(item) for key, item in value.items())
        return isinstance(value, list | tuple) and any(self.occur_in(item) for item in value)

    def hide(self, value: Json) -> Json:
        """Copy of a JSON value in which literals inside strings are hidden.

        Raises:
            RejectedError: LOSSY_FORMAT when a string already holds the private characters.
        """
        if isinstance(value, str):
            if _PRIVATE.search(value):
                raise RejectedError(
                    DropReason.LOSSY_FORMAT,
                    "expected text without characters of the private planes 15 and 16 beside "
                    "literal control tokens; found both, and cannot keep them apart.",
                )
            return self._pattern.sub(lambda match: self._hidden[match[0]], value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> str:
        """Put hidden literals back."""
        return re.sub(
            f"[{chr(_HIDDEN)}-{chr(_HIDDEN + _PLANE)}]", lambda m: self._rewrites[m[0]], text
        )

    def last_end(self, text: str) -> int:
        """Where the last control token of a text ends, 0 when there is none."""
        return max((match.end() for match in self._pattern.finditer(text)), default=0)

    def protect(
        self, text: str, spans: Iterable[tuple[int, int]]
    ) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Text for the twin tokenizer.

        Args:
            text: a render of hidden strings.
            spans: half-open character spans in it.

        Returns:
            The text with the template's control tokens as twins and hidden literals as text, and
            the spans moved along.
        """
        pieces, starts, position = [], [], 0
        for match in self._marked.finditer(text):
            pieces += [text[position : match.start()], self._rewrites[match[0]]]
            starts += [position, match.start()]
            position = match.end()
        pieces.append(text[position:])
        starts.append(position)
        moved = list(accumulate((len(piece) for piece in pieces), initial=0))
        edges = _Edges(starts=starts, moved=moved)
        return "".join(pieces), tuple((edges.move(low), edges.move(high)) for low, high in spans)


class _Edges:
    """Where a character position goes when pieces of a text change their length."""

    def __init__(self, *, starts: list[int], moved: list[int]) -> None:
        self._starts = starts
        self._moved = moved

    def move(self, position: int) -> int:
        piece = bisect_right(self._starts, position) - 1
        inside = position - self._starts[piece]
        return min(self._moved[piece] + inside, self._moved[piece + 1])
