"""The screen of a game on a terminal: panels, components and the legend of the keys."""

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
from cwm_play.keys import HEADER, NAMED, PAUSE, QUIT, RECORD, legend
from cwm_play.pictures import gauge, picture_lines
from cwm_play.play import GameProgress
from cwm_play.scenes import ComponentRow, GameScene, format_value

MIN_SIZE = (30, 8)
"""Columns and lines of the smallest terminal that can show a scene."""

GAUGE_WIDTH, NUMBER_WIDTH = 16, 12
"""Width of a gauge and of a number, in columns."""

TO_ASCII = {ord(sign): key for key, sign in NAMED.items() if len(sign) == 1} | dict(
    zip(map(ord, "·█●"), ".#*", strict=True)
)
"""Replacements of characters for terminals with ASCII only."""


class GameScreen(Lines):
    """An observer that draws scenes on the alternate screen of a terminal, until the game ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stack = ExitStack()
        self._live: Live | None = None
        self._notes: list[tuple[str, str]] = []

    def note(self, words: str, kind: str = "Note") -> None:
        """Print a message; during a game, wait until the game ends."""
        if self._live is None:
            super().note(words, kind)
        else:
            self._notes.append((words, kind))

    def begins(self, work: object) -> None:
        """Switch to the alternate screen; hold back other output until the game ends."""
        if not isinstance(work, Game):
            return
        self._live = Live(
            console=self._console,
            screen=not self._console.is_dumb_terminal,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        # Fix the current stream, because stdout and stderr are redirected below.
        self._console.file = self._console.file
        self._stack.enter_context(self._live)
        self._printed = io.StringIO()
        self._stack.enter_context(redirect_stdout(self._printed))
        self._stack.enter_context(redirect_stderr(self._printed))

    def advanced(self, event: object) -> None:
        """Draw the scene of a `GameProgress`."""
        if isinstance(event, GameProgress) and self._live is not None:
            width, height = self._console.size
            console = self._console
            in_colour = console.color_system is not None and not console.no_color
            ascii_only = console.options.ascii_only
            lines = scene_lines(event, width, height, in_colour=in_colour and not ascii_only)
            if ascii_only:
                lines = [Text(line.plain.translate(TO_ASCII), line.style) for line in lines]
            if console.is_dumb_terminal:  # it cannot move the cursor, so scenes follow each other
                console.print(Group(*lines))
            else:
                self._live.update(Group(*lines), refresh=True)

    def ends(self) -> None:
        """Leave the alternate screen, and print the output and the messages held back."""
        self._stack.close()
        if self._live is None:
            return
        self._live = None
        if text := clean(self._printed.getvalue(), newlines=True).strip():
            typer.echo(text, err=True)
        for words, kind in self._notes:
            complain(words, kind)


def scene_lines(event: GameProgress, width: int, height: int, *, in_colour: bool) -> list[Text]:
    """Return a scene as the lines of a terminal of this size.

    A terminal smaller than `MIN_SIZE` gets one line that names the size it needs.
    """
    if width < MIN_SIZE[0] or height < MIN_SIZE[1]:
        hint = f"{width} x {height}: make it {MIN_SIZE[0]} x {MIN_SIZE[1]}, or q"
        return [fitted(Text(hint), width)]
    scene = event.scene
    flags = " ● recording" * event.is_recording + " paused" * event.is_paused
    head = [Text(printable(scene.title), "bold").append(flags, "red")]
    head += [Text(printable(fact)) for fact in scene.facts]
    messages = [Text(printable(scene.mark), "red")] if scene.mark else []
    warnings = scene.warning, event.film_error, event.question
    messages += [Text(printable(each), "yellow") for each in warnings if each]
    common = legend({QUIT: "quit", PAUSE: "pause", RECORD: "record", HEADER: "header"})
    keys = _wrap([*scene.legend, *common], width)
    if len(keys) > (max_lines := max(1, height // 4)):
        keys = [*keys[: max_lines - 1], Text("   ".join(common), "dim")]
    room = height - len(head) - len(messages) - len(keys)
    rows = _row_lines(scene, width)
    has_pictures = any(not panel.appearance.is_empty for panel in scene.panels)
    min_picture_lines = 6  # lines reserved for pictures; the table of components gets the rest
    row_count = min(len(rows), max(room - min_picture_lines, 0)) if has_pictures else len(rows)
    panel_height = room - row_count if has_pictures else 1
    panels = _panel_lines(scene, width, panel_height, in_colour=in_colour)
    body = [*panels, *rows[: max(room - len(panels), 0)]][:room]
    body += [Text()] * (room - len(body))
    return [fitted(line, width) for line in (*head, *body, *messages, *keys)]


def _panel_lines(scene: GameScene, width: int, height: int, *, in_colour: bool) -> list[Text]:
    if not scene.panels or height < 1:
        return []
    panel_width = max(1, (width - len(scene.panels) + 1) // len(scene.panels))
    columns: list[list[Text]] = []
    for panel in scene.panels:
        title = f"{panel.title} · {panel.note}" if panel.note else panel.title
        column = [Text(printable(title), "bold red" if panel.is_marked else "bold")]
        if panel.appearance.picture is not None and height > 1:
            column += picture_lines(
                panel.appearance.picture, panel_width, height - 1, in_colour=in_colour
            )
        elif panel.appearance.text:
            column += [Text(printable(line)) for line in panel.appearance.text.splitlines()]
        columns.append(column[:height])
    lines = []
    for number in range(max(map(len, columns))):
        line = Text()
        for place, column in enumerate(columns):
            cell = fitted(column[number].copy(), panel_width) if number < len(column) else Text()
            line.append_text(cell)
            if place < len(columns) - 1:
                line.append(" " * (panel_width - cell.cell_len + 1))
        lines.append(line)
    return lines


def _row_lines(scene: GameScene, width: int) -> list[Text]:
    """Return a heading, and a line per component with its values and gauges."""
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
        *(_row_line(row, name, label, cell) for row, name in zip(scene.rows, names, strict=True)),
    ]


def _row_line(row: ComponentRow, name: str, label: int, cell: int) -> Text:
    line = Text(style="red" if row.is_wrong else "")
    line.append("! " if row.is_wrong else "  ").append_text(fitted(Text(name), label - 1))
    line.append(" " * (label + 2 - line.cell_len))
    for value in row.values:
        text = printable(format_value(value), cell - 1)
        if isinstance(value, int | float):
            gauge_width = min(GAUGE_WIDTH, cell - NUMBER_WIDTH - 2)
            bar = gauge(value, row.component.low, row.component.high, gauge_width)
            text = f"{text:<{NUMBER_WIDTH}} {bar}" if bar else text
        line.append(text).append(" " * max(cell - cell_len(text), 0))
    return line


def _wrap(parts: Iterable[str], width: int) -> list[Text]:
    lines = [""]
    for part in parts:
        joined = f"{lines[-1]}   {part}" if lines[-1] else part
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return [Text(line, "dim") for line in lines]


HEADS = {"returned": "return", "truly": "true return", "is_over": "finished"}
"""Column headings of JSON keys that differ from the key."""


def game_report(facts: Sequence[dict[str, object]]) -> GridTable:
    """Return a table with a row per episode; columns without any value are left out."""
    keys = dict.fromkeys(key for each in facts for key in each)
    heads = [key for key in keys if any(_cell(each.get(key)) for each in facts)]
    cells = [[_cell(each.get(name)) for name in heads] for each in facts]
    return GridTable(Grid("", [HEADS.get(head, head.replace("_", " ")) for head in heads], cells))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return format_value(value)
