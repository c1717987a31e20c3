"""How counts and changes are said to people."""

from collections.abc import Mapping
from typing import Any

from megapack.records.digest import digest_of

_SHOWN = 60
_KIBI = 1024


def counted(number: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "document"), counted(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def byte_size(num_bytes: float) -> str:
    """Bytes in the unit that suits them.

    >>> byte_size(900), byte_size(3 << 20)
    ('900 bytes', '3.0 MiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < _KIBI:
            return f"{num_bytes:,.0f} {unit}" if unit == "bytes" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= _KIBI
    return f"{num_bytes:,.1f} TiB"


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of settings, one line each, "field: from -> to".

    >>> changed_fields({"steps": 6, "seed": 1}, {"steps": 8, "seed": 1})
    ['steps: 6 -> 8']
    """
    return [
        f"{name}: {_shown(before, name)} -> {_shown(after, name)}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name) or (name in before) != (name in after)
    ]


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "not set"
    text = str(values[name])
    return text if len(text) <= _SHOWN else f"{text[:20]}… (digest {digest_of(text)[:12]})"
