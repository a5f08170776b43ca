"""Code World Models: synthesize a Python model of an environment, then plan with it."""

import pluggy

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("cwm")
"""Marks a function of a plugin as one of the hooks in `cwm_cli.hookspecs`."""

__all__ = ["__version__", "hookimpl"]
