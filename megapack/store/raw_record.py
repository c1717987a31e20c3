"""`RawRecord`: one record as it stands in a source file, or what is wrong with it."""

import json
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """One record as it stands in a file.

    Attributes:
        line: line number, or index in an array or table, counted from 0; blank lines count.
        value: the JSON value, None when unreadable.
        error: what is wrong with it, "" when nothing is.
    """

    line: int
    value: Any = None
    error: str = ""


def record_of(raw: bytes, *, line: int) -> RawRecord:
    """The record that some bytes spell.

    Args:
        raw: JSON in UTF-8.
        line: its number.
    """
    try:
        return RawRecord(line=line, value=_parse(raw))
    except (ValueError, RecursionError) as error:
        return RawRecord(line=line, error=_fault(error))


def refuse_constant(name: str) -> NoReturn:
    """For `json`: NaN and the infinities are no JSON. Raises ValueError."""
    raise ValueError(f"{name} is no JSON number")


# Made once: `json.loads` makes one for each call that has options, which takes as long as decoding.
_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def _parse(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    value = _DECODER.decode(raw.decode("utf-8"))
    if b"\\ud" in raw or b"\\uD" in raw:
        # JSON can spell half of a surrogate pair; no tokenizer and no file can hold one.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _fault(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"expected UTF-8, found byte 0x{error.object[error.start]:02x} at {error.start}."
    if isinstance(error, UnicodeEncodeError):
        return "expected text, found half of a surrogate pair."
    if isinstance(error, json.JSONDecodeError):
        return f"expected JSON, found: {error.msg} (character {error.pos})."
    if isinstance(error, RecursionError):
        return "expected JSON, found it nested too deeply."
    return f"expected JSON: {error}."
