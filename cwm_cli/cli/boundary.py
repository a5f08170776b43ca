"""The boundary between commands and the shell.

Errors of users become one line and an exit code. `cwm` alone suggests the next commands.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import typer

from cwm_cli.commands.installation import provider_keys
from cwm_cli.errors import CwmError, TracedError, environment_failure
from cwm_cli.runs.recent import RUNS, RecentRun, recent_runs
from cwm_cli.text import clean
from cwm_cli.views.lines import complain, is_verbose

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells define it."""


@contextmanager
def boundary() -> Iterator[None]:
    """End the process with one line and exit code 1 on a user's error, 130 on Ctrl-C."""
    try:
        yield
    except CwmError as error:
        _report(error)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interruption:
        complain(str(interruption) or "interrupted", kind="")
        raise typer.Exit(INTERRUPTED) from interruption
    except BrokenPipeError:
        # Python flushes stdout at exit, and would report the closed pipe again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except MemoryError as error:
        complain("out of memory: close other programs, or use less data")
        raise typer.Exit(1) from error
    except Exception as error:
        from cwm_cli.commands.plugin_failures import plugin_failure

        if failure := environment_failure(error):
            _report(failure)
        elif isinstance(error, OSError) and error.errno in REMEDIES:
            file = f" ({error.filename})" if error.filename else ""
            reason = (error.strerror or str(error)).lower()
            complain(f"{reason}{file}: {REMEDIES[error.errno]}")
        elif plugin := plugin_failure(error):
            _report(plugin)
        else:
            raise
        raise typer.Exit(1) from error


def _report(error: CwmError) -> None:
    """Print an error as one line, with --verbose below the traceback of its cause."""
    cause: BaseException | None = error
    while is_verbose() and cause is not None:
        if isinstance(cause, TracedError):
            typer.echo(clean(cause.traceback, newlines=True), err=True, nl=False)
            break
        cause = cause.__cause__
    complain(str(error))


REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, then the same command continues"),
    **dict.fromkeys(
        (
            *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
            *(errno.ELOOP, errno.EEXIST),
        ),
        "choose another file or folder",
    ),
    **dict.fromkeys((errno.ENFILE, errno.ENOMEM), "close other programs"),
    errno.EFBIG: "raise the limit on the size of files, then the same command continues",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}
"""The remedy for each error of the operating system that a user can fix."""


PLAYABLE = ("search", "learn", "train")
"""Kinds of run that `cwm plan` accepts."""


def next_steps() -> Iterator[str]:
    """Yield lines that suggest commands, from the newest runs and the variables that are set."""
    runs = list(islice(recent_runs(RUNS), 5))  # fast even in a folder with thousands of runs
    if not runs:
        yield _line("start", "cwm synthesize --env CartPole-v1", "needs no language model")
    if not os.environ.get("CWM_MODEL") and not provider_keys():
        yield _line("models", "export OPENAI_API_KEY=KEY", "then add --model openai/gpt-5")
    for run in [run for run in runs if run.is_locked][:1]:
        yield _line("running", _command("runs", "show", run.folder), _about(run))
    for run in [run for run in runs if not run.is_finished and not run.is_locked][:1]:
        command = run.command or _command("runs", "show", run.folder)
        yield _line("continue", command, f"{run.folder} is unfinished")
    for run in [run for run in runs if run.is_finished][:1]:
        if run.kind in PLAYABLE and run.has_simulator:
            yield _line("plan", _command("plan", run.folder), _about(run))
        yield _line("report", _command("runs", "report", run.folder, "--html"))
    yield ""


def _line(label: str, command: str, comment: str = "") -> str:
    label_width = 10
    return f"{label:<{label_width}}{clean(command)}" + (f"  ({clean(comment)})" if comment else "")


def _about(run: RecentRun) -> str:
    return f"{run.kind} on {run.environment}" if run.environment else run.kind


def _command(*words: str | Path) -> str:
    return shlex.join(["cwm", *map(str, words)])
