"""The screen of a game: worlds side by side, their components, and what the keys do."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout

import typer
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cwm_cli.runs.report import Grid
from cwm_cli.text import clean
from cwm_cli.views.lines import Lines, complain
from cwm_cli.views.tables import GridTable
from cwm_cli.views.terminal import fitted, printable
from cwm_play.games import Game
from cwm_play.keys import NAMED, PAUSE, QUIT, RECORD, legend
from cwm_play.pictures import gauge, picture_lines
from cwm_play.play import GameProgress
from cwm_play.scenes import ComponentRow, GameScene, number_words

SMALLEST = (30, 8)
"""Columns and lines below which there is no room for a world."""

GAUGE, NUMBER = 16, 12
"""Columns of a gauge, and of a number."""

LEAST_LINES = 6
"""Lines of pictures at least, where there are any: components wait for what is left."""


PLAIN = {ord(sign): key for key, sign in NAMED.items() if len(sign) == 1} | dict(
    zip(map(ord, "·█●"), ".#*", strict=True)
)
"""What stands for a character where there are only those of ASCII."""


class GameScreen(Lines):
    """Draws every scene on a screen of its own, which is gone when the game ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stack = ExitStack()
        self._live: Live | None = None
        self._notes: list[tuple[str, str]] = []

    def note(self, words: str, kind: str = "Note") -> None:
        """Print the line, once the screen is that of before again."""
        if self._live is None:
            super().note(words, kind)
        else:
            self._notes.append((words, kind))

    def begins(self, work: object) -> None:
        """Begin to draw; what others print waits."""
        if not isinstance(work, Game):
            return
        self._live = Live(
            console=self._console,
            screen=not self._console.is_dumb_terminal,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._console.file = self._console.file  # the stream of now, before others are led away
        self._stack.enter_context(self._live)
        self._printed = io.StringIO()
        self._stack.enter_context(redirect_stdout(self._printed))
        self._stack.enter_context(redirect_stderr(self._printed))

    def advanced(self, event: object) -> None:
        """Draw the scene."""
        if isinstance(event, GameProgress) and self._live is not None:
            width, height = self._console.size
            console = self._console
            in_colour = console.color_system is not None and not console.no_color
            plain = console.options.ascii_only
            lines = scene_lines(event, width, height, in_colour=in_colour and not plain)
            if plain:
                lines = [Text(line.plain.translate(PLAIN), line.style) for line in lines]
            if console.is_dumb_terminal:
                console.print(Group(*lines))  # one below the other: nothing else is understood
            else:
                self._live.update(Group(*lines), refresh=True)

    def ends(self) -> None:
        """Leave the screen, and say what was to be said meanwhile."""
        self._stack.close()
        if self._live is None:
            return
        self._live = None
        if text := clean(self._printed.getvalue(), newlines=True).strip():
            typer.echo(text, err=True)
        for words, kind in self._notes:
            complain(words, kind)


def scene_lines(event: GameProgress, width: int, height: int, *, in_colour: bool) -> list[Text]:
    """Put a scene into lines of a terminal: exactly as many as it has."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        small = f"{width} x {height}: make it {SMALLEST[0]} x {SMALLEST[1]}, or q"
        return [fitted(Text(small), width)]
    scene = event.scene
    flags = " ● recording" * event.is_recording + " paused" * event.is_paused
    head = [Text(printable(scene.title), "bold").append(flags, "red")]
    head += [Text(printable(fact)) for fact in scene.facts]
    said = [Text(printable(scene.mark), "red")] if scene.mark else []
    said += [Text(printable(each), "yellow") for each in (scene.warning, event.refused) if each]
    common = legend({QUIT: "quit", PAUSE: "pause", RECORD: "record"})
    told = _wrapped([*scene.legend, *common], width)
    if len(told) > (most := max(1, height // 4)):
        told = [*told[: most - 1], Text("   ".join(common), "dim")]
    room = height - len(head) - len(said) - len(told)
    rows = _rows(scene, width)
    pictures = any(not panel.look.is_empty for panel in scene.panels)
    for_rows = min(len(rows), max(room - LEAST_LINES, 0)) if pictures else len(rows)
    worlds = _panels(scene, width, room - for_rows if pictures else 1, in_colour=in_colour)
    body = [*worlds, *rows[: max(room - len(worlds), 0)]][:room]
    body += [Text()] * (room - len(body))
    return [fitted(line, width) for line in (*head, *body, *said, *told)]


def _panels(scene: GameScene, width: int, height: int, *, in_colour: bool) -> list[Text]:
    """Draw the worlds side by side, each under its title."""
    if not scene.panels or height < 1:
        return []
    wide = max(1, (width - len(scene.panels) + 1) // len(scene.panels))
    columns: list[list[Text]] = []
    for panel in scene.panels:
        words = f"{panel.title} · {panel.note}" if panel.note else panel.title
        column = [Text(printable(words), "bold red" if panel.is_marked else "bold")]
        if panel.look.picture is not None and height > 1:
            column += picture_lines(panel.look.picture, wide, height - 1, in_colour=in_colour)
        elif panel.look.text:
            column += [Text(printable(line)) for line in panel.look.text.splitlines()]
        columns.append(column[:height])
    lines = []
    for number in range(max(map(len, columns))):
        line = Text()
        for place, column in enumerate(columns):
            cell = fitted(column[number].copy(), wide) if number < len(column) else Text()
            line.append_text(cell)
            if place < len(columns) - 1:
                line.append(" " * (wide - cell.cell_len + 1))
        lines.append(line)
    return lines


def _rows(scene: GameScene, width: int) -> list[Text]:
    """Put the components into lines: a number, and where it is between its bounds."""
    if not scene.rows:
        return []
    names = [printable(row.component.name, 40) for row in scene.rows]
    label = min(max(map(cell_len, names)), max(width // 3, 8)) + 1
    cell = max((width - label - 2) // len(scene.columns), 4)
    head = Text(" " * (label + 2), "dim")
    for column in scene.columns:
        head.append(f"{column[: cell - 1]:<{cell}}")
    return [
        head,
        *(_row(row, name, label, cell) for row, name in zip(scene.rows, names, strict=True)),
    ]


def _row(row: ComponentRow, name: str, label: int, cell: int) -> Text:
    """Put a component into a line."""
    line = Text(style="red" if row.is_wrong else "")
    line.append("! " if row.is_wrong else "  ").append_text(fitted(Text(name), label - 1))
    line.append(" " * (label + 2 - line.cell_len))
    for value in row.values:
        words = printable(number_words(value), cell - 1)
        room = min(GAUGE, cell - NUMBER - 2)
        is_number = isinstance(value, int | float)
        drawn = gauge(value, row.component.low, row.component.high, room) if is_number else ""
        text = f"{words:<{NUMBER}} {drawn}" if drawn else words
        line.append(text).append(" " * max(cell - cell_len(text), 0))
    return line


def _wrapped(parts: Iterable[str], width: int) -> list[Text]:
    """Put what keys do into as few lines as it takes."""
    lines = [""]
    for part in parts:
        joined = f"{lines[-1]}   {part}" if lines[-1] else part
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return [Text(line, "dim") for line in lines]


HEADS = {"returned": "return", "truly": "true return", "is_over": "finished"}
"""Column titles of facts whose names in JSON are not words for users."""


def game_report(facts: Sequence[dict[str, object]]) -> GridTable:
    """Return a table of the facts of each episode."""
    keys = dict.fromkeys(key for each in facts for key in each)
    heads = [key for key in keys if any(_cell(each.get(key)) for each in facts)]
    cells = [[_cell(each.get(name)) for name in heads] for each in facts]
    return GridTable(Grid("", [HEADS.get(head, head.replace("_", " ")) for head in heads], cells))


def _cell(value: object) -> str:
    """Write a fact."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return number_words(value)
