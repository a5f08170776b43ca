"""Exceptions in the code of environments, reported as one line instead of a traceback."""

import sys
import traceback
from pathlib import Path

from cwm_cli.errors import CwmError, EnvironmentFailure

METHODS = ("__init__", "reset", "step", "render", "close")
"""Methods of an environment that `cwm` calls."""


def environment_failure(error: Exception) -> EnvironmentFailure | None:
    """Return the error to report if a method of an environment raised an exception.

    Args:
        error: Any exception, with its traceback.

    Returns:
        An error that names the method, or None if no method of an environment was running.
    """
    gym = sys.modules.get("gymnasium")
    if gym is None or isinstance(error, CwmError | MemoryError):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        env, method = frame.f_locals.get("self"), frame.f_code.co_name
        if isinstance(env, gym.Env) and not isinstance(env, gym.Wrapper) and method in METHODS:
            name = env.spec.id if env.spec else type(env).__name__
            reason = cause(error, frame.f_code.co_filename)
            return EnvironmentFailure(f"{name}: {method} raised {reason}", error)
    return None


def cause(error: BaseException, file: str = "") -> str:
    """Return the last line of a traceback, and the line of `file` that raised."""
    last = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    return f"{last} ({Path(file).name}, line {lines[-1]})" if lines else last
