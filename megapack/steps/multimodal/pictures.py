"""Pictures of packed rows: a strip of the samples as they lie in the row, and who sees whom.

Each sample is a frame with its spans in order: text as a block with its first words (green where it
is predicted), images as thumbnails (orange where they are noised and predicted). What was dropped
is crossed out. Below each span stand its attention mode and its positions. The mask shows at most
256 positions, evenly spread: black is not seen, colours are the mode of what is seen.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from megapack.errors import StoreError
from megapack.multimodal.assemble import assemble
from megapack.records.multimodal_row import MultimodalRow
from megapack.records.multimodal_sample import (
    AttentionMode,
    LaidSample,
    PlanItem,
    SpanKind,
    UInt8,
)
from megapack.records.refs import MultimodalRef
from megapack.steps.multimodal.mask_picture import MODES, mask_picture
from megapack.steps.multimodal.stored import StoredRows
from megapack.steps.multimodal.words import Words, words_of
from megapack.steps.tables import committed

_WIDTH = 1200
_TILE, _TEXT = 88, 176
_GAP, _LABEL, _HEAD = 6, 14, 16
_LINE = _HEAD + _TILE + _LABEL + 3 * _GAP
_FONT = 11
_LETTER = 6
_SHOWN = 1000
_MOST_LINES = 20
_INK, _PAPER, _FRAME, _CROSS = "#1c2330", "#fbfcfe", "#98a2b3", "#c0362c"
_TEXT_FILL = {True: "#c9f2d3", False: "#e4e9f1"}
_COLOURS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPicture:
    """One row as a picture.

    Attributes:
        number: of the row.
        caption: one line about it.
        png: the picture.
    """

    number: int
    caption: str
    png: bytes


def row_pictures(ref: MultimodalRef, rows: Sequence[int] | None = None) -> Iterator[RowPicture]:
    """Pictures of some rows of a version, three spread over it by default.

    Raises:
        ConfigError: there is no such version or row.
        StoreError: the store failed.
        DataError: a part or an image is damaged.
    """
    version = committed(ref)
    stored, words = StoredRows(version), words_of(version.manifest)
    chosen = spread(stored.num_rows) if rows is None else rows
    for number in chosen:
        laid = stored.laid(number)
        row = assemble(laid, stored.rules)
        share = row.length / stored.limits.max_tokens
        caption = (
            f"row {number} of {stored.num_rows}: {len(laid)} samples, {row.length:,} positions "
            f"({share:.0%} of {stored.limits.max_tokens:,}), {row.vit_lengths.size} images seen, "
            f"{row.vae_shapes.shape[0]} images in latents"
        )
        yield RowPicture(number=number, caption=caption, png=_png(_sheet(laid, row, words)))
    stored.close()


def save_pictures(
    ref: MultimodalRef, folder: Path, rows: Sequence[int] | None = None
) -> list[Path]:
    """Write the pictures of some rows as `row-00000.png` into a folder.

    Raises:
        StoreError: as `row_pictures`, or the folder cannot be written.
        ConfigError: as `row_pictures`.
        DataError: as `row_pictures`.
    """
    paths = []
    for picture in row_pictures(ref, rows):
        path = folder / f"row-{picture.number:05d}.png"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture.png)
        except OSError as error:
            raise StoreError(f"{path}: could not write the picture: {error}.") from error
        paths.append(path)
    return paths


def spread(num_rows: int, most: int = 3) -> list[int]:
    """Numbers of at most `most` rows, evenly spread.

    >>> spread(10), spread(2)
    ([0, 4, 9], [0, 1])
    """
    count = min(most, num_rows)
    return sorted({at * (num_rows - 1) // max(1, count - 1) for at in range(count)})


def _sheet(laid: Sequence[LaidSample], row: MultimodalRow, words: Words) -> Image.Image:
    """The strip of a row, at most 20 lines of it, and its mask below."""
    tiles = [_Tile(number, spanned, words) for number, spanned in enumerate(laid)]
    places = list(_flow([width for tile in tiles for width in tile.widths]))
    while len(tiles) > 1 and places[-1][1] > _MOST_LINES * _LINE:
        del places[-len(tiles.pop().widths) :]
    left_out = len(laid) - len(tiles)
    height = (places[-1][1] + _LINE if places else _LINE) + _GAP
    mask = mask_picture(row)
    sheet = Image.new("RGB", (_WIDTH, height + mask.height + _HEAD + 2 * _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(_FONT)
    at = 0
    for tile in tiles:
        tile.draw(sheet, draw, font, places[at : at + len(tile.widths)])
        at += len(tile.widths)
    legend = "who sees whom, query down, key across:  causal blue, full green, noise orange"
    if left_out:
        legend = f"{left_out} more samples of this row are not shown.   {legend}"
    draw.text((_GAP, height), legend, fill=_INK, font=font)
    sheet.paste(mask, (_GAP, height + _HEAD))
    return sheet


def _flow(widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Left upper corners of tiles that fill one line after the other."""
    x, y = _GAP, _GAP
    for width in widths:
        if x > _GAP and x + width + _GAP > _WIDTH:
            x, y = _GAP, y + _LINE
        yield x, y
        x += width + _GAP


class _Tile:
    """One sample: its spans as tiles that may run over several lines."""

    def __init__(self, number: int, laid: LaidSample, words: Words) -> None:
        self._laid = laid
        self._title = f"{number}  {laid.sample.ref.group}  {laid.sample.ref.file}"
        self._title += f" : {laid.sample.ref.row}"
        self._pictures = _pictures(laid)
        self._texts = ["" if one.text is None else words(one.text) for one in laid.sample.items]
        self.widths = [
            _TEXT if picture is None else max(picture.width, _TILE) for picture in self._pictures
        ]

    def draw(
        self,
        sheet: Image.Image,
        draw: ImageDraw.ImageDraw,
        font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
        places: Sequence[tuple[int, int]],
    ) -> None:
        """Draw all spans at their places."""
        for y in sorted({place[1] for place in places}):
            line = [at for at, place in enumerate(places) if place[1] == y]
            left = places[line[0]][0]
            right = places[line[-1]][0] + self.widths[line[-1]]
            draw.rectangle((left - 3, y, right + 2, y + _LINE - _GAP), outline=_FRAME)
            title = self._title[: (right - left) // _LETTER]
            draw.text((left, y), title, fill=_INK, font=font)
        for number, (x, y) in enumerate(places):
            self._span(number, sheet, draw, font, (x, y + _HEAD))

    def _span(
        self,
        number: int,
        sheet: Image.Image,
        draw: ImageDraw.ImageDraw,
        font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
        corner: tuple[int, int],
    ) -> None:
        x, y = corner
        item, picture = self._laid.sample.items[number], self._pictures[number]
        width = self.widths[number]
        box = (x, y, x + width, y + _TILE)
        if picture is None:
            draw.rectangle(box, fill=_TEXT_FILL[item.loss])
            shown = _wrapped(self._texts[number], width // _LETTER - 1, _TILE // _LABEL)
            draw.multiline_text((x + 4, y + 3), shown, fill=_INK, font=font, spacing=2)
        else:
            sheet.paste(picture, (x, y))
            outline = MODES[mode_of(item)]
            draw.rectangle((x, y, x + picture.width, y + picture.height), outline=outline, width=3)
        kept = bool(self._laid.kept[number])
        if not kept:
            draw.line((x, y, x + width, y + _TILE), fill=_CROSS, width=3)
            draw.line((x, y + _TILE, x + width, y), fill=_CROSS, width=3)
        told = f"{mode_of(item).value} {self._laid.lengths[number]}" if kept else "dropped"
        label = f"{item.kind.value} {told}"[: width // _LETTER]
        draw.text((x, y + _TILE + 2), label, fill=_INK if kept else _CROSS, font=font)


def mode_of(item: PlanItem) -> AttentionMode:
    """How an item is seen; later frames as the split that they join."""
    if item.kind is SpanKind.TEXT:
        return AttentionMode.CAUSAL
    return AttentionMode.NOISE if item.loss else AttentionMode.FULL


def _pictures(laid: LaidSample) -> list[Image.Image | None]:
    """Thumbnails of the image items, None for texts."""
    pixels = iter(laid.sample.pixels)
    return [
        None if item.kind is SpanKind.TEXT else _thumbnail(next(pixels))
        for item in laid.sample.items
    ]


def _thumbnail(pixels: UInt8) -> Image.Image:
    image = Image.fromarray(pixels)
    scale = _TILE / image.height
    size = (min(2 * _TILE, max(1, round(image.width * scale))), _TILE)
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC
    return image.resize(size, method)


def _wrapped(text: str, letters: int, lines: int) -> str:
    """The first words of a text, on so many lines of so many letters."""
    shown = "".join(one if one.isprintable() else " " for one in text[:_SHOWN])
    return "\n".join(wrap(shown, letters, max_lines=lines, placeholder=" …"))


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.quantize(_COLOURS).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
