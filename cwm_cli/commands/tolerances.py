"""Tolerances of exactness that the user gives (`--tolerance NAME=VALUE`)."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import isfinite
from typing import Any

from cwm_cli.data.dataset import TOLERANCES, Dataset
from cwm_cli.envs.documented import documented_names
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.evaluation.residuals import names_of

REWARD = "reward"


def with_tolerances(
    rows: Dataset,
    given: Sequence[str] | Mapping[str, float],
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any],
) -> Dataset:
    """Return rows that are compared within absolute tolerances.

    Args:
        rows: The rows; the tolerances become a part of their metadata.
        given: `"NAME=VALUE"`, or `"VALUE"` for all real numbers; or a mapping by name, with the
            empty name for all. A name is the name or number of a component, or `reward`.
        spec: The environment, whose description may name the components.
        env_args: Arguments of the environment.

    Raises:
        CwmError: A name is unknown, or a value is not a number of at least 0.
    """
    pairs = given.items() if isinstance(given, Mapping) else map(_pair, given)
    values = [(name, _number(name, value)) for name, value in pairs]
    if not values:
        return rows
    size = sum(leaf.space.size for leaf in rows.observation_space.leaves(""))
    names = component_names(rows, spec, env_args) if any(name for name, _ in values) else ()
    places = {name: str(number) for number, name in enumerate(names)}
    places |= {str(number): str(number) for number in range(size)} | {REWARD: REWARD}
    tolerances: dict[str, float] = {}
    for name, value in values:
        if not name:
            tolerances |= dict.fromkeys([*_real_components(rows), REWARD], value)
        elif name in places:
            tolerances[places[name]] = value
        else:
            raise UnknownNameError("component", name, [*names, REWARD])
    return replace(rows, metadata=rows.metadata | {TOLERANCES: tolerances})


def component_names(
    rows: Dataset, spec: EnvironmentSpec, env_args: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the names of the components, from the description or from the table."""
    with closing(spec.make(**env_args)) as env:
        description = spec.describe(env)
    return documented_names(description, rows.observation_space) or names_of(rows)


def _pair(text: str) -> tuple[str, str]:
    """Return name and value of `"NAME=VALUE"`; the name is empty if there is none."""
    name, separator, value = text.rpartition("=")
    return (name, value) if separator else ("", text)


def _number(name: str, value: str | float) -> float:
    """Return a tolerance as a number."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        shown = f"{name}={value}" if name else value
        raise CwmError(f"--tolerance {shown}: give a number of at least 0, such as NAME=0.1")
    return number


def _real_components(rows: Dataset) -> list[str]:
    """Return the numbers of the components that are real numbers."""
    found, first = [], 0
    for leaf in rows.observation_space.leaves(""):
        if leaf.space.is_float:
            found += [str(first + place) for place in range(leaf.space.size)]
        first += leaf.space.size
    return found
