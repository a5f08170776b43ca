"""Curves as pictures: of dots in a terminal, as SVG for light and dark ground, and as PNG.

A `Chart` draws what it is given over axes that fit: lines, with a band around them where there is
one, or single points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.util import find_spec
from itertools import groupby
from math import ceil, floor, log10
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from cwm_cli.errors import CwmError
from cwm_cli.runs.files import replace

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 54, 50
COLOURS = (
    ("#0063a6", "#5cb8ff"),
    ("#b34a00", "#ff9b4a"),
    ("#00724f", "#3ddc9f"),
    ("#7a3fb0", "#c79bf2"),
    ("#a4123f", "#ff8fab"),
    ("#6b5b00", "#e3c84a"),
)
"""For each line its colour on light and on dark ground."""

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of the dots of a Braille character, by row and column."""


class Series(NamedTuple):
    """What is drawn in one colour: points, joined by a line unless they are `loose`.

    `band` has the lowest and the highest value at each of them.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    loose: bool = False


class Axis(NamedTuple):
    """From which number to which one an axis goes, and whether by powers of ten."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, logarithmic: bool = False) -> Axis:
        """Return an axis on which all values lie."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        if logarithmic:
            return cls(10.0 ** floor(log10(low)), 10.0 ** max(ceil(log10(high)), 1), True)
        if high - low < 1e-9 * max(1.0, abs(high)):
            low, high = low - 0.5, high + 0.5
        step = nice_step((high - low) / 10)
        return cls(step * floor(low / step + 1e-9), step * ceil(high / step - 1e-9))

    def place(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one."""
        if self.logarithmic:
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)

    @property
    def marks(self) -> list[float]:
        """Round numbers on it, about five."""
        if self.logarithmic:
            return [10.0**n for n in range(round(log10(self.low)), round(log10(self.high)) + 1)]
        step = nice_step((self.high - self.low) / 5)
        count = floor((self.high - self.low) / step + 1e-9)
        first = step * ceil(self.low / step - 1e-9)
        return [first + n * step for n in range(count + 1) if first + n * step <= self.high + 1e-9]


def nice_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is no less."""
    power: float = 10.0 ** floor(log10(least))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= least * (1 - 1e-9))


class Chart(NamedTuple):
    """Series over common axes, and what those measure."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x: Axis
    y: Axis

    @classmethod
    def of(
        cls,
        title: str,
        x_label: str,
        y_label: str,
        series: Sequence[Series],
        *,
        logarithmic: bool = False,
    ) -> Chart:
        """Choose axes on which all lies; the logarithmic one is the horizontal."""
        heights = [y for one in series for some in (one.y, *(one.band or ())) for y in some]
        places = [x for one in series for x in one.x]
        return cls(
            title,
            x_label,
            y_label,
            series,
            Axis.of(places if logarithmic else [*places, 0], logarithmic=logarithmic),
            Axis.of(heights),
        )

    def svg(self) -> str:
        """Draw it for light and for dark ground."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            f' font-family="sans-serif" font-size="13" role="img">',
            f"<title>{escape(self.title)}</title>",
            _style(len(self.series)),
            f'<text class="ink" x="{LEFT}" y="22" font-size="15">{escape(self.title)}</text>',
            *self._grid(),
            *(part for n, one in enumerate(self.series) for part in self._drawn(n, one)),
            *(part for n, one in enumerate(self.series) for part in _legend(n, one.name)),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def png(self, file: Path) -> bool:
        """Draw it into a file, where matplotlib is installed; say whether it is."""
        if find_spec("matplotlib") is None:
            return False
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), layout="constrained")
        self.plot(figure.add_subplot())
        figure.savefig(file, dpi=150)
        return True

    def plot(self, axes: Any) -> None:
        """Draw it with matplotlib."""
        for place, one in enumerate(self.series):
            style: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)][0], "label": one.name}
            axes.plot(one.x, one.y, "." if one.loose else "-", **style)
            if one.band:
                axes.fill_between(one.x, *one.band, alpha=0.2, color=style["color"])
        axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
        axes.set_xscale("log" if self.x.logarithmic else "linear")
        axes.legend()

    def dots(self, width: int, height: int) -> list[Text]:
        """Draw it in so many columns and lines of a terminal, without its title and names."""
        labels = [_number(self.y.high), _number(self.y.low)]
        margin = max(map(len, labels)) + 1
        columns, lines = max(1, width - margin - 1), max(1, height - 1)
        grid = [[0] * columns for _ in range(lines)]
        colours = [[""] * columns for _ in range(lines)]
        for place, one in enumerate(self.series):
            colour = TERMINAL[place % len(TERMINAL)]
            for x, y in self._points(one, 2 * columns, 4 * lines):
                line, column = lines - 1 - y // 4, x // 2
                grid[line][column] |= DOTS[3 - y % 4][x % 2]
                colours[line][column] = colour
        drawn = []
        for number, (bits, shades) in enumerate(zip(grid, colours, strict=True)):
            label = {0: labels[0], lines - 1: labels[1]}.get(number, "")
            text = Text(f"{label:>{margin}}\u2502", "dim")
            for shade, run in groupby(zip(bits, shades, strict=True), key=itemgetter(1)):
                text.append("".join(chr(BRAILLE + bit) if bit else " " for bit, _ in run), shade)
            drawn.append(text)
        last = f"{_number(self.x.high)} {self.x_label}"
        return [*drawn, Text(f"{'0':>{margin}}\u2514{last:>{columns}}"[:width], "dim")]

    def _points(self, one: Series, columns: int, rows: int) -> Iterator[tuple[int, int]]:
        """Yield the dots of a series, from the lower left; those between the points of a line."""
        before: tuple[int, int] | None = None
        for x, y in zip(one.x, one.y, strict=True):
            here = (
                min(columns - 1, max(0, round(self.x.place(x) * (columns - 1)))),
                min(rows - 1, max(0, round(self.y.place(y) * (rows - 1)))),
            )
            yield here
            if before and not one.loose:
                (x0, y0), (x1, y1) = before, here
                count = max(abs(x1 - x0), abs(y1 - y0), 1)
                for part in range(1, count):
                    share = part / count
                    yield round(x0 + share * (x1 - x0)), round(y0 + share * (y1 - y0))
            before = here

    def _at(self, x: float, y: float) -> str:
        """Return where a point lies in the picture."""
        return f"{self._x(x):.1f},{self._y(y):.1f}"

    def _x(self, value: float) -> float:
        return LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - TOP - BOTTOM)

    def _grid(self) -> Iterator[str]:
        """Draw the axes, their numbers and what they measure."""
        for mark in self.y.marks:
            y = self._y(mark)
            yield f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield _text(LEFT - 8, y + 4, _number(mark), "end")
        for mark in self.x.marks:
            yield _text(self._x(mark), HEIGHT - BOTTOM + 20, _number(mark), "middle")
        yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, self.x_label, "middle")
        yield _text(LEFT, TOP - 10, self.y_label, "start")

    def _drawn(self, place: int, one: Series) -> Iterator[str]:
        """Draw a series, with its band."""
        pairs = list(zip(one.x, one.y, strict=True))
        yield f'<g class="c{place}">'
        if one.band:
            low, high = (list(zip(one.x, some, strict=True)) for some in one.band)
            around = " ".join(self._at(*pair) for pair in [*low, *high[::-1]])
            yield f'<polygon points="{around}" fill="currentColor" fill-opacity="0.2"/>'
        if one.loose:
            for x, y in pairs:
                yield f'<circle cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="3" {FILLED}/>'
        else:
            points = " ".join(self._at(*pair) for pair in pairs)
            line = 'fill="none" stroke="currentColor" stroke-width="2"'
            yield f'<polyline points="{points}" {line}/>'
        yield "</g>"


TERMINAL = ("bold green", "cyan", "yellow", "magenta")
FILLED = 'fill="currentColor" fill-opacity="0.7"'


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


def _legend(place: int, name: str) -> Iterator[str]:
    """Name a series, at the lower right."""
    x, y = WIDTH - RIGHT - 190, HEIGHT - BOTTOM - 20 - 22 * place
    yield (
        f'<line class="c{place}" x1="{x}" x2="{x + 26}" y1="{y}" y2="{y}"'
        ' stroke="currentColor" stroke-width="3"/>'
    )
    yield _text(x + 34, y + 4, name, "start")


def _number(value: float) -> str:
    """Write a round number."""
    return f"{value + 0.0:,.10g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    """Write something."""
    return f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def check_picture(file: Path) -> None:
    """Refuse a file that no picture can be written to."""
    if file.suffix not in (".svg", ".png"):
        raise CwmError(f"{file} names no picture: let it end in .svg or .png")
    if file.suffix == ".png" and find_spec("matplotlib") is None:
        raise CwmError("a .png needs matplotlib: install it, or name an .svg file")
    if not file.parent.is_dir():
        raise CwmError(f"there is no folder {file.parent}: make it first")


def save_charts(charts: Sequence[Chart], file: Path) -> None:
    """Draw charts one below the other, as SVG or, where matplotlib is installed, as PNG."""
    check_picture(file)
    if file.suffix == ".svg":
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} '
        place = f'<svg y="{{}}" width="{WIDTH}" height="{HEIGHT}" '
        drawn = [
            chart.svg().replace("<svg ", place.format(HEIGHT * number), 1)
            for number, chart in enumerate(charts)
        ]
        replace(file, f'{head}{HEIGHT * len(charts)}">\n{"".join(drawn)}</svg>\n')
        return
    from matplotlib.figure import Figure

    size = WIDTH / 100, HEIGHT / 100 * len(charts)
    figure = Figure(figsize=size, layout="constrained")
    for number, chart in enumerate(charts, start=1):
        chart.plot(figure.add_subplot(len(charts), 1, number))
    figure.savefig(file, dpi=150)
