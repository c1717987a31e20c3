"""A preparation job from flags, from a job file, or from a file with flags laid over it."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megapack.cli.settings import merged, parse_setting, read_json
from megapack.conversation.config import LongDocumentPolicy, PromptFormat
from megapack.errors import ConfigError, StoreError
from megapack.jobs.base import Job
from megapack.jobs.explain import explain
from megapack.jobs.prepare import PrepareJob

_POLICIES = ", ".join(policy.value for policy in LongDocumentPolicy)
_NEEDED = {
    ("sources",): "--source FILE",
    ("tokenizer",): "--tokenizer DIR",
    ("tokenize", "long_documents"): f"--long-documents POLICY ({_POLICIES})",
    ("pack", "row_length"): "--row-length N",
    ("store",): "--store DIR",
}
"""What has no default, because it decides what is lost or what it costs, and its flag."""


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """The arguments that make a job."""
    parser.add_argument("job", nargs="?", type=Path, help="job file; flags change single fields")
    parser.add_argument(
        "--source",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="files, folders, globs or s3:// prefixes with conversations",
    )
    parser.add_argument("--tokenizer", metavar="DIR", help="folder with tokenizer.json")
    parser.add_argument("--row-length", type=int, metavar="N", help="positions in a row")
    parser.add_argument(
        "--long-documents",
        metavar="POLICY",
        help=f"what happens to documents longer than a row: {_POLICIES}",
    )
    parser.add_argument(
        "--format",
        help=f"prompt format: {', '.join(one.value for one in PromptFormat)} "
        "(default: chat_template)",
    )
    parser.add_argument("--store", metavar="DIR", help="folder or s3:// prefix for what is made")
    parser.add_argument("--name", help="name of the dataset in the store (default: dataset)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="any other field, such as pack_for.context_parallel_size=4 or sources.0.weight=0.3; "
        "VALUE is JSON or text",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the job to a file too")


def job_of(options: argparse.Namespace, *, store: str | None = None) -> PrepareJob:
    """The job that the arguments of `add_job_flags` make; written out when they say so.

    Args:
        options: parsed arguments.
        store: where nothing is said; None when it must be said.

    Raises:
        ConfigError: something is missing or wrong.
        StoreError: the file to save to cannot be written.
    """
    return checked_job(PrepareJob, options, _of_flags(options), needed=_NEEDED, store=store)


def checked_job[T: Job](
    model: type[T],
    options: argparse.Namespace,
    flags: dict[str, Any],
    *,
    needed: Mapping[tuple[str, ...], str],
    store: str | None,
) -> T:
    """A job from its file, the flags laid over it, and `--set` over both; written where they say.

    Args:
        model: class of the job.
        options: with `job`, `set` and `save`.
        flags: fields that other arguments set.
        needed: path of each field that must be said, and its flag.
        store: where nothing is said; None when it must be said.

    Raises:
        ConfigError: something is missing or wrong.
        StoreError: the file to save to cannot be written.
    """
    fields = {} if options.job is None else read_json(options.job)
    fields = merged(fields, flags)
    for setting in options.set:
        fields = merged(fields, parse_setting(setting))
    if store is not None and options.save is None:
        fields.setdefault("store", store)
    missing = [flag for path, flag in needed.items() if not _has(fields, path)]
    if missing:
        where = f" in {options.job} or" if options.job else ""
        raise ConfigError(f"expected{where} as flags: {', '.join(missing)}.")
    try:
        job = model.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"the job is wrong:\n{explain(error, model)}") from error
    if options.save is not None:
        save(job, options.save)
    return job


def _of_flags(options: argparse.Namespace) -> dict[str, Any]:
    """Fields that flags set; paths are made absolute, so that a saved job works anywhere."""
    told: dict[str, Any] = {
        "tokenizer": options.tokenizer and absolute(options.tokenizer),
        "store": options.store and absolute(options.store),
        "name": options.name,
        "tokenize": _told(long_documents=options.long_documents, format=options.format),
        "pack": _told(row_length=options.row_length),
        "sources": _sources(options.source),
    }
    return {name: value for name, value in told.items() if value}


def _told(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _sources(uris: list[str]) -> list[dict[str, str]]:
    """Sources called by the last part of their address, where that tells them apart."""
    whole = [absolute(uri) for uri in uris]
    short = [uri.rstrip("/").rsplit("/", 1)[-1] for uri in whole]
    plain = len(set(short)) == len(short)
    return [
        {"uri": uri, "name": name if plain else uri} for uri, name in zip(whole, short, strict=True)
    ]


def absolute(uri: str) -> str:
    """An address that means the same in any folder."""
    return uri if "://" in uri else str(Path.cwd() / Path(uri).expanduser())


def _has(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    value: Any = fields
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value is not None


def save(job: Job, path: Path) -> None:
    """Write a job to a file.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        job.save(path)
    except OSError as error:
        raise StoreError(f"could not write {path}: {error}.") from error
