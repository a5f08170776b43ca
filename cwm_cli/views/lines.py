"""One line to the user, and the observer that says nothing else."""

import typer

from cwm_cli.runs.observer import Observer


def complain(text: str, kind: str = "Error") -> None:
    """Print one line to stderr; foreign text cannot do more than be read."""
    from cwm_cli.text import clean

    colour = typer.colors.RED if kind == "Error" else typer.colors.YELLOW
    typer.secho(f"{kind}: " if kind else "", err=True, nl=False, fg=colour, bold=True)
    typer.echo(clean(text).strip(), err=True)


class Lines(Observer):
    """Prints each note to stderr, and shows nothing else."""

    def note(self, words: str, kind: str = "Note") -> None:
        """Print the line."""
        complain(words, kind)
