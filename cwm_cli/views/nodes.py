"""A node of a search on the terminal: measurements, prompt, completion and program."""

from collections.abc import Iterator

from rich.text import Text

from cwm_cli.runs.nodes import NodeDetails
from cwm_cli.search.contracts import ROOT
from cwm_cli.text import clean
from cwm_cli.views.terminal import place_words

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
    yield from _prompt(found)
    yield Text("\ncompletion", "bold")
    yield _foreign(found.completion or "none")
    yield Text("\nprogram", "bold")
    yield _foreign(node.program or "none")
    yield from _difference(found)


def _prompt(found: NodeDetails) -> Iterator[Text]:
    """Yield the prompt, message by message."""
    if found.prompt is None:
        yield Text("\nprompt", "bold")
        yield Text(found.prompt_words)
    for message in found.prompt or ():
        yield Text(f"\nprompt, {message.role}", "bold")
        yield _foreign(message.content)


def _difference(found: NodeDetails) -> Iterator[Text]:
    """Yield the difference to the parent's program, if there is a parent."""
    lines = found.difference()
    if lines is None:
        return
    yield Text(f"\ndifference to #{found.node.parent}", "bold")
    if not lines:
        yield Text("none")
    for line in lines[2:]:
        yield Text(clean(line, newlines=True), MARKS.get(line[:1], ""))


def _foreign(text: str) -> Text:
    """Return foreign text without control characters."""
    return Text(clean(text, newlines=True).rstrip())
