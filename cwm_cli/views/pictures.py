"""Draw a search as lines of text, as tall and as wide as there is room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from cwm_cli.search.contracts import Move, Node
from cwm_cli.views.folding import Fold, Row, fold
from cwm_cli.views.tree import SearchTree
from cwm_cli.views.words import best_words, first_line, printable, spent_words


def finished_tree(nodes: Sequence[Node]) -> "FinishedTree":
    """Draw the nodes of a run: folded to a terminal, in a file as tall as it gets."""
    return FinishedTree(SearchTree(nodes))


@dataclass(frozen=True)
class FinishedTree:
    """The picture of a search that is over."""

    tree: SearchTree

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the tree and, below it, what it came to."""
        room = options.size.height - 3 if console.is_terminal else len(self.tree)
        rows = lay_out(self.tree, (), width=options.max_width, height=room)
        programs = "1 program" if len(self.tree) == 1 else f"{len(self.tree)} programs"
        facts = Text(" · ".join([programs, *facts_of(self.tree)]))
        for line in [*draw(rows, self.tree, {}), facts]:
            yield from fitted(line, options.max_width).render(console, "\n")


def lay_out(tree: SearchTree, flights: Sequence[Move], *, width: int, height: int) -> list[Row]:
    """Fold a tree to so many lines, with guides over no more than half of a line."""
    levels = max(2, min(40, width // 4))
    return fold(tree, flights, rows=max(1, height), levels=levels)


def draw(rows: Sequence[Row], tree: SearchTree, states: Mapping[int, str]) -> list[Text]:
    """Put what is laid out into words."""
    return [_line(row, tree, states) for row in rows]


def fitted(line: Text, width: int) -> Text:
    """Cut a line to a width."""
    line.truncate(max(1, width), overflow="ellipsis")
    return line


def facts_of(tree: SearchTree) -> list[str]:
    """Name the best score and what was spent."""
    best = [best_words(tree.best.verdict)] if tree.best else []
    return best + spent_words(tree.tokens, tree.cost)


def _line(row: Row, tree: SearchTree, states: Mapping[int, str]) -> Text:
    """Put one row into words."""
    line = Text(end="").append(row.guides, "dim")
    content = row.content
    origin = f" of #{content.parent}" if row.adrift and not isinstance(content, Fold) else ""
    if isinstance(content, Fold):
        return line.append(f"… {content.hidden:,} more, best {content.best:.3f}", "dim")
    if isinstance(content, Move):
        return line.append(f"… {content.action}{origin}", "cyan")
    best = content is tree.best
    words = f"{'★ ' if best else ''}#{content.id} {content.action}{origin}"
    line.append(f"{words} {content.verdict.score:.3f}", _style(content, best=best))
    return _append_notes(line, content, states.get(content.id, ""))


def _append_notes(line: Text, node: Node, state: str) -> Text:
    """Add a node's standing and what is wrong with its program."""
    if state:
        line.append(f"  {printable(state, 30)}", "yellow")
    failure = node.verdict.failure
    if failure is not None and failure.is_bug:
        line.append(f"  {first_line(failure)}", "dim red")
    return line


def _style(node: Node, *, best: bool) -> str:
    """Choose the colour of a node."""
    if best:
        return "bold green"
    return "dim red" if node.verdict.is_bug else ""
