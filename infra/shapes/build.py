"""Write the shapes into a folder, or find that they stand there already.

`shapes.json` is written last; it names the settings and every file with its digest, so that an
interrupted or edited folder is noticed and made again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

from infra.shapes.edits import Chain, draw_chain
from infra.shapes.files import captioned, discussed, edited
from infra.shapes.scenes import Scene, draw_scene
from infra.shapes.talks import Talk, colour_question, draw_talk
from infra.shapes.vocabulary import train_vocabulary

MANIFEST = "shapes.json"
_VOCABULARY_SIZE = 512
_FILES = 3
_GROUP_ROWS = 16
_MAKING = ("build", "edits", "files", "scenes", "talks", "vocabulary")
"""Modules that the content depends on."""


class Outcome(Enum):
    """What a call of `build_shapes` did."""

    BUILT = "built"
    ALREADY_THERE = "already there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How much is drawn.

    Attributes:
        captions: pictures with captions.
        talks: conversations.
        chains: chains of edits.
        held_out: pictures with one question each, apart from all others.
        flaws: records of each kind of flaw in each group.
        seed: of all that is drawn.
    """

    captions: int = 480
    talks: int = 480
    chains: int = 160
    held_out: int = 32
    flaws: int = 2
    seed: int = 0


def build_shapes(folder: Path, amounts: Amounts | None = None) -> Outcome:
    """Write the shapes into `folder` unless they stand there.

    Args:
        folder: made where absent; gets `text_to_image`, `understanding`, `editing`, `held_out`,
            `tokenizer` and `shapes.json`.
        amounts: how much; `Amounts()` when None.
    """
    amounts = amounts or Amounts()
    settings = _settings(amounts)
    previous = _read_manifest(folder)
    if previous.get("settings") == settings and _is_whole(folder, previous["files"]):
        return Outcome.ALREADY_THERE
    (folder / MANIFEST).unlink(missing_ok=True)
    for name in previous.get("files", {}):
        (folder / name).unlink(missing_ok=True)
    content = shapes_content(amounts)
    for name, blob in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob)
    files = {name: hashlib.sha256(blob).hexdigest() for name, blob in content.items()}
    partial = folder / f"{MANIFEST}.partial"
    partial.write_text(json.dumps({"settings": settings, "files": files}, indent=1) + "\n")
    partial.replace(folder / MANIFEST)
    return Outcome.BUILT


def shapes_content(amounts: Amounts) -> dict[str, bytes]:
    """Every file of the folder but `shapes.json`, by path."""
    scenes = [draw_scene(rng) for rng in _generators(amounts, "captions", amounts.captions)]
    talks = [draw_talk(rng) for rng in _generators(amounts, "talks", amounts.talks)]
    chains = [draw_chain(rng) for rng in _generators(amounts, "chains", amounts.chains)]
    seen = {*scenes}
    seen.update(*(talk.scenes for talk in talks), *(chain.scenes for chain in chains))
    held_out = [_held_out(rng, seen) for rng in _generators(amounts, "held", amounts.held_out)]
    flaws = amounts.flaws
    content = {f"understanding/{k}": v for k, v in discussed(talks, flaws=flaws).items()}
    content |= {f"held_out/{k}": v for k, v in discussed(held_out).items()}
    for number in range(_FILES):
        last = flaws if number == _FILES - 1 else 0
        content[f"text_to_image/part-{number:03d}.parquet"] = captioned(
            scenes[number::_FILES], group_rows=_GROUP_ROWS, flaws=last
        )
        content[f"editing/part-{number:03d}.parquet"] = edited(
            chains[number::_FILES], group_rows=_GROUP_ROWS, flaws=last
        )
    tokenizer = train_vocabulary(_texts(scenes, talks, chains), vocabulary_size=_VOCABULARY_SIZE)
    content["tokenizer/tokenizer.json"] = tokenizer.to_str(pretty=True).encode()
    return content


def _held_out(rng: Random, seen: set[Scene]) -> Talk:
    scene = draw_scene(rng, shapes=1)
    while scene in seen:
        scene = draw_scene(rng, shapes=1)
    question, answer = colour_question(scene)
    return Talk(scenes=(scene,), turns=((f"<image>\n{question}", answer),))


def _generators(amounts: Amounts, name: str, count: int) -> Iterator[Random]:
    """A generator of its own for each record, so that one more changes none before it."""
    return (Random(f"{amounts.seed}/{name}/{number}") for number in range(count))


def _texts(
    scenes: Sequence[Scene], talks: Sequence[Talk], chains: Sequence[Chain]
) -> Iterator[str]:
    for scene in scenes:
        yield from (scene.caption(), scene.short_caption())
    for talk in talks:
        yield from (said for turn in talk.turns for said in turn)
    for chain in chains:
        yield from (way for ways in chain.instructions for way in ways)


def _settings(amounts: Amounts) -> dict[str, Any]:
    """Everything that the content depends on."""
    code = hashlib.sha256()
    for name in _MAKING:
        code.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    libraries = {name: version(name) for name in ("pillow", "pyarrow", "tokenizers")}
    return {**asdict(amounts), **libraries, "generator": code.hexdigest()}


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _is_whole(folder: Path, files: dict[str, str]) -> bool:
    for name, digest in files.items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return False
    return True
