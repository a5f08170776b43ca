"""Runs as text: the list of `cwm runs list`, and the parts of `cwm runs show` and `diff`."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cwm_cli.runs.listing import RunDifferences, UnreadableRun
from cwm_cli.runs.progress import models_grid
from cwm_cli.runs.report import Grid, RunSummary
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import WRITER, Run
from cwm_cli.views.tables import GridTable, fits
from cwm_cli.views.terminal import printable
from cwm_cli.views.tree import finished_tree


def run_list_parts(
    found: Sequence[RunSummary | UnreadableRun], width: int
) -> Iterator[RenderableType]:
    """Yield a table of runs, or two lines per run if the table does not fit, then the damages."""
    rows = [
        (
            run.run,
            run.kind,
            " ".join(filter(None, (run.environment, run.strategy, run.answers))),
            run.done,
            run.result,
        )
        for run in found
        if not isinstance(run, UnreadableRun)
    ]
    grid = Grid("", ("run", "kind", "about", "done", "result"), rows, words=5)
    if rows and fits(grid, width):
        yield GridTable(grid)
    else:  # the folder in one piece, to copy it
        for name, *rest in rows:
            yield Text(printable(name), "bold")
            yield Text("  " + "  ".join(printable(words) for words in rest if words))
    for run in found:
        if damage := run.reason if isinstance(run, UnreadableRun) else run.damage:
            yield Text(printable(damage), "red")


def run_facts(run: Run[Any, Any], summary: RunSummary) -> dict[str, Any]:
    """Return the settings of a run, its progress and its result, by label."""
    facts = {"run": summary.run, "kind": summary.kind}
    facts |= run.config.model_dump(exclude={"options"})
    facts |= {"done": summary.done, "result": summary.result, "created": summary.created}
    if run.header.command:
        facts["command"] = shlex.join(["cwm", *run.header.command])
    if isinstance(run, SearchRun):
        if run.header.finding:
            facts["model type"] = run.header.finding.words()
        facts["contract changed to"] = "; ".join(run.contract_changes())
    writer = run.header.versions.get(WRITER, "")
    if run.header.code:
        writer += f" ({run.header.code})"
    facts |= {"protection": run.header.openings, WRITER: writer}
    empty: tuple[Any, ...] = ("", {}, [], (), None)
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in facts.items()
        if value not in empty
    }


def run_parts(run: Run[Any, Any]) -> Iterator[RenderableType]:
    """Yield the tree of a search with the gaps of its data, and the tables of a run."""
    if isinstance(run, SearchRun):
        yield finished_tree(list(run.nodes()))
        if len(uses := run.models()) > 1:
            yield GridTable(models_grid(uses))
        if gaps := run.gaps():
            yield Text("Not covered by the data:")
            yield from (Text(f"  {gap}") for gap in gaps)
    yield from map(GridTable, run.grids())


def difference_parts(found: RunDifferences) -> Iterator[RenderableType]:
    """Yield tables of the settings and results that differ between two runs."""

    def written(value: object) -> str:
        return f"{value:.9g}" if isinstance(value, float) else str(value)

    for title, changes in {"settings": found.settings, "results": found.results}.items():
        if changes:
            rows = [[each.name, written(each.before), written(each.now)] for each in changes]
            yield GridTable(Grid(title, ["", *found.runs], rows, words=3))
    if not found.settings and not found.results:
        yield Text("The runs do not differ.")
