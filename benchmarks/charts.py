"""Draw curves with their bands as an SVG that can be read on light and on dark ground."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import floor
from typing import NamedTuple

import numpy as np

from benchmarks.curves import Curve

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 50, 50
COLOURS = (
    ("#0063a6", "#5cb8ff"),
    ("#b34a00", "#ff9b4a"),
    ("#00724f", "#3ddc9f"),
    ("#7a3fb0", "#c79bf2"),
)
"""For each line its colour on light and on dark ground."""

Point = Callable[[float, float], str]


class Axes(NamedTuple):
    """What the picture shows: completions from 1 to `last`, scores from `lowest` to 1."""

    last: int
    lowest: float

    def x(self, completions: float) -> float:
        """Return where a number of completions is."""
        share = (completions - 1) / max(self.last - 1, 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, score: float) -> float:
        """Return where a score is."""
        share = (score - self.lowest) / (1 - self.lowest)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def points(self, scores: np.ndarray, numbers: np.ndarray) -> str:
        """Return the points of a line."""
        pairs = zip(numbers, scores, strict=True)
        return " ".join(f"{self.x(number):.1f},{self.y(score):.1f}" for number, score in pairs)


def chart(curves: Sequence[Curve], title: str) -> str:
    """Draw curves over the number of completions."""
    last = len(curves[0].scores.mean)
    lowest = min(float(curve.scores.low.min()) for curve in curves)
    axes = Axes(last, min(floor(10 * lowest) / 10, 0.9))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        _style(len(curves)),
        f'<text class="ink" x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *_grid(axes),
        *(part for place, curve in enumerate(curves) for part in _line(axes, place, curve)),
        *(part for place, curve in enumerate(curves) for part in _legend(place, curve.name)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _style(count: int) -> str:
    """Choose the colours for both grounds."""
    light, dark = (
        " ".join(f".c{n} {{ color: {COLOURS[n % len(COLOURS)][ground]} }}" for n in range(count))
        for ground in (0, 1)
    )
    return (
        "<style>.ink { fill: #24292f } .rule { stroke: #8c959f; stroke-opacity: 0.4 } "
        f"{light} @media (prefers-color-scheme: dark) {{ .ink {{ fill: #e6edf3 }} {dark} }}"
        "</style>"
    )


def _grid(axes: Axes) -> Iterator[str]:
    """Draw the axes, their numbers and what they measure."""
    for tenth in range(round(10 * axes.lowest), 11):
        y = axes.y(tenth / 10)
        yield f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{tenth / 10:.1f}", "end")
    for number in _ticks(axes.last):
        yield _text(axes.x(number), HEIGHT - BOTTOM + 20, str(number), "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "completions", "middle")
    yield _text(LEFT, TOP - 10, "score of the best program so far, mean and 95 % band", "start")


def _ticks(last: int) -> list[int]:
    """Return the first number of completions and some round ones, at most a dozen in all."""
    step = next((step for step in (2, 5, 10, 20, 50) if last / step <= 10), last // 10)
    return [1, *range(max(step, 4), last + 1, step)]


def _line(axes: Axes, place: int, curve: Curve) -> Iterator[str]:
    """Draw a band and the line in it."""
    numbers = np.arange(1, axes.last + 1)
    mean, low, high = curve.scores
    around = axes.points(np.append(low, high[::-1]), np.append(numbers, numbers[::-1]))
    yield f'<g class="c{place}">'
    yield f'<polygon points="{around}" fill="currentColor" fill-opacity="0.2"/>'
    yield (
        f'<polyline points="{axes.points(mean, numbers)}" fill="none"'
        ' stroke="currentColor" stroke-width="2"/></g>'
    )


def _legend(place: int, name: str) -> Iterator[str]:
    """Name a line, at the lower right."""
    x, y = WIDTH - RIGHT - 190, HEIGHT - BOTTOM - 20 - 22 * place
    yield (
        f'<line class="c{place}" x1="{x}" x2="{x + 26}" y1="{y}" y2="{y}"'
        ' stroke="currentColor" stroke-width="3"/>'
    )
    yield _text(x + 34, y + 4, name, "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    """Write something."""
    return f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
