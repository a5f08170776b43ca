"""Make environments of Gymnasium, and report failures on one line."""

from __future__ import annotations

import inspect
import io
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cwm_cli._version import distributions_of
from cwm_cli.errors import CwmError, EnvironmentFailure, UnknownNameError, install_command

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec


def load() -> ModuleType:
    """Import Gymnasium without its announcements and warnings.

    They address authors of environments. Users get the notes and errors of this package.
    """
    with redirect_stderr(io.StringIO()):
        import gymnasium
    no_messages = 100  # a level above all levels of Gymnasium's logger
    gymnasium.logger.min_level = no_messages
    warnings.filterwarnings("ignore", module=r"(gymnasium|pygame)(\.|$)")
    return gymnasium


REQUIREMENTS = {
    "mujoco": "cwm-cli[mujoco]",
    "imageio": "cwm-cli[mujoco]",
    "Box2D": "gymnasium[box2d]",
    "ale_py": "gymnasium[atari]",
    "jax": "gymnasium[jax]",
    "flax": "gymnasium[jax]",
}
"""The requirement to install for a module that an environment needs."""


def make(spec: EnvSpec, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make an environment without the checker, whose warnings address authors.

    Raises:
        CwmError: An argument or a package is missing or wrong, or it is no Gymnasium environment.
        EnvironmentFailure: The environment raised an exception.
    """
    gymnasium = load()
    creator = _creator(spec)
    _check_arguments(spec, creator, env_args)
    if _uses_mujoco(creator) or (not inspect.isclass(creator) and find_spec("mujoco")):
        import mujoco

        mujoco.set_mju_user_warning(lambda _: None)  # nothing on the terminal or in a log file
    arguments = {"disable_env_checker": True} | env_args
    try:
        env: gym.Env[Any, Any] = gymnasium.make(spec, **arguments)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise import_failure(spec.id, error) from error
    except Exception as error:
        _check_interface(spec.id, creator, error)
        given = ", ".join(f"{name}={value!r}" for name, value in env_args.items())
        reason = f"{type(error).__name__}: {str(error).partition(' was raised from ')[0]}"
        made = f"made with {given}" if given else "made"
        raise EnvironmentFailure(f"{spec.id} cannot be {made} ({_line(reason)})", error) from error
    return env


def _check_interface(name: str, creator: Any, error: Exception) -> None:
    """Raise `CwmError` if making an environment failed because it is not a gymnasium.Env."""
    made = creator if inspect.isclass(creator) else None
    if made is None and isinstance(error, TypeError):
        with suppress(Exception):
            made = type(creator())
    if made is None or issubclass(made, load().Env):
        return
    if hasattr(made, "agent_iter") or hasattr(made, "possible_agents"):
        raise CwmError(
            f"{name} is a PettingZoo environment with several agents: "
            "wrap it in a gymnasium.Env that controls one agent"
        ) from error
    raise CwmError(
        f"{name} is not a Gymnasium environment: derive {made.__name__} from gymnasium.Env"
    ) from error


def versions(spec: EnvSpec) -> Mapping[str, str]:
    """Return the versions of the packages that determine the behaviour of an environment.

    For a module without a package, it is the hash of its file.
    """
    found = {name: version(name) for name in ("gymnasium", "numpy")}
    creator = _creator(spec)
    if _uses_mujoco(creator):
        found["mujoco"] = version("mujoco")
    return found | _provider(creator)


def _provider(creator: Any) -> dict[str, str]:
    """Return the package and version of an environment outside Gymnasium, or its file's hash."""
    creator = creator.func if isinstance(creator, partial) else creator
    module = creator.__module__
    package = module.partition(".")[0]
    if package == "gymnasium":
        return {}
    distributions = distributions_of(package)
    source = getattr(sys.modules.get(module), "__file__", None)
    if distributions or source is None:
        return {name: version(name) for name in sorted(distributions)}
    return {module: f"sha256:{sha256(Path(source).read_bytes()).hexdigest()[:16]}"}


def import_failure(name: str, error: Exception) -> CwmError:
    """Return an error that names the package to install for an environment."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or not cause.name:
        return CwmError(f"{name} cannot be made: {_line(str(error))}")
    module = cause.name.partition(".")[0]
    if module in REQUIREMENTS:
        return CwmError(f"{name} needs {module}: {install_command(REQUIREMENTS[module])}")
    return CwmError(f"{name} needs the module {module!r}: install the package that provides it")


def _creator(spec: EnvSpec) -> Any:
    """Import the function or class that makes an environment."""
    gymnasium = load()
    if not isinstance(spec.entry_point, str):
        return spec.entry_point
    try:
        return gymnasium.envs.registration.load_env_creator(spec.entry_point)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise import_failure(spec.id, error) from error


def _check_arguments(spec: EnvSpec, creator: Any, env_args: Mapping[str, Any]) -> None:
    """Raise `CwmError` for unknown arguments and for missing required arguments."""
    parameters = inspect.signature(creator).parameters.values()
    known = {parameter.name for parameter in parameters}
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        # arguments that `gymnasium.make` accepts for every environment
        common_arguments = {"max_episode_steps", "disable_env_checker", "render_mode"}
        for name in sorted(env_args.keys() - known - common_arguments):
            raise UnknownNameError(f"argument of {spec.id}", name, known - common_arguments)
    for parameter in parameters:
        required = parameter.default is parameter.empty and "VAR" not in parameter.kind.name
        if required and parameter.name not in env_args.keys() | spec.kwargs.keys():
            hint = f"add --env-arg {parameter.name}=VALUE"
            raise CwmError(f"{spec.id} needs the argument {parameter.name!r}: {hint}")


def _uses_mujoco(creator: Any) -> bool:
    """Return whether the class of an environment, or one of its base classes, uses MuJoCo."""
    classes = inspect.getmro(creator) if inspect.isclass(creator) else (creator,)
    modules = (sys.modules.get(cls.__module__) for cls in classes)
    return any(hasattr(module, "mujoco") for module in modules if module)


def _line(text: str) -> str:
    return " ".join(text.split())
