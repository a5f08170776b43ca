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
    from cwm_cli.agents.calibrating import calibrate
    from cwm_cli.agents.collecting import collect
    from cwm_cli.agents.evaluating import evaluate
    from cwm_cli.agents.exporting import export_transitions
    from cwm_cli.agents.imagining import imagine
    from cwm_cli.agents.importing import import_transitions
    from cwm_cli.agents.interacting.play import play
    from cwm_cli.agents.learning.learn import learn
    from cwm_cli.agents.playing import plan
    from cwm_cli.agents.synthesizing import synthesize
    from cwm_cli.agents.theorizing.scoring import score
    from cwm_cli.agents.theorizing.theorize import theorize
    from cwm_cli.agents.training.train import train
    from cwm_cli.bench.benchmarking import benchmark
    from cwm_cli.bench.speed import bench_speed
    from cwm_cli.errors import CwmError
    from cwm_cli.export.plugins import new_plugin
    from cwm_cli.runs.listing import load
    from cwm_cli.runs.observer import Observer
    from cwm_cli.views.page import report

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
    "synthesize",
    "theorize",
    "train",
]

_HOMES = {
    "CwmError": "errors",
    "Observer": "runs.observer",
    "bench_speed": "bench.speed",
    "benchmark": "bench.benchmarking",
    "load": "runs.listing",
    "new_plugin": "export.plugins",
    "calibrate": "agents.calibrating",
    "collect": "agents.collecting",
    "evaluate": "agents.evaluating",
    "export_transitions": "agents.exporting",
    "imagine": "agents.imagining",
    "import_transitions": "agents.importing",
    "plan": "agents.playing",
    "report": "views.page",
    "synthesize": "agents.synthesizing",
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
