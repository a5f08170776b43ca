"""Environments in files of the user: `envs:Name`, `envs.py` and `folder/envs.py:Name`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cwm_cli.envs.failures import cause, failure
from cwm_cli.errors import CwmError
from cwm_gymnasium.making import load, needs

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

FILE = ".py"

HOMES = {"ALE": "ale_py"}
"""Modules that must be imported before Gymnasium knows their namespace."""


def import_module(module: str, name: str) -> ModuleType:
    """Import the module of an environment, also from the working folder.

    Args:
        module: The name of the module.
        name: The environment that the user named, for messages.
    """
    load()
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file replaces an installed package
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0] and module not in HOMES.values():
            hint = f"install it, or run cwm in the folder of {module}.py"
            raise CwmError(f"there is no module {module!r} for {name}: {hint}") from error
        raise needs(name, error) from error
    except (Exception, SystemExit) as error:
        raise failure(f"{module} cannot be imported: {cause(error)}", error) from error


def import_file(file: str) -> ModuleType:
    """Import a Python file, with its folder on `sys.path` as if Python ran it."""
    path = Path(file).resolve()
    if not path.is_file():
        raise CwmError(f"there is no file {file}: name a .py file, or an environment id")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    loaded = import_module(path.stem, file)
    if Path(loaded.__file__ or "").resolve() != path:
        raise CwmError(f"{file} has the name of another Python module: rename the file")
    return loaded


def in_working_folder(file: str) -> str:
    """Return the module name of a file in the working folder, or the path of any other file."""
    path = Path(file)
    return path.stem if path.resolve().parent == Path.cwd() else os.path.normpath(file)


def only_environment(module: ModuleType, file: str) -> str:
    """Return the environment that a file registers or defines if it is the only one."""
    registered, classes = _registered(module), _classes(module)
    for names in (registered, classes):
        if len(names) == 1:
            return names[0]
    if not classes and not registered:
        raise CwmError(f"{file} defines no environment: derive a class from gymnasium.Env")
    choices = " or ".join(f"{in_working_folder(file)}:{each}" for each in classes or registered)
    raise CwmError(f"{file} defines several environments: name one, --env {choices}")


def environments_in(module: ModuleType) -> list[str]:
    """Return the ids that a module registers and the classes of environments in it."""
    return [*_registered(module), *_classes(module)]


def unregistered(module: ModuleType, name: str, found: EnvSpec | None) -> EnvSpec | None:
    """Return a spec for a class or function of a module, None if there is none of that name.

    Args:
        module: The module that the user named.
        name: The name behind the colon.
        found: The registered environment of that name, which is used if it is of the same class.
    """
    made = getattr(module, name, None)
    path = f"{module.__name__}:{name}"
    if not callable(made) or (found is not None and found.entry_point in (made, path)):
        return None
    spec: EnvSpec = load().envs.registration.EnvSpec(path, entry_point=path)
    return spec


def _registered(module: ModuleType) -> list[str]:
    """Return the ids whose entry points are in a module."""
    return [
        name
        for name, spec in load().registry.items()
        if (
            spec.entry_point.partition(":")[0]
            if isinstance(spec.entry_point, str)
            else getattr(spec.entry_point, "__module__", "")
        )
        == module.__name__
    ]


def _classes(module: ModuleType) -> list[str]:
    """Return the names of the environment classes that a module defines."""
    gym = load()
    return [
        name
        for name, each in vars(module).items()
        if inspect.isclass(each)
        and each.__module__ == module.__name__
        and issubclass(each, gym.Env)
        and not issubclass(each, gym.Wrapper)
    ]
