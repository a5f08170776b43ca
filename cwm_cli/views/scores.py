"""Scores on the terminal: a row for each part of a transition, and a verdict in words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from cwm_cli.evaluation import Score
from cwm_cli.runs.report import Grid
from cwm_cli.text import share, share_with_error
from cwm_cli.views.tables import GridTable

MAX_GAPS = 3
"""Sentences on missing data after a command; `cwm runs show` prints them all."""


def part_table(scores: Mapping[str, Score | None], baseline: Score | None = None) -> GridTable:
    """Compare how many transitions are right, with a row for each part of a transition.

    Args:
        scores: Score by title of the column. Columns without a score are left out.
        baseline: Score of a prediction without a model, which gets a column of its own.
    """
    columns = {title: score for title, score in scores.items() if score is not None}
    if any(score.skill is not None for score in columns.values()):  # random outcomes rarely match
        skills = [share_with_error(each.skill, each.skill_stderr) for each in columns.values()]
        grid = Grid("", ["", *columns, "baseline"], [["skill", *skills, "0"]])
        return GridTable(grid, compact=True)
    if baseline is not None:
        columns["baseline"] = baseline
    rows: dict[str, Callable[[Score], float | None]] = {
        "paper score": lambda score: score.paper,
        "observation": lambda score: score.observation,
        "reward": lambda score: score.reward,
        "terminated": lambda score: score.terminated,
        "valid actions": lambda score: score.valid_actions,
        "all parts": lambda score: score.exact,
    }
    cells = [
        [name, *(share(read(score)) for score in columns.values())]
        for name, read in rows.items()
        if any(read(score) is not None for score in columns.values())
    ]
    return GridTable(Grid("", ["", *columns], cells), compact=True)


def labelled(lines: Mapping[str, str]) -> Iterator[Text]:
    """Yield a line for each label, with all values in one column; paths are never broken."""
    width = max(map(len, lines), default=0) + 2
    for label, words in lines.items():
        line = Text(f"{label + ':':<{width}}", no_wrap=True, overflow="ignore")
        yield line.append(words)


def gap_parts(gaps: Sequence[str], most: int = MAX_GAPS) -> Iterator[RenderableType]:
    """Yield what the data do not cover, at most `most` sentences."""
    if gaps:
        yield Text("Not covered by the data:")
        yield from (Bullet(gap) for gap in gaps[:most])


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
