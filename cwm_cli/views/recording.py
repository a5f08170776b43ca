"""A bar for the episodes that are recorded."""

import sys
from contextlib import ExitStack, redirect_stdout

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TaskID

from cwm_cli.agents.collecting import Recording
from cwm_cli.views.lines import Lines


class RecordingBar(Lines):
    """Shows on stderr how many episodes are recorded, once there are any.

    What environments print meanwhile goes to stderr, too: it is no result.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def begins(self, work: object) -> None:
        """Prepare the bar of a recording; other work has none here."""
        if not isinstance(work, Recording):
            return
        console = Console(stderr=True)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task(f"recording {escape(work.env)}", total=work.episodes)
        self._stack.callback(self._bar.stop)
        self._stack.enter_context(redirect_stdout(sys.stderr))

    def advanced(self, event: object) -> None:
        """Move the bar to a number of episodes."""
        if self._bar is not None and isinstance(event, int | float):
            self._bar.start()
            self._bar.update(self._task, completed=event)

    def ends(self) -> None:
        """Remove the bar."""
        self._stack.close()
        self._bar = None
