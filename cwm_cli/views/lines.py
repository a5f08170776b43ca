"""One line to the user, the observer that says nothing else, and what breaks a long silence."""

import threading
from collections.abc import Callable

import typer

from cwm_cli.runs.observer import Observer


def complain(text: str, kind: str = "Error") -> None:
    """Print one line to stderr; foreign text cannot do more than be read."""
    from cwm_cli.text import clean

    colour = typer.colors.RED if kind == "Error" else typer.colors.YELLOW
    typer.secho(f"{kind}: " if kind else "", err=True, nl=False, fg=colour, bold=True)
    typer.echo(clean(text).strip(), err=True)


QUIET_SECONDS = 30.0
"""Where lines are printed nobody waits longer than this without hearing what is being done."""


class Pulse:
    """Says what is being done whenever nothing was heard for a while, in a thread of its own."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._woken = threading.Event()
        self._over = False
        threading.Thread(target=self._run, daemon=True).start()

    def heard(self) -> None:
        """Begin to wait anew: something was said."""
        self._woken.set()

    def stop(self) -> None:
        """Say no more."""
        self._over = True
        self._woken.set()

    def _run(self) -> None:
        """Wait and speak in turn."""
        while not self._over:
            if not self._woken.wait(QUIET_SECONDS) and not self._over:
                self._say()
            self._woken.clear()


class Lines(Observer):
    """Prints each note to stderr, and shows nothing else."""

    def note(self, words: str, kind: str = "Note") -> None:
        """Print the line."""
        complain(words, kind)
