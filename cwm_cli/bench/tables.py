"""The tables of a benchmark in words, for terminals and files alike."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cwm_cli.agents.contests import Mean
from cwm_cli.bench.groups import Estimate, Group
from cwm_cli.bench.published import QUOTED, Quoted
from cwm_cli.bench.rows import Row

UNKNOWN = "\N{EN DASH}"
ERROR = "\N{PLUS-MINUS SIGN}"

MEASURES = {
    "test_accuracy": "held-out accuracy",
    "test_normalised": "held-out normalised",
    "test_exact": "held-out exact rows",
    "test_paper": "held-out paper's score",
    "test_floor": "held-out floor",
    "test_ceiling": "held-out ceiling",
    "train_accuracy": "train accuracy",
    "train_normalised": "train normalised",
    "train_exact": "train exact rows",
    "train_paper": "train paper's score",
    "train_floor": "train floor",
    "train_ceiling": "train ceiling",
    "R": "R",
}
OPTIONAL = ("test_ceiling", "train_ceiling", "R")
"""Measures that were perhaps not asked for."""

COUNTS: dict[str, Callable[[Group], str]] = {
    "environments": lambda group: str(len(group.environments)),
    "seeds": lambda group: group.seeds,
    "jobs finished": lambda group: f"{group.finished} of {group.jobs}",
    "jobs failed": lambda group: str(group.failed),
    "jobs solved": lambda group: str(group.solved),
    "completions": lambda group: f"{group.completions:,}",
    "tokens": lambda group: UNKNOWN if group.tokens is None else f"{group.tokens:,}",
    "cost": lambda group: money(group.cost),
    "seconds": lambda group: f"{group.seconds:,.1f}",
}


Columns = dict[str, Callable[[Row], str]]

SIDES = ("return", "random", "oracle", "R")


class Grid(NamedTuple):
    """A table: its title, the heads of its columns, its cells, and how many columns are words."""

    title: str
    heads: list[str]
    cells: list[list[str]]
    words: int = 1

    def markdown(self) -> str:
        """Write the table as Markdown."""
        marks = ["---" if place < self.words else "---:" for place in range(len(self.heads))]
        lines = [self.heads, marks, *self.cells]
        return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def group_grids(groups: Sequence[Group]) -> Iterator[Grid]:
    """Yield a table for each kind of environments, and what was published about it."""
    for kind in dict.fromkeys(group.group for group in groups):
        some = [group for group in groups if group.group == kind]
        several = len({group.model for group in some}) > 1
        heads = [f"{g.strategy} {g.model}" if several else g.strategy for g in some]
        cells = [
            [words, *(_estimate(group.means[name], group) for group in some)]
            for name, words in MEASURES.items()
            if name not in OPTIONAL or any(group.means[name] for group in some)
        ]
        cells += [[words, *map(write, some)] for words, write in COUNTS.items()]
        yield Grid(f"{kind} environments", ["", *heads], cells)
        if quoted := [figures for figures in QUOTED if figures.group == kind]:
            yield _quoted(kind, quoted)


def job_grids(rows: Sequence[Row]) -> Iterator[Grid]:
    """Yield a table with the scores of every job, and one with what was played, if anything."""
    scores: Columns = {
        "completions": progress_words,
        "train": lambda row: share(row.train.accuracy if row.train else None),
        "held-out": lambda row: share(row.test.accuracy if row.test else None),
        "floor": lambda row: share(row.test.floor if row.test else None),
        "exact": lambda row: share(row.test.exact if row.test else None),
        "paper": lambda row: share(row.train.paper if row.train else None),
    }
    if any(row.ceiling for row in rows):
        scores["ceiling"] = _held_out_ceiling
    scores["seconds"] = lambda row: UNKNOWN if row.seconds is None else f"{row.seconds:.0f}"
    if any(row.original for row in rows):
        scores["original"] = lambda row: share(row.original.accuracy if row.original else None)
    yield _jobs("jobs", rows, scores)
    if played := [row for row in rows if row.play]:
        yield _jobs("episodes played", played, {name: _played(name) for name in SIDES})


def _jobs(title: str, rows: Sequence[Row], columns: Columns) -> Grid:
    """Return a table with a line for every job; what all have in common has no column."""
    names = ["environment"]
    names += [n for n in ("strategy", "model", "seed") if len({getattr(r, n) for r in rows}) > 1]
    columns = {name: _attribute(name) for name in names} | columns
    cells = [[write(row) for write in columns.values()] for row in rows]
    return Grid(title, list(columns), cells, len(names))


def progress_words(row: Row) -> str:
    """Say in what state a job is."""
    if row.state == "failed":
        return "failed"
    if row.state == "unfinished":
        return f"{row.completions} of {row.budget} yet"
    return f"{row.completions} solved" if row.solved else str(row.completions)


def share(value: float | None) -> str:
    """Write a share of one."""
    return UNKNOWN if value is None else f"{value:.3f}"


def money(cost: float | None) -> str:
    """Write a cost."""
    return "unknown" if cost is None else f"${cost:.4f}"


def _quoted(kind: str, quoted: Sequence[Quoted]) -> Grid:
    """Return a table of what was published."""
    heads = ["quoted", "completions", "paper's accuracy", "R"]
    cells = [
        [f"{f.strategy}, {f.model}", str(f.completions), f"{f.accuracy:.2f}", f"{f.R:.2f}"]
        for f in quoted
    ]
    title = "RTFM" if kind == "text" else kind
    return Grid(f"published for {title}, quoted from the paper", heads, cells)


def _estimate(estimate: Estimate | None, group: Group) -> str:
    """Write a mean with its error, and over how many jobs if some are left out."""
    if estimate is None:
        return UNKNOWN
    left_out = "" if estimate.values == group.finished else f" ({estimate.values} jobs)"
    return _with_error(estimate.mean, estimate.stderr) + left_out


def _with_error(value: float, stderr: float | None) -> str:
    """Write a share with its error."""
    return share(value) + ("" if stderr is None else f" {ERROR} {stderr:.3f}")


def _attribute(name: str) -> Callable[[Row], str]:
    """Return what writes an attribute of a row."""
    return lambda row: str(getattr(row, name))


def _held_out_ceiling(row: Row) -> str:
    """Write the held-out accuracy of the true environment."""
    score = (row.ceiling or {}).get("test")
    return share(score.accuracy if score else None)


def _played(name: str) -> Callable[[Row], str]:
    """Return what writes a mean of episodes."""

    def write(row: Row) -> str:
        play = row.play
        if play is None:
            return UNKNOWN
        if name == "R":
            return UNKNOWN if play.R is None else _with_error(play.R, play.R_stderr)
        found = {"return": play.returns, "random": play.random, "oracle": play.oracle}
        return _mean(found[name])

    return write


def _mean(mean: Mean | None) -> str:
    """Write a mean of episodes with its error."""
    if mean is None:
        return UNKNOWN
    error = "" if mean.stderr is None else f" {ERROR} {mean.stderr:.3g}"
    return f"{mean.mean:.4g}{error}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
