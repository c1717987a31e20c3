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

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    result = dict(base)
    for key, value in change.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result
