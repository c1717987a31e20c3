"""A tokenizer folder: which files are read, and what of them counts.

`tokenizer.json` is the tokenizer; `tokenizer_config.json` and `special_tokens_map.json` name its
special tokens; `chat_template.jinja` wins over a template inside the configuration.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

from megapack.errors import ConfigError, StoreError
from megapack.records.digest import canonical_json

_LFS = b"version https://git-lfs"
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizerFiles:
    """What a tokenizer folder holds. Equal when the digests are.

    Attributes:
        uri: the folder.
        tokenizer: content of `tokenizer.json`.
        special_tokens: named special tokens.
        chat_templates: Jinja texts by name; the main one is `default`.
        digest: 64 hex digits over all of the above but the uri.
    """

    uri: str
    tokenizer: bytes
    special_tokens: Mapping[str, str]
    chat_templates: Mapping[str, str]
    digest: str

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenizerFiles) and self.digest == other.digest


def read_tokenizer_files(uri: str) -> TokenizerFiles:
    """Read a tokenizer folder, local or `s3://`.

    Raises:
        ConfigError: there is no `tokenizer.json`, or a file is no valid JSON.
        StoreError: the store failed.
    """
    scheme, separator, _ = uri.partition("://")
    if separator and scheme not in ("file", "s3"):
        raise ConfigError(
            f"tokenizer {uri}: expected a local folder, file:// or s3://, found scheme {scheme!r}."
        )
    options = {} if "://" not in uri else {"skip_instance_cache": True}
    try:
        filesystem, folder = fsspec.core.url_to_fs(uri.rstrip("/"), **options)
        blobs = {name: _read(filesystem, f"{folder}/{name}") for name in _FILES}
    except (OSError, BotoCoreError, ClientError) as error:
        raise StoreError(
            f"expected to read the tokenizer folder {uri}: {error}. Check the path and, for "
            "s3://, the AWS_* variables."
        ) from error
    tokenizer = blobs["tokenizer.json"]
    if tokenizer is None:
        raise ConfigError(
            f"expected a tokenizer folder with tokenizer.json at {uri}, found none. Name a folder "
            "saved by a fast Hugging Face tokenizer."
        )
    config = _parse(blobs["tokenizer_config.json"], where=f"{uri}/tokenizer_config.json")
    named = _parse(blobs["special_tokens_map.json"], where=f"{uri}/special_tokens_map.json")
    special = _special_tokens({**named, **config})
    templates = _templates(config.get("chat_template"), blobs["chat_template.jinja"], uri=uri)
    digest = hashlib.sha256(tokenizer)
    digest.update(canonical_json({"special": special, "templates": templates}))
    return TokenizerFiles(
        uri=uri,
        tokenizer=tokenizer,
        special_tokens=special,
        chat_templates=templates,
        digest=digest.hexdigest(),
    )


def _read(filesystem: Any, path: str) -> bytes | None:  # noqa: ANN401 - untyped fsspec
    try:
        data: bytes = filesystem.cat_file(path)
    except FileNotFoundError:
        return None
    return data


def _parse(blob: bytes | None, *, where: str) -> dict[str, Any]:
    return {} if blob is None else json_object(blob, where=where)


def json_object(blob: bytes, *, where: str) -> dict[str, Any]:
    """The JSON object that a file holds.

    Args:
        blob: its content.
        where: its uri, for messages.

    Raises:
        ConfigError: it is no JSON, or no object.
    """
    try:
        value = json.loads(blob)
    except (ValueError, RecursionError) as error:
        pointer = blob.startswith(_LFS)
        hint = " It is a git-lfs pointer: run 'git lfs pull' in its repository." if pointer else ""
        raise ConfigError(f"expected JSON in {where}: {error}.{hint}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object in {where}, found {type(value).__name__}.")
    return value


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _NAMED:
        value = config.get(f"{name}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[f"{name}_token"] = text
    return found


def _templates(configured: Any, jinja: bytes | None, *, uri: str) -> dict[str, str]:  # noqa: ANN401
    templates: dict[str, str] = {}
    if isinstance(configured, str):
        templates["default"] = configured
    elif isinstance(configured, list):
        templates = dict(_named_template(entry, uri=uri) for entry in configured)
    elif configured is not None:
        raise _odd_template(configured, uri=uri)
    if jinja is not None:
        try:
            templates["default"] = jinja.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"expected UTF-8 in {uri}/chat_template.jinja: {error}. Save it as UTF-8."
            ) from error
    return templates


def _named_template(entry: Any, *, uri: str) -> tuple[str, str]:  # noqa: ANN401
    if isinstance(entry, dict):
        name, template = entry.get("name"), entry.get("template")
        if isinstance(name, str) and isinstance(template, str):
            return name, template
    raise _odd_template(entry, uri=uri)


def _odd_template(found: Any, *, uri: str) -> ConfigError:  # noqa: ANN401
    return ConfigError(
        f"{uri}/tokenizer_config.json: expected chat_template as text or as a list of "
        f'{{"name", "template"}}, found {str(found)[:80]!r}.'
    )
