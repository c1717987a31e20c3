"""Bar charts as SVG text: no library, the same bytes everywhere, a few KB each.

Matplotlib draws the loss curve; it would cost a second and 30 KB a picture here, where bars are all
that is needed. A chart has its own background, so it can be read on a page of any colour.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from megapack.layout.runs import Int64

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 36, 46
_TICKS = 4
_STEPS = (1, 2, 5)
_KILO = 1000
_BINS = 40
_STYLE = 'font-family="system-ui,sans-serif" font-size="12" fill="#1c2330"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A bar chart.

    Attributes:
        title: what it shows.
        x_label: what stands along the bottom.
        y_label: what a bar counts.
        edges: n + 1 texts at the edges of the bars; "" where none is written.
        counts: n heights.
    """

    title: str
    x_label: str
    y_label: str
    edges: Sequence[str]
    counts: Sequence[int]

    def svg(self) -> str:
        """The chart as an SVG element."""
        width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        top = _TICKS * round_up(max(self.counts) / _TICKS)
        step = width / len(self.counts)
        base = _TOP + height
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#fbfcfe"/>',
            f'<text x="{_LEFT}" y="22" {_STYLE} font-weight="600">{escape(self.title)}</text>',
        ]
        for tick in range(_TICKS + 1):
            y = base - height * tick / _TICKS
            parts.append(
                f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#d6dbe3"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" {_STYLE}>'
                f"{short(top * tick / _TICKS)}</text>"
            )
        for at, count in enumerate(self.counts):
            tall = height * count / top
            what = f"{self._range(at)}: {count:,} {self.y_label}"
            parts.append(
                f'<rect x="{_LEFT + at * step + 0.5:.1f}" y="{base - tall:.1f}" '
                f'width="{max(step - 1, 0.5):.1f}" height="{tall:.1f}" fill="#3b78c3">'
                f"<title>{escape(what)}</title></rect>"
            )
        parts += [
            f'<text x="{_LEFT + at * step:.1f}" y="{base + 17}" text-anchor="middle" {_STYLE}>'
            f"{escape(edge)}</text>"
            for at, edge in enumerate(self.edges)
            if edge and (at % max(1, len(self.counts) // _TICKS) == 0 or at == len(self.counts))
        ]
        parts.append(
            f'<text x="{_LEFT + width / 2:.1f}" y="{_HEIGHT - 8}" text-anchor="middle" {_STYLE}>'
            f"{escape(self.x_label)}</text></svg>"
        )
        return "".join(parts)

    def data_url(self) -> str:
        """The chart as an address that holds it, for pages that take pictures but no SVG."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg().encode()).decode()}"

    def _range(self, at: int) -> str:
        return f"{self.edges[at]} to {self.edges[at + 1]}"


def round_up(number: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ...

    >>> round_up(0), round_up(3), round_up(83.2)
    (1, 5, 100)
    """
    step = 1
    while True:
        for times in _STEPS:
            if number <= times * step:
                return times * step
        step *= 10


def short(number: float) -> str:
    """A number in few characters.

    >>> short(0), short(950), short(12_300), short(4_000_000)
    ('0', '950', '12.3k', '4M')
    """
    for unit in ("", "k", "M", "G"):
        if abs(number) < _KILO or unit == "G":
            return f"{number:.3g}{unit}"
        number /= _KILO
    return str(number)


def binned(counts: Int64, *, low: int = 0) -> tuple[list[str], list[int]]:
    """Counts by whole number as at most 40 bars of equal width, a power of two.

    >>> binned(np.array([0, 2, 1, 5]))
    (['0', '1', '2', '3', '4'], [0, 2, 1, 5])

    Args:
        counts: int64 [n], by number from 0.
        low: smallest number to show.

    Returns:
        Texts at the edges, one more than bars; heights.
    """
    last = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else low + 1
    width = 1 << max(0, (-(-(last - low) // _BINS) - 1).bit_length())
    bars = max(1, -(-(last - low) // width))
    padded = np.zeros(low + bars * width, np.int64)
    shown = counts[: padded.size]
    padded[: shown.size] = shown
    heights = padded[low:].reshape(bars, width).sum(axis=1)
    return [f"{low + at * width:,}" for at in range(bars + 1)], heights.tolist()
