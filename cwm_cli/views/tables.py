"""Tables and lists on the terminal: reports, scores by part, labelled lines and bullets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from cwm_cli.evaluation import Score
from cwm_cli.evaluation.component_scores import ComponentScore
from cwm_cli.runs.progress import score_grid
from cwm_cli.runs.report import Grid, RunReport
from cwm_cli.runs.searches import PARTS
from cwm_cli.text import UNKNOWN, share, share_with_error
from cwm_cli.views.terminal import printable
from cwm_cli.worlds.contract import declared_approximations

MAX_GAPS = 3
"""Sentences on missing data after a command; `cwm runs show` prints them all."""


def report_parts(report: RunReport) -> Iterator[RenderableType]:
    """Yield the title, tables and notes of a report."""
    yield Text(printable(report.title), "bold")
    outcome, _, effort = report.verdict.partition(" \N{MIDDLE DOT} ")
    yield from (Text(printable(line, 1000)) for line in (outcome, effort) if line)
    yield from map(GridTable, report.grids)
    yield from (Text(printable(note, 1000)) for note in report.notes)


@dataclass(frozen=True)
class GridTable:
    """A table; one that is too wide is drawn as several, each with the columns of words.

    A `compact` table has no empty or ruled lines.
    """

    grid: Grid
    compact: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table."""
        grid = self.grid
        title = Text(printable(grid.title), "bold") if grid.title else None
        style = None if self.compact else box.SIMPLE_HEAD
        padding = (0, 2, 0, 0) if self.compact else (0, 1)
        for places in chunks(grid, options.max_width):
            table = Table(
                title=title, title_justify="left", box=style, padding=padding, pad_edge=False
            )
            for place in places:
                head = Text(printable(grid.heads[place]))
                table.add_column(
                    head, justify="left" if place < grid.words else "right", overflow="fold"
                )
            for line in grid.cells:
                table.add_row(*(Text(printable(line[place])) for place in places))
            yield table


def chunks(grid: Grid, width: int) -> list[list[int]]:
    """Share the columns out, so that each share fits into a width with the columns of words."""
    widths = _widths(grid)
    words = list(range(grid.words))
    room = width - sum(widths[: grid.words])
    shares: list[list[int]] = [[]]
    left = room
    for place in range(grid.words, len(widths)):
        # An empty share takes its first column even if it is too wide: it must be somewhere.
        if shares[-1] and widths[place] > left:
            shares.append([])
            left = room
        shares[-1].append(place)
        left -= widths[place]
    return [words + share for share in shares]


def fits(grid: Grid, width: int) -> bool:
    """Return whether all columns of a table fit into a width."""
    return sum(_widths(grid)) <= width


def _widths(grid: Grid) -> list[int]:
    """Return the width of each column, with the 3 columns that `rich` puts between two."""
    columns = zip(grid.heads, *grid.cells, strict=True)
    return [max(map(cell_len, column)) + 3 for column in columns]


def titled(scores: Mapping[str, Score | None]) -> dict[str, Score | None]:
    """Return scores by the title of their part; without a score of unseen situations if unknown."""
    return {
        title: scores.get(part)
        for part, title in PARTS.items()
        if scores.get(part) is not None or part != "unseen"
    }


def score_table(rows: Mapping[str, Score | None]) -> GridTable:
    """Compare scores part by part, with a column for each; unknown values are dashes."""
    return GridTable(score_grid(rows))


def part_table(scores: Mapping[str, Score | None], baseline: Score | None = None) -> GridTable:
    """Compare how many transitions are right, with a row for each part of a transition.

    Args:
        scores: Score by title of the column. Columns without a score are left out.
        baseline: Score of a prediction without a model, which gets a column of its own.
    """
    columns = {title: score for title, score in scores.items() if score is not None}
    if any(score.explained is not None for score in columns.values()):
        rows = [
            [name, *(share(getattr(score, field)) for score in columns.values()), reference]
            for name, field, reference in (
                ("explained", "explained", "0"),
                ("at the noise level", "explained_ceiling", ""),
            )
        ]
        return GridTable(Grid("", ["", *columns, "baseline"], rows), compact=True)
    if any(score.skill is not None for score in columns.values()):  # random outcomes rarely match
        skills = [share_with_error(each.skill, each.skill_stderr) for each in columns.values()]
        grid = Grid("", ["", *columns, "baseline"], [["skill", *skills, "0"]])
        return GridTable(grid, compact=True)
    if baseline is not None:
        columns["baseline"] = baseline
    parts: dict[str, Callable[[Score], float | None]] = {
        "published score": lambda score: score.paper,
        "observation": lambda score: score.observation,
        "reward": lambda score: score.reward,
        "terminated": lambda score: score.terminated,
        "valid actions": lambda score: score.valid_actions,
        "all parts": lambda score: score.exact,
    }
    cells = [
        [name, *(share(read(score)) for score in columns.values())]
        for name, read in parts.items()
        if any(read(score) is not None for score in columns.values())
    ]
    return GridTable(Grid("", ["", *columns], cells), compact=True)


def component_grid(components: Sequence[ComponentScore], program: str = "") -> Grid:
    """Return a table with the errors of each component, and the noise level.

    The kind of prediction is shown if the program declares approximations. Columns without any
    value are left out.
    """
    approximations = declared_approximations(program)
    columns: dict[str, Callable[[ComponentScore], str]] = {
        "component": lambda each: each.name,
        "RMSE": lambda each: _number(each.rmse),
        "noise": lambda each: _number(each.noise),
        "R\N{SUPERSCRIPT TWO}": lambda each: share(each.r2),
        "explained": lambda each: share(each.explained),
        "right": lambda each: share(each.right),
        "errors": _errors,
    }
    if approximations:
        columns["predicted by"] = lambda each: (
            UNKNOWN if each.number is None else approximations.get(each.number, "a law")
        )
    cells = {head: [read(each) for each in components] for head, read in columns.items()}
    heads = [head for head, values in cells.items() if set(values) != {UNKNOWN}]
    return Grid("", heads, [list(line) for line in zip(*(cells[h] for h in heads), strict=True)])


def component_parts(
    train: Score | None, test: Score | None, program: str = ""
) -> Iterator[RenderableType]:
    """Yield the table of components, on held-out transitions if there are any.

    Args:
        train: Score of the train rows.
        test: Score of the held-out rows.
        program: Source text of the program, which may declare approximations.
    """
    score = test if test is not None and test.components else train
    if score is not None and score.components:
        most = 12  # lines on a terminal; the page of a run and --json have all
        yield Text("")
        title = "held-out" if score is test else "train"
        worst = sorted(score.components, key=lambda each: each.is_explained)[:most]
        shown = [each for each in score.components if each in worst]
        yield Text(f"One-step predictions of each component ({title}):")
        yield GridTable(component_grid(shown, program), compact=True)


def _number(value: float | None) -> str:
    # Levels of rounded arithmetic count as 0.
    return UNKNOWN if value is None else f"{value:.3g}" if value > 1e-12 else "0"


def _errors(score: ComponentScore) -> str:
    """Return in few words what the errors of a component are like."""
    if score.exact:
        return "none"
    return f"depend on {score.depends_on[0]}" if score.depends_on else "white"


def labelled(lines: Mapping[str, str]) -> Iterator[Text]:
    """Yield a line for each label, with all values in one column; paths are never broken."""
    width = max(map(len, lines), default=0) + 2
    for label, words in lines.items():
        line = Text(f"{label + ':':<{width}}", no_wrap=True, overflow="ignore")
        yield line.append(words)


def gap_parts(gaps: Sequence[str]) -> Iterator[RenderableType]:
    """Yield what the data do not cover, at most `MAX_GAPS` sentences."""
    if gaps:
        yield Text("Not covered by the data:")
        yield from (Bullet(gap) for gap in gaps[:MAX_GAPS])


@dataclass(frozen=True)
class Bullet:
    """A sentence of a list, wrapped between words."""

    words: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Wrap the sentence without spaces at the ends of lines."""
        for line in wrap(
            self.words,
            options.max_width,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        ):
            yield Text(line)
