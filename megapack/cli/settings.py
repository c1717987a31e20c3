"""`--set PATH=VALUE` and JSON files: changes that a person lays over parameters."""

import json
from pathlib import Path
from typing import Any

from megapack.errors import ConfigError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"expected JSON parameters in {path}: no such file.") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected JSON parameters in {path}: {error}.") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"expected a JSON object in {path}, found {type(loaded).__name__}.")
    return loaded


def parse_setting(setting: str) -> dict[str, Any]:
    """`a.b=value` as nested dictionaries; the value is JSON, or text when it is no JSON.

    >>> parse_setting("prepare.pack.row_length=2048")
    {'prepare': {'pack': {'row_length': 2048}}}
    >>> parse_setting("prepare.store=s3://bucket/x")
    {'prepare': {'store': 's3://bucket/x'}}

    Raises:
        ConfigError: there is no `=`.
    """
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise ConfigError(f"expected --set PATH=VALUE, found {setting!r}.")
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text
    for key in reversed(path.split(".")):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`base` with `change` laid over it; dictionaries are merged, all else is replaced.

    A dictionary of numbers changes single entries of a list, counted from 0.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    >>> merged({"a": [{"b": 1}, {"b": 2}]}, {"a": {"1": {"b": 3}}})
    {'a': [{'b': 1}, {'b': 3}]}

    Raises:
        ConfigError: the list has no such entry.
    """
    result = dict(base)
    for key, value in change.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = merged(below, value)
        elif isinstance(below, list) and isinstance(value, dict):
            result[key] = _in_list(below, value, name=key)
        else:
            result[key] = value
    return result


def _in_list(base: list[Any], change: dict[str, Any], *, name: str) -> list[Any]:
    """A list with some of its entries changed."""
    entries = {str(number): one for number, one in enumerate(base)}
    unknown = [number for number in change if number not in entries]
    if unknown:
        raise ConfigError(
            f"{name}.{unknown[0]}: expected an entry of a list of {len(base)}, counted from 0. "
            f"Say {name}.0 for the first, or set the whole list as JSON."
        )
    return list(merged(entries, change).values())
