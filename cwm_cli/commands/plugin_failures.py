"""Exceptions in the code of plugins, reported as one line instead of a traceback."""

import traceback
from types import FrameType

from cwm_cli.errors import CwmError, PluginFailure, describe_exception
from cwm_cli.registry import core_package, plugins

GENERATED = "<string>"
"""File of methods that `dataclass` generates, such as `__init__`."""


def plugin_failure(error: Exception) -> PluginFailure | None:
    """Return the error to report if the code of a plugin raised an exception.

    Returns:
        An error that names the package and the method, or None if no plugin was running. The
        plugins that are part of `cwm` do not count: their exceptions are defects of `cwm`.
    """
    if isinstance(error, CwmError | MemoryError):
        return None
    packages = {
        _top_level(plugin.module.__name__): plugin.package
        for plugin in plugins().loaded
        if plugin.package != core_package()
    }
    walked = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    frames = [frame for frame in walked if frame.f_code.co_filename != GENERATED]
    for frame in reversed(frames):  # the innermost frame of a plugin has the line to correct
        if package := packages.get(_top_level(frame.f_globals.get("__name__", ""))):
            reason = describe_exception(error, frame.f_code.co_filename)
            method = _function(frame)
            return PluginFailure(f"the plugin {package} failed: {method} raised {reason}", error)
    if isinstance(error, NotImplementedError) and frames:
        kind = type(frames[-1].f_locals.get("self"))
        if package := packages.get(_top_level(kind.__module__)):
            method = frames[-1].f_code.co_name
            return PluginFailure(
                f"the plugin {package} is incomplete: {kind.__name__} must define {method}()", error
            )
    return None


def _top_level(module: str) -> str:
    return module.partition(".")[0]


def _function(frame: FrameType) -> str:
    """Return the class and the method of a frame, or the function, or the module."""
    if frame.f_code.co_name == "<module>":
        return str(frame.f_globals["__name__"])
    owner, name = frame.f_locals.get("self", frame.f_locals.get("cls")), frame.f_code.co_name
    if owner is None:
        return frame.f_code.co_qualname.partition(".<locals>")[0]
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__name__}.{name}"
