"""The output of `cwm synthesize`: a live view, and the result at the end.

Without a terminal, the live view is a line per program.
"""

import math
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from rich.console import Console, RenderableType
from rich.text import Text

from cwm_cli.commands.plays import LearnFrom, mismatches_of
from cwm_cli.commands.synthesize import SearchJob, SynthesisResult
from cwm_cli.evaluation.verdicts import verdict
from cwm_cli.registry import find
from cwm_cli.runs.progress import models_grid
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.storage import named
from cwm_cli.search.contracts import ROOT, START, Node
from cwm_cli.search.loop import Pending, Search
from cwm_cli.text import cached_words, money, share, tokens
from cwm_cli.views.curves import Axis, Chart, Series
from cwm_cli.views.datasets import RecordingBar
from cwm_cli.views.lines import PROGRESS_SECONDS, is_verbose, progress_console
from cwm_cli.views.progress import PrintedProgress, can_draw
from cwm_cli.views.tables import (
    GridTable,
    component_parts,
    gap_parts,
    labelled,
    part_table,
    score_table,
    titled,
)
from cwm_cli.views.terminal import Pane, bar, duration, first_line, printable
from cwm_cli.views.tree import Row, SearchTree, draw, lay_out, totals


class SearchView(RecordingBar):
    """Progress of `synthesize`: notes, the recording of data, and the search."""

    def __init__(self) -> None:
        super().__init__()
        self._search_view: NodeLines | Screen | None = None

    def begins(self, work: object) -> None:
        """Open the live view of a search, or the bar of a recording."""
        super().begins(work)
        if isinstance(work, SearchJob):
            budget, console = work.choices.budget, progress_console()
            began = time.monotonic() - work.run.elapsed
            view = live(work.search, budget=budget, title=work.title, console=console, began=began)
            self._search_view = self._stack.enter_context(view)

    def advanced(self, event: object) -> None:
        """Add a new node to the live view."""
        super().advanced(event)
        if self._search_view is not None and isinstance(event, Node):
            self._search_view.learned(event)


def in_flight(pending: Mapping[int, Pending]) -> str:
    """Return the number of completions in flight, by model, and of running refiners, as words."""
    asked = [flight for flight in pending.values() if flight.asked]
    models = Counter(flight.model for flight in asked if flight.model)
    named = ", ".join(f"{printable(model, 40)} {count}" for model, count in models.items())
    words = [f"{len(asked)} in flight{f' ({named})' if named else ''}"] if asked else []
    if refiners := sum(flight.move.action != START for flight in pending.values()) - len(asked):
        words.append(f"{refiners} refining")
    return ", ".join(words)


def _grown(tree: SearchTree, node: Node, search: Search) -> SearchTree:
    """Add a node to the tree; rebuild the tree if a switch of the contract changed all verdicts."""
    if search.switches != tree.switches:
        return SearchTree(search.nodes, search.switches)
    tree.add(node)
    return tree


@contextmanager
def live(
    search: Search, *, budget: int, title: str, console: Console, began: float | None = None
) -> Iterator["NodeLines | Screen"]:
    """Follow a search: a live picture on a terminal, plain lines in a file or pipe.

    The last picture stays on the screen, also after an error or Ctrl-C. The thread of the search
    calls `learned` with each node that it has just learned.

    Args:
        search: The search to follow.
        budget: Completions that the search may use.
        title: First line of the picture.
        console: Console to draw on.
        began: Start of the clock, in the time of `time.monotonic`; now by default.
    """
    if not can_draw(console):
        lines = NodeLines(search, budget=budget, console=console, began=began)
        lines.begins(search)
        try:
            yield lines
        finally:
            lines.ends()
        return
    screen = Screen(search, budget=budget, title=title, console=console, began=began)
    with screen.pane.shown():
        try:
            yield screen
        finally:
            screen.over = True


class NodeLines(PrintedProgress):
    """Prints a line per node: for files, pipes and terminals that cannot move the cursor.

    Without a language model nodes are fast and many. Only a better one then has a line, or the
    last one, or one after `PROGRESS_SECONDS`; with --verbose all have one.
    """

    def __init__(
        self, search: Search, *, budget: int, console: Console, began: float | None = None
    ) -> None:
        super().__init__(console)
        self.began = self.began if began is None else began
        self._search = search
        self._tree = SearchTree(search.nodes, search.switches)
        self._budget = budget
        self._printed = -math.inf

    def print_status(self) -> None:
        """Print the work in progress."""
        pending = self._search.pending.copy()
        number = self._number(self._tree.completions)
        doing = _doing(self._search, pending)
        self.print_line(f"[{number}] {in_flight(pending)}".rstrip(), *doing, self.elapsed)

    def _number(self, done: int) -> str:
        """Write how many completions are done, padded to the width of the budget."""
        return f"{done:>{len(str(self._budget))}}/{self._budget}"

    def learned(self, node: Node) -> None:
        """Print the score of a node. A refiner move has no counter: it costs no completion."""
        if self._pulse:
            self._pulse.heard()
        self._tree = _grown(self._tree, node, self._search)
        number = f"[{self._number(self._tree.completions)}]"
        counter = number if node.asked else " " * len(number)
        origin = "" if node.parent == ROOT else f" of #{node.parent}"
        best = self._tree.best or node
        if not (is_verbose() or self._search.backend.is_language_model or node is best):
            recent = time.monotonic() - self._printed < PROGRESS_SECONDS
            if recent and self._tree.completions < self._budget:
                return
        self._printed = time.monotonic()
        scores = f"{share(node.verdict.score)} (best {share(best.verdict.score)})"
        words = f"{counter} {node.action}{origin}: {scores}"
        if saved := node.verdict.saved_bits:
            words += f", {saved:,} bits shorter"
        parts = [words, self.elapsed]
        if node.verdict.failure is not None and node.verdict.is_bug:
            parts.append(first_line(node.verdict.failure))
        elif node.verdict.open_gap:
            parts.append(f"not solved: {node.verdict.open_gap}")
        self.print_line(*parts)


class Screen:
    """Draws the tree above a progress bar; on a tall terminal also a score curve and a diagnosis.

    rich draws in one thread while the search adds nodes in another. A lock keeps the tree
    consistent. Only the search's thread calls the strategy.
    """

    def __init__(
        self,
        search: Search,
        *,
        budget: int,
        title: str,
        console: Console,
        began: float | None = None,
    ) -> None:
        self.over = False
        self._search = search
        self._budget = budget
        self._title = printable(title)
        self.pane = Pane(self._lines, console)
        self._began = time.monotonic() if began is None else began
        self._lock = threading.Lock()
        self._tree = SearchTree(search.nodes, search.switches)
        self._states = {node.id: search.strategy.state(node.id) for node in search.nodes}
        self._rows: list[Row] = []
        self._details: list[Text] = []
        self._drawn_state: object = None

    def learned(self, node: Node) -> None:
        """Add a node; update the states of the node, its ancestors and the visible nodes."""
        with self._lock:
            self._tree = _grown(self._tree, node, self._search)
            visible = [row.content.id for row in self._rows if isinstance(row.content, Node)]
        nodes = {node.id, *islice(self._tree.ancestors(node.id), 100), *visible}
        # Outside the lock: a strategy that prints waits for the drawing thread.
        states = {number: self._search.strategy.state(number) for number in nodes}
        with self._lock:
            self._states.update(states)

    def _lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines of the picture."""
        # A copy, because the search's thread changes it.
        pending = {} if self.over else self._search.pending.copy()
        with self._lock:
            # A low terminal has no room for the score curve and the diagnosis below the tree.
            self._lay_out(pending, width, height - 3, with_details=height >= 30 and not self.over)
            tree_lines = draw(self._rows, self._tree, self._states)
            done = self._tree.completions
            words = [f"{done}/{self._budget} completions", duration(time.monotonic() - self._began)]
            words += filter(None, [in_flight(pending)])
            progress = bar(done, self._budget, " " + " · ".join(words), width)
            facts = Text(" · ".join([*totals(self._tree), *_doing(self._search, pending)]))
        return [Text(self._title, "bold"), *tree_lines, *self._details, progress, facts]

    def _lay_out(
        self, pending: Mapping[int, Pending], width: int, room: int, *, with_details: bool
    ) -> None:
        """Lay out the tree and the details, unless nothing has changed since the last time."""
        state = len(self._tree), self._tree.switches, tuple(pending), width, room, with_details
        if state == self._drawn_state:
            return
        self._drawn_state, self._details = state, []
        moves = [flight.move for flight in pending.values()]
        best = self._tree.best
        # 8 lines for the score curve, at least 6 for the diagnosis, and their titles.
        plot_lines = 8
        reserved = plot_lines + 6 + 2 if with_details and best else 0
        self._rows = lay_out(self._tree, moves, width=width, height=room - reserved)
        if reserved:
            # At most 100 columns, so that drawing four times a second stays cheap.
            self._details = [Text("Best score so far", "bold")]
            self._details += score_curve(self._tree).dots(min(width, 100), plot_lines)
            diagnosis = _diagnosis(self._tree)
            self._details += diagnosis[: room - len(self._rows) - len(self._details)]


def _doing(search: Search, pending: Mapping[int, Pending]) -> list[str]:
    """Return the oldest message about work in flight, if there is one."""
    return [printable(words) for step in pending if (words := search.doing.get(step))][:1]


def score_curve(tree: SearchTree) -> Chart:
    """Chart the best score over completions, as steps."""
    xs, ys = [0], [0.0]
    for completions, score in [*tree.curve, (tree.completions, tree.curve[-1][1])]:
        xs += [completions, completions]
        ys += [ys[-1], score]
    line = Series("best so far", xs, ys)
    return Chart("", "completions", "", [line], Axis(0, max(1, tree.completions)), Axis(0, 1))


def _diagnosis(tree: SearchTree) -> list[Text]:
    """Return the feedback about the best program, line by line."""
    assert tree.best is not None
    verdict = tree.best.verdict
    if verdict.failure is not None:
        words = verdict.failure.message
    elif verdict.open_gap:
        words = f"Not solved: {verdict.open_gap}"
    else:
        words = "Every training transition is predicted exactly."
    lines = (
        " " * min(8, len(line) - len(line.lstrip())) + printable(line)
        for line in words[:20_000].splitlines()
        if line.strip()
    )
    title = Text(f"Diagnosis of #{tree.best.id}, the best program so far", "bold")
    return [title, *(Text(line, "dim") for line in islice(lines, 16))]


def synthesis_report(result: SynthesisResult, budget: int) -> Iterator[RenderableType]:
    """Yield the scores, the verdict, the gaps of the data and the next command.

    `budget` is the number of completions that the search was given.
    """
    scores = {"train": result.scores.train, "held-out": result.scores.test}
    if is_verbose() and result.scores.train is not None:
        yield score_table(titled(result.scores._asdict()))
    elif result.scores.train is not None:
        yield part_table(scores, result.baseline)
    yield from component_parts(result.scores.train, result.scores.test, result.text)
    if len(result.models) > 1:
        yield GridTable(models_grid(result.models))
    style = "bold green" if result.solved and not result.untested else "bold yellow"
    words = verdict(
        result.scores.train,
        result.scores.test,
        solved=result.solved,
        finished=result.finished,
        settled=result.settled,
        unverified=result.untested if result.solved else result.unverified,
    )
    title, separator, rest = words.partition(": ")
    yield Text(title, style).append(f"{separator}{rest}.", "default not bold")
    yield from gap_parts(result.gaps)
    yield from labelled(_facts(result, budget))


def _facts(result: SynthesisResult, budget: int) -> dict[str, str]:
    """Return the lines below the verdict by label: cost, program, next command."""
    config = SearchRun.load(result.run).config
    backend = find("backend", config.backend)
    lines: dict[str, str] = {}
    if backend.is_language_model:
        lines["Cost"] = _cost_words(result)
    if result.body:
        lines["Body"] = result.body
    if result.program:
        lines["Program"] = named(result.program)
    if result.size and (before := result.original_size):
        lines["Simplified"] = (
            f"{before.lines} to {result.size.lines} lines, "
            f"{before.bits:,} to {result.size.bits:,} bits of description length"
        )
    score = result.scores.test or result.scores.train
    if score is None:
        lines["Run"] = named(result.run)
        return lines
    gain = score.normalised if score.skill is None else score.skill  # above the baseline
    gain = gain if score.explained is None else score.explained
    useful = (gain is None and score.exact > 0) or score.value > score.least
    mismatches = mismatches_of(result.run)
    if not useful and not result.given_up and not result.finished:
        run = shlex.quote(named(result.run))
        more = result.completions + budget
        lines["Next"] = f"repeat with --run {run} --budget {more} (no better than the baseline)"
    elif not useful:
        lines["Next"] = "no better than the baseline: record more data, or use another --model"
    elif not result.has_simulator:
        lines["Next"] = shlex.join(["cwm", "runs", "export", named(result.run)])
    elif (
        (score.refuted or mismatches.mistakes or mismatches.unanswered)
        and not result.body
        and result.contract != "game"
    ):
        # `cwm learn` continues no program that simulates a body, and plays no game of two.
        lines["Next"] = shlex.join(LearnFrom(config.env, config.env_args, result.run).command)
    else:
        lines["Next"] = shlex.join(["cwm", "plan", named(result.run)])
    # Below this normalised score the summary suggests a language model.
    poor_score = 0.9
    poor = (score.accuracy if gain is None else gain) < poor_score
    if poor and backend.from_data and not result.solved:
        lines["Hint"] = "a language model may find more: --model PROVIDER/NAME"
    return lines


def _cost_words(result: SynthesisResult) -> str:
    """Return completions, tokens, cost and time; a start program may have cost nothing."""
    if result.unasked and not result.completions:
        if result.unasked == START:
            return "no completion: the start program is exact (ask anyway with --start none)"
        return f"no completion: solved by {result.unasked}, {result.seconds:.1f} s"
    plural = "" if result.completions == 1 else "s"
    reused = f" ({result.reused} from the cache)" if result.reused else ""
    read = cached_words(result.cached_tokens, result.reasoning_tokens)
    return (
        f"{result.completions} completion{plural}{reused}, {tokens(result.tokens)} tokens{read}, "
        f"{money(result.cost)}, {result.seconds:.1f} s"
    )
