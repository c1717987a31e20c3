"""A tokenizer folder: which files are read, and what of them counts.

`tokenizer.json` is the tokenizer; `tokenizer_config.json` and `special_tokens_map.json` name its
special tokens. Templates are `chat_template.jinja` (the default one) and, by name,
`additional_chat_templates/*.jinja`; where there is any such file, those inside the configuration
do not count.
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
_TEMPLATES = "additional_chat_templates"


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
        named = _named_files(filesystem, f"{folder}/{_TEMPLATES}")
    except (OSError, BotoCoreError, ClientError) as error:
        raise StoreError(
            f"expected to read the tokenizer folder {uri}: {error}. Check the path and, for "
            "s3://, the AWS_* variables."
        ) from error
    tokenizer = blobs["tokenizer.json"]
    if tokenizer is None:
        raise ConfigError(
            f"expected a tokenizer folder with tokenizer.json at {uri}, found none. Name a folder "
            "saved by a fast Hugging Face tokenizer; names on a model hub are not looked up, so "
            "download its files first."
        )
    config = _parse(blobs["tokenizer_config.json"], where=f"{uri}/tokenizer_config.json")
    tokens = _parse(blobs["special_tokens_map.json"], where=f"{uri}/special_tokens_map.json")
    special = _special_tokens({**tokens, **config})
    if blobs["chat_template.jinja"] is not None:
        named = {"default": ("chat_template.jinja", blobs["chat_template.jinja"])} | named
    templates = (
        {name: _jinja(blob, where=f"{uri}/{file}") for name, (file, blob) in named.items()}
        if named
        else _configured(config.get("chat_template"), uri=uri)
    )
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


def _named_files(filesystem: Any, folder: str) -> dict[str, tuple[str, bytes]]:  # noqa: ANN401
    """File name and content of each template beside the main one, by its name."""
    try:
        paths = sorted(filesystem.ls(folder, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    files = {path.rsplit("/", 1)[-1]: path for path in paths if path.endswith(".jinja")}
    return {
        file.removesuffix(".jinja"): (f"{_TEMPLATES}/{file}", filesystem.cat_file(path))
        for file, path in files.items()
    }


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


def _configured(configured: Any, *, uri: str) -> dict[str, str]:  # noqa: ANN401
    """Templates inside the configuration: one text, or a list of named ones."""
    if configured is None:
        return {}
    if isinstance(configured, str):
        return {"default": configured}
    if isinstance(configured, list):
        return dict(_named_template(entry, uri=uri) for entry in configured)
    raise _odd_template(configured, uri=uri)


def _jinja(blob: bytes, *, where: str) -> str:
    try:
        return blob.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"expected UTF-8 in {where}: {error}. Save it as UTF-8.") from error


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
