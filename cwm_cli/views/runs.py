"""Runs and their nodes as text, for `cwm runs list`, `show` and `diff`."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cwm_cli.runs.listing import RunDifferences, UnreadableRun
from cwm_cli.runs.nodes import NodeDetails
from cwm_cli.runs.progress import models_grid
from cwm_cli.runs.report import Grid, RunSummary
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import WRITER, Run
from cwm_cli.search.contracts import ROOT
from cwm_cli.text import clean
from cwm_cli.views.tables import GridTable, component_parts, fits
from cwm_cli.views.terminal import place_words, printable
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
        if run.has_program:
            scores = run.scores()
            yield from component_parts(scores.get("train"), scores.get("test"), run.best_program())
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


MARKS = {"+": "green", "-": "red", "@": "cyan"}
"""Colours of the lines of a difference, by their first character."""


def node_parts(found: NodeDetails) -> Iterator[Text]:
    """Yield the lines about a node, without control characters of foreign text."""
    node = found.node
    origin = "written from scratch" if node.parent == ROOT else f"of #{node.parent}"
    best = ", the best" if found.is_best else ""
    yield Text(f"#{node.id} {clean(node.action)} {origin}: {found.state}{best}", "bold")
    figures = found.figures()
    width = max(map(len, figures), default=0)
    for name, value in figures.items():
        words = f"{value:.6g}" if isinstance(value, float) else str(value)
        yield Text(f"  {clean(name):<{width}}  {words}")
    if failure := node.verdict.failure:
        yield Text(f"\n{place_words(failure)}", "bold")
        yield _foreign(failure.message)
    if node.verdict.findings:
        yield Text("\nfindings", "bold")
        yield _foreign(node.verdict.findings)
    if found.prompt is None:
        yield Text("\nprompt", "bold")
        yield Text(found.prompt_words)
    for message in found.prompt or ():
        yield Text(f"\nprompt, {message.role}", "bold")
        yield _foreign(message.content)
    yield Text("\ncompletion", "bold")
    yield _foreign(found.completion or "none")
    yield Text("\nprogram", "bold")
    yield _foreign(node.program or "none")
    if (lines := found.difference()) is not None:
        yield Text(f"\ndifference to #{node.parent}", "bold")
        if not lines:
            yield Text("none")
        for line in lines[2:]:  # after the two lines that name the files
            yield Text(clean(line, newlines=True), MARKS.get(line[:1], ""))


def _foreign(text: str) -> Text:
    """Remove control characters, which could change the terminal."""
    return Text(clean(text, newlines=True).rstrip())
