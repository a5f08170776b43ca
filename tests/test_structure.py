"""The structure of the source: which modules import which."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


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


def circles(modules: dict[str, Path]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or by way of others."""
    imports = {name: {*imports_of(name, file, modules)} - {name} for name, file in modules.items()}
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


def test_no_two_modules_import_each_other() -> None:
    plugins = [folder for folder in (ROOT / "plugins").iterdir() if folder.is_dir()]
    modules = modules_of(ROOT / "cwm_cli", *plugins)
    assert "cwm_cli.sandbox.client" in modules and "cwm_learn.loop" in modules
    assert not (found := circles(modules)), "\n".join(" <-> ".join(group) for group in found)


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
    package = tmp_path / "package"
    package.mkdir()
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    assert circles(modules_of(package)) == [
        ["package.inner", "package.plain"],
        ["package.near", "package.typed"],
        ["package.one", "package.three", "package.two"],
    ]
