"""Environments in Python files of the user."""

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from cwm_cli.envs.failures import cause
from cwm_cli.errors import CwmError, EnvironmentFailure
from cwm_cli.text import first_few

FILE = ".py"


def name_in_file(name: str) -> str:
    """Return the `module:environment` that a file holds, and let Python find its folder.

    Args:
        name: `FILE.py` if the file holds one environment, or `FILE.py:Name`. Any other name is
            returned unchanged.

    Raises:
        CwmError: The file is missing or fails, or it holds no environment or several.
    """
    file, _, chosen = (name, "", "") if name.endswith(FILE) else name.rpartition(":")
    if not file.endswith(FILE):
        return name
    path = Path(file).resolve()
    if not path.is_file():
        raise CwmError(f"there is no file {file}: name a .py file or an environment id")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as Python does when it runs the file
    try:
        module = import_module(path.stem)
    except ModuleNotFoundError as error:
        raise EnvironmentFailure(f"{file} cannot be imported: {cause(error)}", error) from error
    if Path(module.__file__ or "").resolve() != path:
        raise CwmError(f"{file} has the name of another Python module: rename the file")
    return f"{path.stem}:{chosen or _only_environment(module, file)}"


def import_module(name: str) -> ModuleType:
    """Import a module that defines environments.

    Raises:
        CwmError: The module raised an exception or called `sys.exit`.
        ModuleNotFoundError: There is no such module, or one that it imports is missing.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvironmentFailure(f"{name} cannot be imported: {cause(error)}", error) from error


def environments_in(module: ModuleType) -> tuple[list[str], list[str]]:
    """Return the ids that a module registers, and the names of its environment classes."""
    import gymnasium as gym

    def is_environment(value: Any) -> bool:
        return (
            inspect.isclass(value)
            and value.__module__ == module.__name__
            and issubclass(value, gym.Env)
            and not issubclass(value, gym.Wrapper)
        )

    def is_inside(entry_point: Any) -> bool:
        if isinstance(entry_point, str):
            return entry_point.partition(":")[0] == module.__name__
        return getattr(entry_point, "__module__", "") == module.__name__

    ids = [name for name, spec in gym.registry.items() if is_inside(spec.entry_point)]
    return ids, [name for name, value in vars(module).items() if is_environment(value)]


def _only_environment(module: ModuleType, file: str) -> str:
    """Return the only environment that a file registers, or else the only one that it defines."""
    ids, classes = environments_in(module)
    for names in (ids, classes):
        if len(names) == 1:
            return names[0]
    if not (found := classes or ids):
        raise CwmError(f"{file} defines no environment: derive a class from gymnasium.Env")
    prefix = module.__name__ if Path(file).resolve().parent == Path.cwd() else file
    choices = first_few([f"{prefix}:{name}" for name in found], 6)
    raise CwmError(f"{file} defines several environments: add --env with one of {choices}")
