"""Build the demo into a folder, or find that it stands there already.

`demo.json` is written last. It names the settings and every file with its digest, so an interrupted
or edited build is noticed and made again. Only files that a build has written are ever removed.
"""

import hashlib
import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

from infra.demo import conversations, files, flaws
from infra.demo.reading import read_topics
from infra.demo.talks import Conversation, Library
from infra.demo.tokenizer import tokenizer_files, train_tokenizer

DEFAULT_SIZE = 3000
DEFAULT_VOCABULARY_SIZE = 4096
MANIFEST = "demo.json"
_SIZE_PER_FLAW = 500


class Outcome(Enum):
    """What a call of `build_demo` did."""

    BUILT = "built"
    ALREADY_THERE = "already there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A finished demo folder.

    Attributes:
        folder: Holds `data`, `tokenizer` and `demo.json`.
        outcome: Whether this call wrote it.
        manifest: The content of `demo.json`.
    """

    folder: Path
    outcome: Outcome
    manifest: Mapping[str, Any]


def build_demo(
    folder: Path, *, size: int = DEFAULT_SIZE, vocabulary_size: int = DEFAULT_VOCABULARY_SIZE
) -> Demo:
    """Write the demo into `folder` unless it already stands there.

    Args:
        folder: Made where absent.
        size: Good conversations, about.
        vocabulary_size: Ids of the tokenizer.

    Returns:
        The demo and whether it was built now.

    Raises:
        DemoError: No docstrings on this Python, or `size` and `vocabulary_size` do not suit.
    """
    settings = _settings(size=size, vocabulary_size=vocabulary_size)
    previous = _read_manifest(folder)
    if previous.get("settings") == settings and _is_whole(folder, previous):
        return Demo(folder=folder, outcome=Outcome.ALREADY_THERE, manifest=previous)
    (folder / MANIFEST).unlink(missing_ok=True)
    good = conversations.generate(Library.of(read_topics()), size=size)
    data, counts = _data_files(good, size=size)
    every = [talk for talks in good.values() for talk in talks]
    tokenizer = train_tokenizer(every, vocabulary_size=vocabulary_size)
    content = {f"data/{name}": blob for name, blob in data.items()}
    content |= {f"tokenizer/{name}": blob for name, blob in tokenizer_files(tokenizer).items()}
    for name in previous.get("files", {}):
        (folder / name).unlink(missing_ok=True)
    for name, blob in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob)
    manifest = {
        "settings": settings,
        "counts": counts,
        "files": {
            name: {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
            for name, blob in content.items()
        },
    }
    _write_manifest(folder, manifest)
    return Demo(folder=folder, outcome=Outcome.BUILT, manifest=manifest)


def _data_files(
    good: Mapping[str, tuple[Conversation, ...]], *, size: int
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Encode all data files and count what is in each."""
    line_files = [plan for plan in conversations.FILES if plan.shape in files.LINE_SHAPES]
    flawed = flaws.flawed_lines(
        good[conversations.FILES[0].name],
        each=max(1, size // _SIZE_PER_FLAW),
        rng=Random(f"{conversations.SEED}/flaws"),
    )
    data: dict[str, bytes] = {}
    counts: dict[str, Any] = {}
    for plan in conversations.FILES:
        lines = []
        if plan in line_files:
            lines = flawed[line_files.index(plan) :: len(line_files)]
        data[plan.name], records = files.encode_file(plan, good[plan.name], lines)
        counts[plan.name] = {
            "shape": plan.shape.value,
            "records": records,
            "good_conversations": len(good[plan.name]),
            "flawed": dict(sorted(Counter(flaw.value for flaw, _ in lines).items())),
        }
    return data, counts


def _settings(*, size: int, vocabulary_size: int) -> dict[str, Any]:
    """Everything that the content depends on."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix in {".py", ".jinja"}:
            code.update(path.read_bytes())
    return {
        "size": size,
        "vocabulary_size": vocabulary_size,
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "unicode": unicodedata.unidata_version,
        "tokenizers": version("tokenizers"),
        "polars": version("polars"),
        "generator": code.hexdigest(),
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    partial = folder / f"{MANIFEST}.partial"
    partial.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / MANIFEST)


def _is_whole(folder: Path, manifest: Mapping[str, Any]) -> bool:
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
            return False
    return True
