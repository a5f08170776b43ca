"""The hooks that a plugin may implement.

Every hook except `cwm_commands` returns a mapping, in most cases from names to factories. The top
level of a plugin must not import heavy packages (numpy, pydantic, gymnasium), because `cwm --help`
loads every plugin. Instead of a class, a hook may therefore return its address, such as
`"my_package.strategy:MyStrategy"`, which is imported on first use. The base class of each kind
documents its methods; `pytest --pyargs cwm_cli.testing` checks every part that plugins provide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pluggy

if TYPE_CHECKING:
    import typer

hookspec = pluggy.HookspecMarker("cwm")

Parts = Mapping[str, Callable[..., object] | str]
"""Classes or functions by name, or their addresses (`package.module:name`).

The value may also be another name of the same mapping, which makes the key an alias of that name.
"""

Kind = str
"""The name of an extension point, such as `"strategy"` or `"world model"`."""


class ExtensionPoint(NamedTuple):
    """A kind of part that plugins provide, such as planners.

    `hook` is the name of the hook that returns the parts. `base` is the address of their base
    class; without one, the parts are functions. Parts with `has_options` are dataclasses, and
    `-o KEY=VALUE` sets their fields. Every class must accept `arguments`.
    """

    hook: str
    base: str | None = None
    has_options: bool = False
    arguments: tuple[str, ...] = ()


CORE_POINTS: Mapping[Kind, ExtensionPoint] = {
    "environment": ExtensionPoint("cwm_environments"),
    "backend": ExtensionPoint(
        "cwm_backends", "cwm_cli.search.contracts:Backend", True, arguments=("model",)
    ),
    "strategy": ExtensionPoint("cwm_strategies", "cwm_cli.search.contracts:Strategy", True),
    "refiner": ExtensionPoint("cwm_refiners", "cwm_cli.search.contracts:Refiner", True),
    "problem": ExtensionPoint("cwm_problems", "cwm_cli.search.contracts:Problem", True),
    "world model": ExtensionPoint("cwm_world_models", "cwm_cli.worlds:WorldModel"),
    "contract": ExtensionPoint("cwm_contracts", "cwm_cli.worlds:Contract"),
    "metric": ExtensionPoint("cwm_metrics", "cwm_cli.evaluation:Metric"),
    "planner": ExtensionPoint("cwm_planners", "cwm_cli.planning:Planner", True),
    "policy": ExtensionPoint("cwm_policies", "cwm_cli.commands.policies:Policy", True),
    "executor": ExtensionPoint("cwm_executors", "cwm_cli.bench.executor:Executor", True),
    "importer": ExtensionPoint("cwm_importers", "cwm_cli.commands.data:Importer", True),
    "exporter": ExtensionPoint("cwm_exporters", "cwm_cli.commands.data:Exporter", True),
    "run kind": ExtensionPoint("cwm_run_kinds", "cwm_cli.runs.store:Run"),
    "storage": ExtensionPoint("cwm_storages", "cwm_cli.runs.storage:Storage"),
    "tracker": ExtensionPoint("cwm_trackers", "cwm_cli.commands.trackers:Tracker"),
}
"""The extension points of the core; plugins add others by the hook `cwm_extension_points`."""

CORE: Mapping[Kind, Mapping[str, str] | str] = {
    "policy": {
        "random": "cwm_cli.commands.policies:RandomPolicy",
    },
    "problem": {
        "world-model": "cwm_cli.problems.world_model:WorldModelProblem",
    },
    "planner": "cwm_cli.planning:PLANNERS",
    "refiner": {"simplify": "cwm_cli.search.simplification:Simplify"},
    "world model": "cwm_cli.worlds:WORLD_MODELS",
    "contract": "cwm_cli.worlds:CONTRACTS",
    "metric": "cwm_cli.evaluation:METRICS",
    "executor": {"local": "cwm_cli.bench.executor:LocalProcesses"},
    "run kind": {
        "search": "cwm_cli.runs.searches:SearchRun",
        "plan": "cwm_cli.commands.plays:PlayRun",
    },
    "tracker": {
        "trackio": "cwm_cli.commands.trackers:TrackioTracker",
        "wandb": "cwm_cli.commands.trackers:WandbTracker",
    },
}
"""The parts that the core provides, by kind, or the address of such a mapping."""

CORE_EXAMPLES: Mapping[str, str] = {
    "world model program": "cwm_cli.testing.examples:program_model",
    "world model environment": "cwm_cli.testing.examples:environment_model",
    "problem world-model": "cwm_cli.testing.examples:world_model_problem",
}
"""Functions that make examples of parts for the conformance suite, by kind and name."""


class Hooks(Protocol):
    """The signatures of the hooks, which a plugin defines as functions of its module."""

    @hookspec
    def cwm_extension_points(self) -> Mapping[str, ExtensionPoint]:
        """Add kinds of parts that other plugins can provide, each through its own hook.

        The hook of each kind returns names and factories or their addresses, like the hooks
        below. A plugin that compares explorers could offer::

            return {"explorer": ExtensionPoint("cwm_explorers", "my_package:Explorer")}
        """

    @hookspec
    def cwm_functions(self) -> Mapping[str, str]:
        """Add functions to the Python API: `{"learn": "my_package.learn:learn"}` is `cwm.learn`."""

    @hookspec
    def cwm_test_examples(self) -> Mapping[str, str]:
        """Provide examples for `pytest --pyargs cwm_cli.testing`, by kind and name of the part.

        The suite calls the function with `cwm_cli.testing.conftest.Material`. It constructs a part
        without an example without arguments::

            return {"world model table": "my_package.examples:table_model"}
        """

    @hookspec
    def cwm_option_groups(self) -> Mapping[str, str]:
        """Add dataclasses whose fields `cwm options` lists, by the name before the dot in `-o`."""

    @hookspec
    def cwm_environments(self) -> Mapping[str, Callable[[], object] | str]:
        """Provide environments for `--env`, by id: functions that return an `EnvironmentSpec`.

        A value may also be another id of the mapping, which makes the key an alias of that id;
        runs and datasets store the id. The mapping may contain ids that it does not list, by its
        `__contains__` and `__getitem__`. If the mapping has the attribute `gives_way` set, it is
        used only for ids that no other plugin provides::

            return {"Maze-v0": "mazes.env:specify", "maze": "Maze-v0"}
        """

    @hookspec
    def cwm_backends(self) -> Parts:
        """Provide backends of completions (`--backend`): subclasses of `contracts.Backend`."""

    @hookspec
    def cwm_strategies(self) -> Parts:
        """Provide search strategies (`--strategy`).

        The parts are dataclasses and subclasses of `search.contracts.Strategy`.
        """

    @hookspec
    def cwm_refiners(self) -> Parts:
        """Provide refiners: subclasses of `search.contracts.Refiner`.

        A refiner improves a candidate without a completion.
        """

    @hookspec
    def cwm_problems(self) -> Parts:
        """Provide search problems: dataclasses, subclasses of `search.contracts.Problem`."""

    @hookspec
    def cwm_world_models(self) -> Parts:
        """Provide kinds of world model: subclasses of `worlds.WorldModel`, by their `kind`."""

    @hookspec
    def cwm_contracts(self) -> Parts:
        """Provide contracts: subclasses of `worlds.Contract`.

        A contract defines the methods that the class of a program must have.
        """

    @hookspec
    def cwm_metrics(self) -> Parts:
        """Provide metrics of predictions (`--metric`): subclasses of `evaluation.Metric`."""

    @hookspec
    def cwm_planners(self) -> Parts:
        """Provide planners (`--planner`): dataclasses, subclasses of `planning.Planner`."""

    @hookspec
    def cwm_policies(self) -> Parts:
        """Provide policies of data collection (`--policy`): subclasses of `policies.Policy`."""

    @hookspec
    def cwm_executors(self) -> Parts:
        """Provide executors of benchmark jobs: subclasses of `bench.executor.Executor`."""

    @hookspec
    def cwm_importers(self) -> Parts:
        """Provide formats for `cwm data import`: subclasses of `commands.data.Importer`."""

    @hookspec
    def cwm_exporters(self) -> Parts:
        """Provide formats for `cwm data export`: subclasses of `commands.data.Exporter`."""

    @hookspec
    def cwm_trackers(self) -> Parts:
        """Provide experiment trackers (`--tracker`): subclasses of `commands.trackers.Tracker`."""

    @hookspec
    def cwm_run_kinds(self) -> Parts:
        """Provide kinds of run, by the `kind` in their header: subclasses of `runs.store.Run`."""

    @hookspec
    def cwm_storages(self) -> Parts:
        """Provide storage for runs at URLs, by URL scheme: subclasses of `runs.storage.Storage`.

        As for environments, the mapping may contain schemes that it does not list, and may set
        `gives_way`::

            return {"ftp": "my_package.ftp:FtpStorage"}  # --run ftp://host/folder
        """

    @hookspec
    def cwm_defaults(self) -> Mapping[str, str]:
        """Return the default part of each role, used if the user names none.

        Roles are `strategy`, `backend` (without `--model`) and `model` (the backend with
        `--model`); for `cwm theorize` the `method` and the backends `theorist` and
        `statistician`; for `cwm train` the `trainer`::

            return {"strategy": "greedy"}
        """

    @hookspec
    def cwm_commands(self, app: typer.Typer, api: ModuleType) -> None:
        """Add commands to the `cwm` command line.

        Args:
            app: The Typer application. `rich_help_panel` names the panel of `cwm --help`.
            api: The module `cwm_cli.cli.shared`: options that commands share, output as text or
                JSON, and `guarded`, which expands groups of options and reports errors in one
                line. A hook may omit this parameter.

        Example::

            @hookimpl
            def cwm_commands(app):
                app.command("hello", rich_help_panel="Start")(hello)
        """
