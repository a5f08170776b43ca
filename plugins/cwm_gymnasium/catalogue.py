"""Gymnasium's registry as a mapping from ids to environments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cwm_cli.envs.spec import EnvironmentSpec, Rewinder, environments_in, import_module
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.private_parts import MissingPartError
from cwm_gymnasium.describing import describe
from cwm_gymnasium.making import import_failure, load, make, versions
from cwm_gymnasium.shifts import SHIFTED

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np
    from gymnasium.envs.registration import EnvSpec


NAMESPACE_MODULES = {"ALE": "ale_py"}
"""Modules that register the environments of a namespace when they are imported."""


class Environments(Mapping[str, Callable[[], EnvironmentSpec]]):
    """Environments by id; Gymnasium is imported on first use.

    The mapping also contains names that it does not list: `module:Id-v0`, `module:Class`, ids
    without a version, and versions that Gymnasium has replaced by newer ones.
    """

    gives_way = True  # another plugin may provide its own version of a registered environment

    def __getitem__(self, name: str) -> Callable[[], EnvironmentSpec]:
        if name not in self:
            raise KeyError(name)
        return partial(_specify, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (_module(name) != "" or _find(name) is not None)

    def __iter__(self) -> Iterator[str]:
        return (name for name, spec in load().registry.items() if not _retired(spec))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _specify(name: str) -> EnvironmentSpec:
    """Return the specification of an environment.

    Raises:
        CwmError: The module of the environment cannot be imported, or has no such environment.
    """
    module, bare = _module(name), name.rpartition(":")[2]
    prefix = name.removesuffix(bare)
    loaded = _import(module, name) if module else None
    found = _find(bare)
    if loaded is not None:
        found = _unregistered(loaded, bare, found) or found
    if found is None:
        inside = chain(*environments_in(loaded)) if loaded is not None else ()
        known = [prefix + other for other in (list(inside) or Environments())]
        raise UnknownNameError("environment", name, known)
    return EnvironmentSpec(
        id=found.id if found.id.startswith(prefix) else prefix + found.id,
        make=partial(make, found),
        describe=describe,
        versions=partial(versions, found),
        note=_note(bare, found),
        rewinder=_rewinder,
        restore=_restore,
        layout=_layout,
        shift=_shift(found),
    )


def _rewinder(env: gym.Env[Any, Any]) -> Rewinder | None:
    """Return a rewinder for an environment that uses MuJoCo, else None."""
    kinds = [type(getattr(env.unwrapped, name, None)).__name__ for name in ("model", "data")]
    if kinds != ["MjModel", "MjData"]:
        return None
    from cwm_gymnasium.mujoco_batch import Mujoco

    return Mujoco(env)


def _restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    from cwm_gymnasium.restoring import restore

    return restore(env, observation)


def _layout(env: gym.Env[Any, Any]) -> Mapping[str, Any] | None:
    from cwm_gymnasium.restoring import layout_data

    return layout_data(env)


def _shift(found: EnvSpec) -> Callable[[gym.Env[Any, Any], np.random.Generator], None] | None:
    """Return a function that shifts an environment, or None if its class is not in `SHIFTED`."""
    change = SHIFTED.get(str(found.entry_point))
    if change is None:
        return None

    def shift(env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        try:
            change(env.unwrapped, rng)
        except MissingPartError as error:
            raise CwmError(f"{found.id} cannot be shifted ({error}): leave out --shift") from error

    return shift


def _module(name: str) -> str:
    """Return the module that registers an environment; empty for Gymnasium itself."""
    module, _, bare = name.rpartition(":")
    return module or NAMESPACE_MODULES.get(bare.partition("/")[0], "")


def _import(module: str, name: str) -> ModuleType:
    """Import the module of an environment; the working folder is searched, too."""
    load()
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last, so that no file replaces an installed package
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0] and module not in NAMESPACE_MODULES.values():
            hint = f"install it, or name its file: --env FOLDER/{module}.py"
            raise CwmError(f"there is no module {module!r} for {name}: {hint}") from error
        raise import_failure(name, error) from error


def _unregistered(module: ModuleType, name: str, found: EnvSpec | None) -> EnvSpec | None:
    """Return a spec for a class or function of a module, or None if there is none.

    Args:
        module: The module that the user named.
        name: The name after the colon.
        found: The registered environment of this name. It is used if it has the same class.
    """
    made, path = getattr(module, name, None), f"{module.__name__}:{name}"
    if not callable(made) or (found is not None and found.entry_point in (made, path)):
        return None
    spec: EnvSpec = load().envs.registration.EnvSpec(path, entry_point=path)
    return spec


def _find(name: str) -> EnvSpec | None:
    """Return the registered environment for a name, or None.

    If this exact name cannot be made, it is the newest version of the environment; a version in
    the name must be older.
    """
    gym = load()
    spec: EnvSpec | None = gym.registry.get(name)
    if spec is not None and not _retired(spec):
        return spec
    try:
        namespace, bare, version = gym.envs.registration.parse_env_id(name)
    except gym.error.Error:
        return None
    newer = [
        spec
        for spec in gym.registry.values()
        if (spec.namespace, spec.name) == (namespace, bare) and not _retired(spec)
        if spec.version is not None and (version is None or spec.version > version)
    ]
    return max(newer, key=lambda spec: spec.version or 0, default=None)


def _retired(spec: EnvSpec) -> bool:
    """Return whether an environment is registered only to report that it cannot be made."""
    if spec.id == "Pusher-v4":
        try:
            return int(version("mujoco").partition(".")[0]) >= 3
        except PackageNotFoundError:
            return True
    return callable(spec.entry_point) and spec.entry_point.__module__ == "gymnasium.envs"


def _note(name: str, found: EnvSpec) -> str:
    """Return a note if another environment than the named one is used."""
    if name == found.id or found.id.endswith(f":{name}"):  # a class that is not registered
        return ""
    if f"{name}-v{found.version}" == found.id:
        return f"{name} has no version: using {found.id}"
    return f"Gymnasium no longer includes {name}: using {found.id}"
