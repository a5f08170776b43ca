"""The one place where errors become messages and exit codes."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import typer

from cwm_cli.errors import CwmError

INTERRUPTED = 130


@contextmanager
def boundary() -> Iterator[None]:
    """End a user's mistake in one line and exit code 1, an interruption in 130."""
    try:
        yield
    except CwmError as error:
        complain(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interruption:
        complain(str(interruption) or "interrupted", kind="")
        raise typer.Exit(INTERRUPTED) from interruption
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Run a command inside the boundary."""

    @wraps(command)
    def inside(*args: Any, **kwargs: Any) -> None:
        with boundary():
            command(*args, **kwargs)

    return inside


def complain(text: str, kind: str = "Error") -> None:
    """Print one line to stderr; foreign text cannot do more than be read."""
    from cwm_cli.text import clean

    colour = typer.colors.RED if kind == "Error" else typer.colors.YELLOW
    typer.secho(f"{kind}: " if kind else "", err=True, nl=False, fg=colour, bold=True)
    typer.echo(clean(text).strip(), err=True)
