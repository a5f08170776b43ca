"""Where output goes: one JSON object on stdout, or text for people; files, or why not."""

import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cwm_cli.errors import CwmError
from cwm_cli.text import clean

if TYPE_CHECKING:
    from rich.console import Console


def emit(facts: Mapping[str, Any], *, json: bool) -> None:
    """Print facts as JSON, or as a line each."""
    if json:
        typer.echo(jsonlib.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {clean(str(value))}")


def console(*, json: bool) -> "Console":
    """Return the console for people: stdout, or stderr when stdout is for JSON."""
    from rich.console import Console

    return Console(stderr=json)


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Say why a file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CwmError(f"cannot write {file} ({reason}): --out names another place") from error


@contextmanager
def recording(title: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show on stderr how many episodes are recorded, once there are any; prints go there, too."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, Progress

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(f"recording {escape(title)}", total=total)

    def recorded(episodes: float) -> None:
        bar.start()
        bar.update(task, completed=episodes)

    with redirect_stdout(sys.stderr):
        try:
            yield recorded
        finally:
            bar.stop()
