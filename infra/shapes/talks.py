"""Conversations about scenes: questions and their true answers, comparisons, videos."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from infra.shapes.scenes import KINDS, PLACES, Scene, draw_scene

_NUMBERS = ("no shapes", "one shape", "two shapes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation.

    Attributes:
        scenes: pictures in the order of their marks; the frames of a video.
        turns: question and answer by turns; the first question holds the marks.
        video: `<video>` stands for all frames, else an `<image>` for each.
    """

    scenes: tuple[Scene, ...]
    turns: tuple[tuple[str, str], ...]
    video: bool = False


def draw_talk(rng: Random) -> Talk:
    """A conversation by chance: mostly about one picture, else two, a video, or none."""
    maker = rng.choices((_about_one, _about_two, _about_video, _about_none), (12, 3, 3, 1))[0]
    return maker(rng)


def questions(scene: Scene, rng: Random) -> list[tuple[str, str]]:
    """Everything that is asked about one picture, with its true answer, in an order by chance."""
    asked = [
        ("How many shapes are there?", f"There is {_NUMBERS[1]}.")
        if len(scene.shapes) == 1
        else ("How many shapes are there?", f"There are {_NUMBERS[len(scene.shapes)]}."),
        ("What colour is the background?", f"It is {scene.background}."),
    ]
    for shape in scene.shapes:
        asked.append((f"What colour is the {shape.kind}?", f"It is {shape.colour}."))
        asked.append((f"Where is the {shape.kind}?", f"It is {shape.place}."))
    missing = rng.choice([kind for kind in KINDS if kind not in _kinds(scene)])
    asked.append((f"Is there a {missing}?", "No."))
    asked.append((f"Is there a {scene.shapes[0].kind}?", "Yes."))
    rng.shuffle(asked)
    return asked


def colour_question(scene: Scene) -> tuple[str, str]:
    """The colour of the first shape, and its name."""
    shape = scene.shapes[0]
    return f"What colour is the {shape.kind}?", f"It is {shape.colour}."


def _about_one(rng: Random) -> Talk:
    scene = draw_scene(rng)
    return Talk(scenes=(scene,), turns=_marked("<image>", questions(scene, rng)))


def _about_two(rng: Random) -> Talk:
    first = draw_scene(rng)
    if rng.random() < 1 / 2:
        second = draw_scene(rng, shapes=3 - len(first.shapes))
        more = "first" if len(first.shapes) > len(second.shapes) else "second"
        turn = ("Which picture has more shapes?", f"The {more} one.")
    else:
        others = [name for name in PLACES if name != first.shapes[0].place]
        second = draw_scene(rng)
        if first.background != second.background and rng.random() < 1 / 2:
            second = replace(second, background=first.background)
        else:
            second = second.with_shape(0, place=rng.choice(others))
        same = "Yes" if first.background == second.background else "No"
        turn = ("Do both pictures have the same background?", f"{same}.")
    return Talk(scenes=(first, second), turns=_marked("<image> and <image>", [turn]))


def _about_video(rng: Random) -> Talk:
    scene = draw_scene(rng, shapes=1)
    places = rng.choice(
        (
            ("on the left", "in the middle", "on the right"),
            ("at the top", "in the middle", "at the bottom"),
        )
    )
    if rng.random() < 1 / 2:
        places = places[::-1]
    held = rng.randint(1, 2)
    frames = [scene.with_shape(0, place=place) for place in places for _ in range(held)]
    end = places[-1].rsplit(" ", maxsplit=1)[-1]
    kind = scene.shapes[0].kind
    turn = (f"Where does the {kind} move to?", f"It moves to the {end}.")
    return Talk(scenes=tuple(frames), turns=_marked("<video>", [turn]), video=True)


def _about_none(rng: Random) -> Talk:
    sides = {"triangle": "three", "square": "four", "diamond": "four"}
    kind = rng.choice(list(sides))
    return Talk(scenes=(), turns=((f"How many sides has a {kind}?", f"It has {sides[kind]}."),))


def _kinds(scene: Scene) -> set[str]:
    return {shape.kind for shape in scene.shapes}


def _marked(mark: str, turns: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    (question, answer), *rest = turns
    return ((f"{mark}\n{question}", answer), *rest)
