"""Charts as Braille dots on a terminal, as SVG for light and dark pages, and as PNG."""

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
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff9447"),
    ("#00835f", "#3ccba0"),
    ("#b5568f", "#e29ac3"),
    ("#a87400", "#f0e442"),
    ("#3d4654", "#d5dbe5"),
)
"""Colours on light and on dark pages, after Okabe and Ito (2008)."""

DASHES = ("none", "7 4", "2 4", "9 4 2 4", "13 5", "5 3 2 3 2 3")
"""Dashes of lines, so that they differ without colours as well."""

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of the dots of a Braille character, by row and column."""


class Series(NamedTuple):
    """Points in one colour, joined by a line unless they are `loose`.

    `band` holds the lower and the upper bound at each point.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    loose: bool = False


class Axis(NamedTuple):
    """The ends of an axis, and whether it is logarithmic (powers of ten)."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, logarithmic: bool = False) -> Axis:
        """Return an axis that contains all values."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        if logarithmic:
            return cls(10.0 ** floor(log10(low)), 10.0 ** max(ceil(log10(high)), 1), True)
        if high - low < 1e-9 * max(1.0, abs(high)):
            low, high = low - 0.5, high + 0.5
        # The small numbers keep a bound that is a multiple of the step, despite rounding.
        step = nice_step((high - low) / 10)
        return cls(step * floor(low / step + 1e-9), step * ceil(high / step - 1e-9))

    def place(self, value: float) -> float:
        """Return the position of a value, 0 at the low end and 1 at the high end."""
        if self.logarithmic:
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)

    @property
    def marks(self) -> list[float]:
        """About five round numbers on the axis."""
        if self.logarithmic:
            return [10.0**n for n in range(round(log10(self.low)), round(log10(self.high)) + 1)]
        step = nice_step((self.high - self.low) / 5)
        count = floor((self.high - self.low) / step + 1e-9)
        first = step * ceil(self.low / step - 1e-9)
        return [first + n * step for n in range(count + 1) if first + n * step <= self.high + 1e-9]


def nice_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least `least`."""
    power: float = 10.0 ** floor(log10(least))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= least * (1 - 1e-9))


class Chart(NamedTuple):
    """Series over common axes with labels."""

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
        """Return a chart with axes that contain all points; only the x axis can be logarithmic."""
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
        """Return the chart as SVG, with colours for light and dark pages."""
        light, dark = (
            " ".join(
                f".c{n} {{ color: {COLOURS[n % len(COLOURS)][ground]} }}"
                for n in range(len(self.series))
            )
            for ground in (0, 1)
        )
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            f' font-family="sans-serif" font-size="13" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>.ink {{ fill: #24292f }} .rule {{ stroke: #8c959f; stroke-opacity: 0.4 }} "
            f"{light} @media (prefers-color-scheme: dark) {{ .ink {{ fill: #e6edf3 }} {dark} }}"
            "</style>",
            f'<text class="ink" x="{LEFT}" y="22" font-size="15">{escape(self.title)}</text>',
            *self._grid(),
            *(part for n, one in enumerate(self.series) for part in self._drawn(n, one)),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def png(self, file: Path) -> bool:
        """Draw the chart into a file; return False if matplotlib is not installed."""
        if find_spec("matplotlib") is None:
            return False
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), layout="constrained")
        self.plot(figure.add_subplot())
        figure.savefig(file, dpi=150)
        return True

    def plot(self, axes: Any) -> None:
        """Draw the chart with matplotlib."""
        for place, one in enumerate(self.series):
            style: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)][0], "label": one.name}
            axes.plot(one.x, one.y, "." if one.loose else LINES[place % len(LINES)], **style)
            if one.band:
                axes.fill_between(one.x, *one.band, alpha=0.2, color=style["color"])
        axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
        axes.set_xscale("log" if self.x.logarithmic else "linear")
        if any(one.name for one in self.series):
            axes.legend()

    def dots(self, width: int, height: int) -> list[Text]:
        """Draw the chart in `width` columns and `height` lines of text, without title and names."""
        labels = [_number(self.y.high), _number(self.y.low)]
        margin = max(map(len, labels)) + 1
        columns, lines = max(1, width - margin - 1), max(1, height - 1)
        # A Braille character has 2 by 4 dots, one bit each.
        grid = [[0] * columns for _ in range(lines)]
        colours = [[""] * columns for _ in range(lines)]
        for place, one in enumerate(self.series):
            colour = TERMINAL[place % len(TERMINAL)]
            for x, y in self._points(one, 2 * columns, 4 * lines):
                line, column = lines - 1 - y // 4, x // 2
                grid[line][column] |= DOTS[3 - y % 4][x % 2]
                colours[line][column] = colour
        drawn = []
        braille = 0x2800
        for number, (bits, shades) in enumerate(zip(grid, colours, strict=True)):
            label = {0: labels[0], lines - 1: labels[1]}.get(number, "")
            text = Text(f"{label:>{margin}}\u2502", "dim")
            for shade, run in groupby(zip(bits, shades, strict=True), key=itemgetter(1)):
                text.append("".join(chr(braille + bit) if bit else " " for bit, _ in run), shade)
            drawn.append(text)
        last = f"{_number(self.x.high)} {self.x_label}"
        return [*drawn, Text(f"{'0':>{margin}}\u2514{last:>{columns}}"[:width], "dim")]

    def _points(self, one: Series, columns: int, rows: int) -> Iterator[tuple[int, int]]:
        """Yield the dots of a series, also those between the points of a line."""
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
        return f"{self._x(x):.1f},{self._y(y):.1f}"

    def _x(self, value: float) -> float:
        return LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - TOP - BOTTOM)

    def _grid(self) -> Iterator[str]:
        """Draw the axes with numbers and labels."""
        for mark in self.y.marks:
            y = self._y(mark)
            yield f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield _text(LEFT - 8, y + 4, _number(mark), "end")
        for mark in self.x.marks:
            yield _text(self._x(mark), HEIGHT - BOTTOM + 20, _number(mark), "middle")
        yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, self.x_label, "middle")
        yield _text(LEFT, TOP - 10, self.y_label, "start")

    def _drawn(self, place: int, one: Series) -> Iterator[str]:
        """Draw a series with its band."""
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
            line = f'fill="none" stroke="currentColor" stroke-width="2" {_dash(place)}'
            yield f'<polyline points="{points}" {line}/>'
        yield "</g>"

    def _legend(self) -> Iterator[str]:
        """Draw the names of the series, at the lower right."""
        for place, one in enumerate(self.series):
            x, y = WIDTH - RIGHT - 190, HEIGHT - BOTTOM - 20 - 22 * place
            yield (
                f'<line class="c{place}" x1="{x}" x2="{x + 26}" y1="{y}" y2="{y}"'
                f' stroke="currentColor" stroke-width="3" {_dash(place)}/>'
            )
            yield _text(x + 34, y + 4, one.name, "start")


TERMINAL = ("bold green", "cyan", "yellow", "magenta")
FILLED = 'fill="currentColor" fill-opacity="0.7"'


LINES = ("-", "--", ":", "-.")
"""Dashes of matplotlib."""


def _dash(place: int) -> str:
    """Return the attribute with the dashes of a line."""
    return f'stroke-dasharray="{DASHES[place % len(DASHES)]}"'


def _number(value: float) -> str:
    return f"{value + 0.0:,.10g}"  # the sum turns -0.0 into 0


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def check_picture(file: Path) -> None:
    """Raise `CwmError` for a file that charts cannot be written to."""
    if file.suffix not in (".svg", ".png"):
        raise CwmError(f"{file} is not a picture: use a name that ends in .svg or .png")
    if file.suffix == ".png" and find_spec("matplotlib") is None:
        raise CwmError("a .png needs matplotlib: install it, or name an .svg file")
    if not file.parent.is_dir():
        raise CwmError(f"there is no folder {file.parent}: create it first")


def save_charts(charts: Sequence[Chart], file: Path) -> None:
    """Draw charts one below the other into an SVG file, or into PNG with matplotlib."""
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
