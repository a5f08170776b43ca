"""Follow the recording of episodes: a bar on a terminal, else a line per episode."""

import sys
import time
from contextlib import ExitStack, redirect_stdout

from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TaskID
from rich.text import Text

from cwm_cli.commands.recording import BeingRecorded, Key, Recorded, Recording
from cwm_cli.views.lines import PROGRESS_SECONDS, Lines, is_verbose, progress_console
from cwm_cli.views.terminal import duration, printable


class RecordingBar(Lines):
    """Progress of a recording on stderr.

    Output that environments print during a recording goes to stderr as well.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._work: Recording | None = None
        self._console = progress_console()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._underway: dict[Key, float] = {}
        self._began = self._last = 0.0

    def begins(self, work: object) -> None:
        """Start the bar of a recording; ignore other work."""
        if not isinstance(work, Recording):
            return
        self._work, self._underway = work, {}
        self._began = self._last = time.monotonic()
        title = f"recording {printable(work.spec.id)}"
        if self._console.is_interactive:
            columns = (*Progress.get_default_columns(), MofNCompleteColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(escape(title), total=work.episodes)
            self._bar.start()
            self._stack.callback(self._bar.stop)
        else:
            self._say(f"{title}: {work.episodes - work.done} of {work.episodes} episodes")
        self._stack.enter_context(redirect_stdout(sys.stderr))

    def advanced(self, event: object) -> None:
        """Update the bar."""
        if self._work is None:
            return
        if isinstance(event, BeingRecorded):
            self._underway[event.key] = event.share
        elif isinstance(event, Recorded):
            self._underway.pop(event.key, None)
        done = self._work.done
        if self._bar is not None:
            completed = done + sum(self._underway.values())
            self._bar.update(self._task, completed=completed, total=self._work.episodes)
            return
        now = time.monotonic()
        recent = now - self._last < max(PROGRESS_SECONDS, (now - self._began) / 5)
        if isinstance(event, Recorded) and is_verbose():
            returned = sum(row.reward for row in event.rows)
            words = f"return {returned:.5g}  {len(event.rows):,} steps  policy {event.policy}"
        elif isinstance(event, Recorded) and (not recent or done == self._work.episodes):
            words = "episodes recorded"
        elif isinstance(event, BeingRecorded) and not recent:
            split, place = event.key
            words = f"{('train', 'test')[split]} episode {place + 1}: {event.share:.0%}"
        else:
            return
        self._say(f"[{done}/{self._work.episodes}] {words}  {self._time()}")

    def ends(self) -> None:
        """Stop the bar."""
        self._stack.close()
        self._bar = self._work = None

    def _time(self) -> str:
        """Return the elapsed time."""
        return duration(time.monotonic() - self._began)

    def _say(self, words: str) -> None:
        self._last = time.monotonic()
        self._console.print(Text(words), soft_wrap=True)
