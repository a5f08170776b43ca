"""The layout of the code: unique names, folders for concepts, and a core without plugins.

`lint-imports` checks the imports between packages.
"""

import ast
from collections import defaultdict
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from cwm_cli import registry
from cwm_cli.envs.tasks import SUITES
from folders import ROOT

pytestmark = pytest.mark.slow  # it parses all source files

CORE = ROOT / "cwm_cli"
PLUGINS = {entry.value.partition(":")[0] for entry in distribution("cwm-cli").entry_points} - {
    "cwm_cli.cli"
}
PACKAGES = [CORE, *(ROOT / "plugins" / name for name in sorted(PLUGINS))]
LOOSE = {
    *("__init__", "__main__", "_version", "credentials", "errors", "hookspecs", "locks", "presets"),
    *("private_parts", "registry", "result", "text"),
}
"""Modules that belong to no folder: everyone may use them."""

MEANT = {
    "cwm_cli/envs/tasks.py": set(SUITES["cwmb"]),  # environments of the paper, from any plugin
    "plugins/cwm_benchmark/run.py": {"simulated"},  # a key of the report
    "plugins/cwm_play/play.py": {"replay"},  # a mode of playing
    "cwm_cli/cli/completion.py": {"agent"},  # a kind of part, of `cwm train`
    "cwm_cli/commands/imagine.py": {"agent"},  # a policy: the agent of a run
    "cwm_cli/data/objects.py": {"agent"},  # an object on a board
    "cwm_cli/commands/installation.py": {
        "litellm",
        "transformers",
    },  # Python packages that extras install
    "cwm_cli/testing/test_training.py": {"MiniGrid-Empty-5x5-v0", "Catch-v0", "tiny"},
    # what kinds of model are tried on, and a profile
    "cwm_cli/testing/conftest.py": {"CartPole-v1"},  # any environment would do
}
"""Texts of the core that must equal names in plugins."""


class Module(NamedTuple):
    """The public classes of a module and the strings that it works with, with their lines."""

    classes: list[tuple[int, str]]
    strings: list[tuple[int, str]]

    @classmethod
    def parse(cls, text: str) -> Self:
        tree = ast.parse(text)
        docstrings, strings = set(), []
        for node in ast.walk(tree):  # parents before children
            if isinstance(node, ast.Expr):
                docstrings.add(id(node.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings += [] if id(node) in docstrings else [(node.lineno, node.value)]
        classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
        public = [(node.lineno, node.name) for node in classes if not node.name.startswith("_")]
        return cls(public, strings)


@pytest.fixture(scope="module")
def modules() -> dict[Path, Module]:
    files = (file for package in PACKAGES for file in sorted(package.rglob("*.py")))
    return {file.relative_to(ROOT): Module.parse(file.read_text("utf-8")) for file in files}


def test_no_two_public_classes_share_a_name(modules: dict[Path, Module]) -> None:
    places = defaultdict(list)
    for file, module in modules.items():
        for line, name in module.classes:
            places[name].append(f"{file}:{line}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_module_of_the_core_belongs_to_a_folder() -> None:
    assert {file.stem for file in CORE.glob("*.py")} - LOOSE == set()


def test_the_core_names_no_plugin(modules: dict[Path, Module]) -> None:
    given = {
        name
        for kind in ("strategy", "backend", "environment")
        for plugin, entries in registry.iterate_parts(kind)  # type: ignore[arg-type]
        if plugin.name != "core"
        for name in entries
    }
    assert {"gif-mcts", "induction", "CartPole-v1"} <= given
    named = [
        f"{file}:{line}: {text!r}"
        for file, module in modules.items()
        if file.parts[0] == CORE.name
        for line, text in module.strings
        if (text in given and text not in MEANT.get(str(file), ()))
        or text.startswith(tuple(PLUGINS))
    ]
    assert named == []
