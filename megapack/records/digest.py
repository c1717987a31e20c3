"""Digests of plain values: canonical JSON, then SHA-256.

An address (where a step's result stands) and a content digest are both made here, so that the
same settings give the same address on every machine.
"""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """The one byte form of a JSON value: sorted keys, no spaces, UTF-8, no NaN.

    >>> canonical_json({"b": 1, "a": "é"}).decode()
    '{"a":"é","b":1}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8", "surrogatepass")


def digest_of(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """64 hex digits: SHA-256 of `canonical_json`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def step_address(step: str, semantics: int, inputs: Any) -> str:  # noqa: ANN401 - any JSON value
    """Where the result of a step stands: a digest of what goes in.

    Args:
        step: name of the step.
        semantics: number raised whenever the step's meaning changes; package versions do not count.
        inputs: JSON value of everything the result depends on.

    Returns:
        32 hex digits.
    """
    return digest_of({"step": step, "semantics": semantics, "inputs": inputs})[:32]
