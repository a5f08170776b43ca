"""Errors that a user can act on; the command line prints them without a traceback.

Exceptions in the code of environments are converted to such errors (`environment_failure`).
"""

import errno
import json
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from shlex import quote

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""System errors of a file that does not fit: the disk is full, or a quota or a limit is reached."""


@cache
def install_command(requirement: str) -> str:
    """Return the command that installs a requirement, such as `cwm-cli[llm]`.

    An extra of cwm is installed from where cwm itself was installed (`direct_url.json`, PEP 610):
    a clone, a Git repository, or else the package index.
    """
    package, bracket, extra = requirement.partition("[")
    origin = {}
    if package == "cwm-cli":
        from importlib.metadata import distributions

        # In a clone, the metadata of its build (cwm_cli.egg-info) hide the installed metadata.
        found = (each.read_text("direct_url.json") for each in distributions(name=package))
        with suppress(ValueError):
            origin = json.loads(next(filter(None, found), "{}"))
    if "dir_info" in origin:
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        folder = url2pathname(urlsplit(origin["url"]).path)
        editable = "-e " if origin["dir_info"].get("editable") else ""
        if Path(folder).is_dir():  # a container image may have deleted the sources
            return f"pip install {editable}{quote(folder + bracket + extra)}"
    if "vcs_info" in origin:
        requirement = f"{requirement} @ {origin['vcs_info']['vcs']}+{origin['url']}"
    return f"pip install {quote(requirement)}"


class CwmError(Exception):
    """A mistake that the user can fix: one line with the cause, then the remedy."""


class UnknownNameError(CwmError):
    """An unknown name, with the most similar known name.

    If no known name is similar, the message lists all known names, or has the text `otherwise`.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], otherwise: str = "") -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        if close:
            hint = f"did you mean {close[0]}?"
        else:
            hint = otherwise or (f"choose one of {', '.join(names)}" if names else "there is none")
        super().__init__(f"unknown {kind} {name!r}: {hint}")


class TracedError(CwmError):
    """An exception in code that is not part of `cwm`.

    Args:
        message: The line to report.
        error: The exception; `--verbose` prints its traceback. None if there is none.
    """

    def __init__(self, message: str, error: BaseException | None = None) -> None:
        super().__init__(f"{message}; --verbose shows the traceback" if error else message)
        self.traceback = "".join(traceback.format_exception(error)) if error else ""


class EnvironmentFailure(TracedError):
    """An environment that raises an exception or breaks the interface of Gymnasium."""


class PluginFailure(TracedError):
    """A plugin that raises an exception or lacks a method."""


def environment_failure(error: Exception) -> EnvironmentFailure | None:
    """Return the error to report if a method of an environment raised an exception.

    Returns:
        An error that names the method, or None if no method of an environment was running.
    """
    methods = ("__init__", "reset", "step", "render", "close")
    # Without an environment gymnasium is not loaded, and importing it here would be slow.
    gym = sys.modules.get("gymnasium")
    if gym is None or isinstance(error, CwmError | MemoryError):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        env, method = frame.f_locals.get("self"), frame.f_code.co_name
        if isinstance(env, gym.Env) and not isinstance(env, gym.Wrapper) and method in methods:
            name = env.spec.id if env.spec else type(env).__name__
            reason = describe_exception(error, frame.f_code.co_filename)
            return EnvironmentFailure(f"{name}: {method} raised {reason}", error)
    return None


def describe_exception(error: BaseException, file: str = "") -> str:
    """Return the last line of a traceback, and the line of `file` that raised."""
    last = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    return f"{last} ({Path(file).name}, line {lines[-1]})" if lines else last
