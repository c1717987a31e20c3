"""Examples of what was dropped, by reason, with the record's text where its file still has it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megapack.errors import MegapackError
from megapack.records.drops import Drop, DropReason
from megapack.records.refs import DatasetRef
from megapack.steps.tables import committed, parts
from megapack.store.document_frames import frame_to_drops
from megapack.store.manifest import PartKind
from megapack.store.source_excerpts import excerpts

_MOST_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class DropExample:
    """One dropped record.

    Attributes:
        drop: where and why.
        text: the beginning of the record, as its file holds it now; "" when it cannot be read.
        missing: why there is no text, "" when there is.
    """

    drop: Drop
    text: str = ""
    missing: str = ""


def all_drops(ref: DatasetRef) -> Iterator[Drop]:
    """Every dropped record of a version, in reading order.

    Raises:
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    for _, frame in parts(committed(ref), PartKind.DROPS):
        yield from frame_to_drops(frame)


def first_drops(ref: DatasetRef, *, most: int) -> dict[DropReason, list[Drop]]:
    """The first drops of each reason, in the order of `DropReason`.

    Args:
        ref: a dataset version.
        most: drops of each reason.

    Raises:
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    chosen: dict[DropReason, list[Drop]] = defaultdict(list)
    for drop in all_drops(ref):
        if len(chosen[drop.reason]) < most:
            chosen[drop.reason].append(drop)
    return {reason: chosen[reason] for reason in DropReason if reason in chosen}


def drop_examples(ref: DatasetRef, *, most: int) -> dict[DropReason, list[DropExample]]:
    """The first drops of each reason with their texts, which are read from the source files.

    Args:
        ref: a dataset version.
        most: examples of each reason.

    Raises:
        StoreError: the store failed; a source file that is gone is no failure.
        DataError: a part is damaged.
    """
    chosen = first_drops(ref, most=most)
    texts = _texts([drop for drops in chosen.values() for drop in drops])
    return {
        reason: [_example(drop, texts[drop.uri]) for drop in drops]
        for reason, drops in chosen.items()
    }


def place(drop: Drop) -> str:
    """File and line of a drop, as editors count lines."""
    return f"{drop.uri}:{drop.line + 1}"


def _texts(drops: Sequence[Drop]) -> dict[str, dict[int, str] | str]:
    """By file: texts by line, or why there are none."""
    lines: dict[str, set[int]] = defaultdict(set)
    for drop in drops:
        lines[drop.uri].add(drop.line)
    found: dict[str, dict[int, str] | str] = {}
    for uri, wanted in lines.items():
        try:
            found[uri] = excerpts(uri, wanted)
        except MegapackError as error:
            found[uri] = str(error)
    return found


def _example(drop: Drop, texts: dict[int, str] | str) -> DropExample:
    if isinstance(texts, str):
        return DropExample(drop=drop, missing=f"the file cannot be read now: {texts}")
    text = texts.get(drop.line)
    if text is None:
        return DropExample(drop=drop, missing="the file no longer has this line")
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}… ({len(text):,} characters)"
    return DropExample(drop=drop, text=text)
