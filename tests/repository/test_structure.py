"""The structure of the source: which modules import which."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from folders import ROOT

pytestmark = pytest.mark.slow  # it parses all source files


def modules_of(*folders: Path) -> dict[str, Path]:
    """Return the files of all modules below some folders, by the names they are imported under."""
    found = {}
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            name = ".".join(file.relative_to(folder.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


def imports_of(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the known modules that a module imports: anywhere in it, and also for types only."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            top = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                full = f"{top}.{alias.name}"
                if full in known or top in known:
                    yield full if full in known else top


Imports = dict[str, set[str]]
"""The imports of each module, or of each package."""


def all_imports(modules: dict[str, Path]) -> Imports:
    return {name: {*imports_of(name, file, modules)} - {name} for name, file in modules.items()}


def by_package(imports: Imports) -> Imports:
    """Join the modules of each package below the top one, such as `cwm_cli.worlds`."""
    found: Imports = {}
    for name, others in imports.items():
        package, *more = (".".join(each.split(".")[:2]) for each in (name, *others))
        found.setdefault(package, set()).update({*more} - {package})
    return found


def circles(imports: Imports) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or by way of others."""
    reached = {}
    for name in imports:
        seen: set[str] = set()
        stack = [name]
        while stack:
            new = imports[stack.pop()] - seen
            seen |= new
            stack += new
        reached[name] = seen
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in reached
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


@cache
def tree() -> Imports:
    """Return the imports of the modules of the core, the plugins and the benchmarks."""
    plugins = [folder for folder in (ROOT / "plugins").iterdir() if folder.is_dir()]
    return all_imports(modules_of(ROOT / "cwm_cli", ROOT / "benchmarks", *plugins))


def listed(groups: list[list[str]]) -> str:
    return "\n".join(" <-> ".join(group) for group in groups)


def test_no_two_modules_import_each_other() -> None:
    assert {"cwm_cli.sandbox.client", "cwm_learn.learner", "benchmarks.house"} <= tree().keys()
    assert not (found := circles(tree())), listed(found)


def test_no_two_packages_of_the_core_import_each_other() -> None:
    core = {name: imports for name, imports in tree().items() if name.startswith("cwm_cli")}
    packages = by_package({name: imports & core.keys() for name, imports in core.items()})
    assert "cwm_cli.worlds" in packages["cwm_cli.evaluation"]
    assert not (found := circles(packages)), listed(found)


def write(folder: Path, sources: dict[str, str]) -> Path:
    """Write the modules of a package, by their paths without suffix."""
    for name, text in sources.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_each_way_to_import_counts(tmp_path: Path) -> None:
    sources = {
        "__init__": "",
        "plain": "import package.inner\n",
        "inner": "def late():\n    from package import plain\n",
        "typed": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .near import B\n",
        "near": "from package.typed import A\n",
        "one": "from package.two import x\n",
        "two": "from package import three\n",
        "three": "from . import one\n",
        "alone": "import os\nfrom package import plain\nADDRESS = 'package.addressed:X'\n",
        "addressed": "from package.alone import ADDRESS\n",
    }
    package = write(tmp_path / "package", sources)
    assert circles(all_imports(modules_of(package))) == [
        ["package.inner", "package.plain"],
        ["package.near", "package.typed"],
        ["package.one", "package.three", "package.two"],
    ]


def test_packages_import_each_other_without_circles_of_modules(tmp_path: Path) -> None:
    sources = {
        "__init__": "",
        "left/__init__": "",
        "left/a": "def late():\n    from package.right import b\n",
        "left/c": "",
        "right/b": "",
        "right/d": "from ..left.c import x\n",
        "above/e": "from package.left import a\nfrom package.right.d import y\n",
    }
    imports = all_imports(modules_of(write(tmp_path / "package", sources)))
    assert not circles(imports)
    assert circles(by_package(imports)) == [["package.left", "package.right"]]
