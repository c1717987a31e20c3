"""Records of a JSON array, one at a time, without the array as a whole in memory.

An element is decoded where it stands in a buffer of text; the buffer grows until it holds one.
A bad element costs that element alone: its end is found by brackets and strings, without reading
it. An array without an end is an error: how much of it is missing cannot be known.
"""

import codecs
import json
import re
from collections.abc import Iterator

from megapack.errors import DataError
from megapack.store.raw_record import RawRecord, record_of, refuse_constant

_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},"]', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_UNSAFE = re.compile(r"[\ud800-\udfff]|\\u[dD]")
"""Bytes that were no UTF-8, and halves of surrogate pairs: for `record_of` to judge."""


def read_array(chunks: Iterator[bytes], *, uri: str) -> Iterator[RawRecord]:
    """Records of a `.json` file: the elements of its array, or the one value that it holds.

    Args:
        chunks: the file's bytes, in pieces of any size.
        uri: for messages.

    Raises:
        DataError: the array is cut off, or something follows its end.
    """
    text = _Buffer(chunks)
    text.skip_space()
    if text.peek() != "[":
        yield record_of(text.rest().strip(), line=0)
        return
    text.at += 1
    text.skip_space()
    if text.peek() == "]":
        text.at += 1
    else:
        yield from _elements(text, uri=uri)
    text.skip_space()
    if text.peek():
        raise DataError(
            f"source file {uri}: expected nothing after the end of the JSON array, found "
            f"{text.text[text.at : text.at + 20]!r}. A file with a record a line is named .jsonl."
        )


class _Buffer:
    """Text from the place that is read next; more is decoded when it is asked for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        # What is no UTF-8 stays in the text as escapes, from which the bytes come back.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
        self._ended = False
        self.text = ""
        self.at = 0

    def more(self) -> bool:
        """Double the text from the place on, at least by a chunk; False when there is no more."""
        if self._ended:
            return False
        pieces, wanted = [self.text[self.at :]], len(self.text) - self.at
        size = -wanted
        for chunk in self._chunks:
            pieces.append(self._decoder.decode(chunk))
            size += len(pieces[-1])
            if size >= 0 and pieces[-1]:
                break
        else:
            self._ended = True
            pieces.append(self._decoder.decode(b"", final=True))
        self.text, self.at = "".join(pieces), 0
        return True

    def peek(self) -> str:
        """The next character, "" at the end."""
        while self.at >= len(self.text) and self.more():
            pass
        return self.text[self.at : self.at + 1]

    def skip_space(self) -> None:
        """Go to the next character that is no white space, or to the end."""
        while self.peek() in (" ", "\t", "\r", "\n"):
            match = _SPACE.match(self.text, self.at)
            self.at = self.at if match is None else match.end()

    def rest(self) -> bytes:
        """All that is left."""
        while self.more():
            pass
        return self.text[self.at :].encode("utf-8", "surrogateescape")


def _elements(text: _Buffer, *, uri: str) -> Iterator[RawRecord]:
    """Elements up to the array's end, which is consumed."""
    decoder = json.JSONDecoder(parse_constant=refuse_constant)
    index = 0
    while True:
        text.skip_space()
        found = _decoded(text, decoder, index) or _cut(text, index)
        if found is not None:
            record, end = found
            yield record
            index += 1
            text.at = end + 1
            if text.text[end] == "]":
                return
        elif not text.more():
            raise DataError(
                f"source file {uri}: expected a JSON array that ends in ']', found the end of the "
                f"file in or after element {index} (counted from 0). Fetch or write it again."
            )


def _decoded(text: _Buffer, decoder: json.JSONDecoder, index: int) -> tuple[RawRecord, int] | None:
    """A sound element and the place of the ',' or ']' behind it; None when it is not all there."""
    try:
        value, end = decoder.raw_decode(text.text, text.at)
    except (ValueError, RecursionError):
        return None
    space = _SPACE.match(text.text, end)
    after = end if space is None else space.end()
    if text.text[after : after + 1] not in (",", "]") or after == len(text.text):
        return None
    if _UNSAFE.search(text.text, text.at, end):
        return None
    return RawRecord(line=index, value=value), after


def _cut(text: _Buffer, index: int) -> tuple[RawRecord, int] | None:
    """Any element whose end is there, and the place of the ',' or ']' behind it."""
    depth = 0
    for match in _TOKEN.finditer(text.text, text.at):
        token = match[0]
        if token == '"':
            return None  # a string that does not end in what there is
        if depth == 0 and token in (",", "]"):
            raw = text.text[text.at : match.start()].encode("utf-8", "surrogateescape")
            return record_of(raw.strip(), line=index), match.start()
        if token in ("[", "{"):
            depth += 1
        elif token in ("]", "}"):
            depth -= 1
    return None
