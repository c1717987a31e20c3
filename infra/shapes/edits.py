"""Chains of edits: a scene, what is asked to change, the scene after it, and so on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from infra.shapes.scenes import BACKGROUNDS, COLOURS, KINDS, PLACES, Scene, draw_scene

Edit = tuple[Scene, tuple[str, ...]]
"""The scene after an edit, and ways to ask for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Scenes, and between each two the ways to ask for the change."""

    scenes: tuple[Scene, ...]
    instructions: tuple[tuple[str, ...], ...]


def draw_chain(rng: Random) -> Chain:
    """A chain of two to four pictures by chance."""
    scenes = [draw_scene(rng)]
    asked = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        scene, ways = rng.choice(_EDITS)(scenes[-1], rng)
        scenes.append(scene)
        asked.append(ways)
    return Chain(scenes=tuple(scenes), instructions=tuple(asked))


def _recolour(scene: Scene, rng: Random) -> Edit:
    index = rng.randrange(len(scene.shapes))
    shape = scene.shapes[index]
    colour = rng.choice([one for one in COLOURS if one != shape.colour])
    return scene.with_shape(index, colour=colour), (
        f"make the {shape.kind} {colour}",
        f"paint the {shape.kind} in {colour}",
    )


def _reshape(scene: Scene, rng: Random) -> Edit:
    index = rng.randrange(len(scene.shapes))
    shape = scene.shapes[index]
    kind = rng.choice([one for one in KINDS if all(one != other.kind for other in scene.shapes)])
    return scene.with_shape(index, kind=kind), (
        f"turn the {shape.kind} into a {kind}",
        f"replace the {shape.kind} by a {kind}",
    )


def _move(scene: Scene, rng: Random) -> Edit:
    if len(scene.shapes) > 1:
        return _recolour(scene, rng)
    shape = scene.shapes[0]
    place = rng.choice([one for one in PLACES if one != shape.place])
    return scene.with_shape(0, place=place), (f"put the {shape.kind} {place}",)


def _background(scene: Scene, rng: Random) -> Edit:
    background = rng.choice([one for one in BACKGROUNDS if one != scene.background])
    return replace(scene, background=background), (
        f"make the background {background}",
        f"use a {background} background",
    )


_EDITS: tuple[Callable[[Scene, Random], Edit], ...] = (_recolour, _reshape, _move, _background)
