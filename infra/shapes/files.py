"""How scenes, talks and chains become files; a few of the records are broken on purpose."""

import io
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from infra.shapes.edits import Chain
from infra.shapes.scenes import Scene, png
from infra.shapes.talks import Talk

NO_IMAGE = b"\x89PNG\r\n\x1a\nnot an image"
"""Stands where an image cannot be decoded."""


def captioned(scenes: Sequence[Scene], *, group_rows: int, flaws: int = 0) -> bytes:
    """Parquet with `image` (PNG) and `captions` (a JSON object as text).

    Args:
        scenes: a record for each.
        group_rows: records of a row group.
        flaws: records put last whose image is damaged.
    """
    images = [png(scene) for scene in scenes] + [NO_IMAGE] * flaws
    captions = [
        json.dumps({"long": scene.caption(), "short": scene.short_caption()}) for scene in scenes
    ] + [json.dumps({"long": "a damaged picture"})] * flaws
    table = pa.table({"image": pa.array(images, pa.binary()), "captions": captions})
    return _parquet(table, group_rows)


def edited(chains: Sequence[Chain], *, group_rows: int, flaws: int = 0) -> bytes:
    """Parquet with `image_list` (PNG) and `instruction_list` (ways to ask for each change).

    Args:
        chains: a record for each.
        group_rows: records of a row group.
        flaws: records put last that have one image and nothing to change.
    """
    images = [[png(scene) for scene in chain.scenes] for chain in chains]
    asked = [[list(ways) for ways in chain.instructions] for chain in chains]
    if flaws:
        images += [[images[0][0]]] * flaws
        asked += [[[]]] * flaws
    table = pa.table(
        {
            "image_list": pa.array(images, pa.list_(pa.binary())),
            "instruction_list": pa.array(asked, pa.list_(pa.list_(pa.string()))),
        }
    )
    return _parquet(table, group_rows)


def discussed(talks: Sequence[Talk], *, flaws: int = 0) -> dict[str, bytes]:
    """`talks.jsonl` and the image files that it names, by path.

    Args:
        talks: a line for each.
        flaws: lines put last, of each kind: no such picture, a mark too many, no answer.
    """
    content: dict[str, bytes] = {}
    lines = []
    for number, talk in enumerate(talks):
        names = [
            f"videos/{number:05d}/{frame}.png" if talk.video else f"images/{number:05d}_{frame}.png"
            for frame in range(len(talk.scenes))
        ]
        content |= {name: png(scene) for name, scene in zip(names, talk.scenes, strict=True)}
        lines.append(_record(number, talk, names))
    first = next(iter(content), "")
    for number in range(flaws):
        lines.append(
            _flaw(f"flaw{number}_missing", "<image>\nWhat is this?", "A.", "images/no.png")
        )
        lines.append(_flaw(f"flaw{number}_marks", "<image><image>\nWhat is this?", "A.", first))
        lines.append(_flaw(f"flaw{number}_answer", "<image>\nWhat is this?", "", first))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return {**content, "talks.jsonl": text.encode()}


def _record(number: int, talk: Talk, names: list[str]) -> dict[str, object]:
    turns = [
        {"from": who, "value": said}
        for pair in talk.turns
        for who, said in zip(("human", "gpt"), pair, strict=True)
    ]
    record: dict[str, object] = {"id": f"talk_{number:05d}", "conversations": turns}
    if talk.video:
        record["video"] = names
    elif names:
        record["image"] = names if len(names) > 1 else names[0]
    return record


def _flaw(name: str, question: str, answer: str, image: str) -> dict[str, object]:
    turns = [{"from": "human", "value": question}]
    if answer:
        turns.append({"from": "gpt", "value": answer})
    return {"id": name, "image": image, "conversations": turns}


def _parquet(table: pa.Table, group_rows: int) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=group_rows, compression="zstd")
    return buffer.getvalue()
