"""Scenes of coloured shapes: drawn by chance, rendered, and said in words."""

import io
from dataclasses import dataclass, replace
from random import Random

from PIL import Image, ImageDraw

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 200, 30),
    "purple": (140, 50, 170),
    "black": (20, 20, 20),
}
BACKGROUNDS = {"white": (255, 255, 255), "grey": (190, 190, 190), "pink": (250, 200, 215)}
KINDS = ("circle", "square", "triangle", "diamond")
SIZES = {"small": 0.24, "large": 0.4}
PLACES = {
    "on the left": (0.25, 0.5),
    "on the right": (0.75, 0.5),
    "at the top": (0.5, 0.25),
    "at the bottom": (0.5, 0.75),
    "in the middle": (0.5, 0.5),
}
"""Centres, as parts of width and height."""

CANVASES = ((64, 64), (96, 64), (64, 96), (80, 80))
_PAIRS = (("on the left", "on the right"), ("at the top", "at the bottom"))
_FINER = 3
"""Shapes are drawn so many times larger and reduced, for smooth edges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape: keys of `COLOURS`, `SIZES` and `PLACES`, and a kind."""

    kind: str
    colour: str
    size: str
    place: str

    def words(self) -> str:
        """As `a small red circle on the left`."""
        return f"a {self.size} {self.colour} {self.kind} {self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One picture.

    Attributes:
        shapes: one, or two of unlike kinds; later ones lie over earlier ones.
        background: key of `BACKGROUNDS`.
        width: pixels.
        height: pixels.
    """

    shapes: tuple[Shape, ...]
    background: str
    width: int
    height: int

    def caption(self) -> str:
        """All of it in words."""
        shapes = " and ".join(shape.words() for shape in self.shapes)
        return f"{shapes}, on a {self.background} background"

    def short_caption(self) -> str:
        """The shapes' colours and kinds in words."""
        return " and ".join(f"a {shape.colour} {shape.kind}" for shape in self.shapes)

    def with_shape(self, index: int, **changes: str) -> "Scene":
        """The scene with one shape changed."""
        shapes = list(self.shapes)
        shapes[index] = replace(shapes[index], **changes)
        return replace(self, shapes=tuple(shapes))


def draw_scene(rng: Random, *, shapes: int | None = None) -> Scene:
    """A scene by chance.

    Args:
        rng: where chance comes from.
        shapes: 1 or 2; drawn when None.
    """
    count = shapes or rng.choice((1, 1, 2))
    places = rng.sample(rng.choice(_PAIRS), 2) if count > 1 else [rng.choice(list(PLACES))]
    kinds = rng.sample(KINDS, count)
    colours = rng.sample(list(COLOURS), count)
    width, height = rng.choice(CANVASES)
    return Scene(
        shapes=tuple(
            Shape(kind=kind, colour=colour, size=rng.choice(list(SIZES)), place=place)
            for kind, colour, place in zip(kinds, colours, places, strict=False)
        ),
        background=rng.choice(list(BACKGROUNDS)),
        width=width,
        height=height,
    )


def render(scene: Scene) -> Image.Image:
    """The scene as an RGB image of its width and height."""
    width, height = scene.width * _FINER, scene.height * _FINER
    image = Image.new("RGB", (width, height), BACKGROUNDS[scene.background])
    pencil = ImageDraw.Draw(image)
    for shape in scene.shapes:
        x, y = PLACES[shape.place]
        radius = SIZES[shape.size] * min(width, height) / 2
        _draw(pencil, shape, (x * width, y * height), radius)
    return image.resize((scene.width, scene.height), Image.Resampling.BOX)


def png(scene: Scene) -> bytes:
    """The scene as a PNG file."""
    buffer = io.BytesIO()
    render(scene).save(buffer, format="PNG")
    return buffer.getvalue()


def _draw(
    pencil: ImageDraw.ImageDraw, shape: Shape, centre: tuple[float, float], radius: float
) -> None:
    x, y = centre
    fill = COLOURS[shape.colour]
    box = (x - radius, y - radius, x + radius, y + radius)
    match shape.kind:
        case "circle":
            pencil.ellipse(box, fill=fill)
        case "square":
            pencil.rectangle(box, fill=fill)
        case "triangle":
            pencil.polygon([(x, box[1]), (box[2], box[3]), (box[0], box[3])], fill=fill)
        case _:
            pencil.polygon([(x, box[1]), (box[2], y), (x, box[3]), (box[0], y)], fill=fill)
