"""Code World Models: synthesize a Python model of an environment, then plan with it.

The library is what the command line does, function by function, and imports nothing until it is
used::

    import cwm_cli as cwm

    result = cwm.synthesize("CartPole-v1")
    print(result.scores.test.accuracy, result.program.read_text())
    print(cwm.plan(result.run, episodes=5).mean)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pluggy

from cwm_cli._version import __version__

if TYPE_CHECKING:
    from cwm_benchmark.benchmarking import benchmark
    from cwm_cli.bench.speed import bench_speed
    from cwm_cli.commands.collect import collect
    from cwm_cli.commands.data import export_transitions, import_transitions
    from cwm_cli.commands.evaluate import evaluate
    from cwm_cli.commands.imagine import imagine
    from cwm_cli.commands.plan import plan
    from cwm_cli.commands.synthesize import synthesize
    from cwm_cli.errors import CwmError
    from cwm_cli.export.plugins import new_plugin
    from cwm_cli.runs.listing import load
    from cwm_cli.runs.observer import Observer
    from cwm_cli.views.page import report
    from cwm_formats.frames import dataset
    from cwm_induction.calibrate import calibrate
    from cwm_learn.learn import learn
    from cwm_neural.training.train import train
    from cwm_play.play import play
    from cwm_serve.serve import serve
    from cwm_theorize.scoring import score
    from cwm_theorize.theorize import theorize

hookimpl = pluggy.HookimplMarker("cwm")
"""Marks a function of a plugin as one of the hooks in `cwm_cli.hookspecs`."""

__all__ = [
    "CwmError",
    "Observer",
    "__version__",
    "bench_speed",
    "benchmark",
    "calibrate",
    "collect",
    "dataset",
    "evaluate",
    "export_transitions",
    "hookimpl",
    "imagine",
    "import_transitions",
    "learn",
    "load",
    "new_plugin",
    "plan",
    "play",
    "report",
    "score",
    "serve",
    "synthesize",
    "theorize",
    "train",
]

_HOMES = {
    "CwmError": "errors",
    "Observer": "runs.observer",
    "bench_speed": "bench.speed",
    "load": "runs.listing",
    "new_plugin": "export.plugins",
    "collect": "commands.collect",
    "evaluate": "commands.evaluate",
    "export_transitions": "commands.data",
    "imagine": "commands.imagine",
    "import_transitions": "commands.data",
    "plan": "commands.plan",
    "report": "views.page",
    "synthesize": "commands.synthesize",
}
"""Modules of the public names of the core; plugins add functions by `cwm_functions`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = import_module("cwm_cli.registry").functions().get(name, "").partition(":")
    if not module:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), function)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
