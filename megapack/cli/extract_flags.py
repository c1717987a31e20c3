"""A request for teacher payloads from flags, from a file, or from a file with flags over it.

The file is that of the flow `extract-teacher`: its parameters.
"""

import argparse
from collections.abc import Mapping
from typing import Any, Protocol

from megapack.cli.job_flags import absolute, checked_job
from megapack.jobs.extract import MOST_TOP_K, ExtractRequest

NO_STORE = "not written to"
_DTYPES = ("bf16", "fp16", "fp32")
_NEEDED: dict[tuple[str, ...], str] = {
    ("dataset",): "--dataset DIR",
    ("teacher",): "--teacher DIR",
    ("store",): "--store DIR",
    ("extract",): "--top-k N, --hidden DTYPE or --logits DTYPE",
}
"""What has no default, and its flag."""


class _Flags(Protocol):
    """A parser, or a group of its arguments."""

    def add_argument(self, *names: str, **options: Any) -> Any:  # noqa: ANN401 - argparse's own
        """Add one."""


def add_request_flags(flags: _Flags) -> None:
    """The arguments that only such a request has; `--store`, `--set` and `--save` are shared."""
    flags.add_argument("--dataset", metavar="DIR", help="packed dataset, or the store of one")
    flags.add_argument(
        "--teacher",
        metavar="DIR",
        help="checkpoints of a run, the store of one, or a Hugging Face model folder",
    )
    flags.add_argument(
        "--top-k", type=int, metavar="N", help=f"likeliest tokens a position, to {MOST_TOP_K}"
    )
    flags.add_argument("--hidden", choices=_DTYPES, help="store hidden states before the LM head")
    flags.add_argument("--logits", choices=_DTYPES, help="store logits of the whole vocabulary")


def request_of(options: argparse.Namespace, *, store: str | None = None) -> ExtractRequest:
    """The request that the arguments make; written out when they say so.

    Args:
        options: parsed arguments.
        store: where nothing is said; None when it must be said.

    Raises:
        ConfigError: something is missing or wrong.
        StoreError: the file to save to cannot be written.
    """
    return checked_job(ExtractRequest, options, _of_flags(options), needed=_NEEDED, store=store)


def _of_flags(options: argparse.Namespace) -> dict[str, Any]:
    payload = _told({"top_k": options.top_k, "hidden": options.hidden, "logits": options.logits})
    places = {name: getattr(options, name) for name in ("dataset", "teacher", "store")}
    told = {name: absolute(uri) for name, uri in places.items() if uri is not None}
    return told | ({"extract": {"payload": payload}} if payload else {})


def _told(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
