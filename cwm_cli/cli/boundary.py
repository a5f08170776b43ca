"""The boundary between commands and the shell: errors of users become one line and an exit code."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cwm_cli.errors import CwmError, TracedError
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except MemoryError as error:
        complain("out of memory: close other programs, or use less data")
        raise typer.Exit(1) from error
    except Exception as error:
        from cwm_cli.commands.plugin_failures import plugin_failure
        from cwm_cli.envs.failures import environment_failure

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
    errno.ENOSPC: "make room, then the same command continues",
    errno.EDQUOT: "make room, then the same command continues",
    errno.EFBIG: "raise the limit on the size of files, then the same command continues",
    errno.EROFS: "choose another file or folder",
    errno.EACCES: "choose another file or folder",
    errno.EPERM: "choose another file or folder",
    errno.ENOTDIR: "choose another file or folder",
    errno.EISDIR: "choose another file or folder",
    errno.ELOOP: "choose another file or folder",
    errno.EEXIST: "choose another file or folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "close other programs",
}
"""The remedy for each error of the operating system that a user can fix."""
