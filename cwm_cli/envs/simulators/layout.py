"""How each attribute of an environment is saved."""

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cwm_cli.envs.simulators.chance import Generator, is_generator
from cwm_cli.envs.simulators.values import Survey, survey

if TYPE_CHECKING:
    import gymnasium as gym

OWN = ("action_space", "observation_space", "spec")
"""Attributes that an instance never takes over from another."""


@dataclass(frozen=True)
class Findings:
    """What is known of the attributes of an environment.

    `constant` ones never change and are not copied. Those `together` share
    parts, or are of unknown types; `plain` ones are neither, and `seen` ones
    once were something else than None. `spaces` are those whose generators it
    draws from, as it does from the `common` ones of Python and numpy. Where
    `whole` is set all that can be copied is, in one piece.
    """

    constant: frozenset[str] = frozenset()
    together: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    spaces: tuple[str, ...] = ()
    common: tuple[Generator, ...] = ()
    whole: bool = False


class Layout(NamedTuple):
    """How the attributes are saved.

    The `plain` ones are copied one by one, those `together` in one piece.
    Those `left` stay with their instance, among them `generators` and what is
    constant. All others cannot be changed but by replacing them. It holds as
    long as the attributes `watched` are the `expected` objects: the constant
    ones, and None where that may turn out to be of any kind.
    """

    names: frozenset[str]
    plain: tuple[str, ...]
    together: tuple[str, ...]
    left: tuple[str, ...]
    generators: tuple[str, ...]
    watched: tuple[str, ...]
    expected: tuple[Any, ...]


def owned(env: "gym.Env[Any, Any]", findings: Findings) -> list[Any]:
    """Return what belongs to an instance, in the same order for every instance."""
    attributes = vars(env)
    names = [name for name in (*OWN, *sorted(findings.constant)) if name in attributes]
    return [env, *(attributes[name] for name in names)]


def beside(env: "gym.Env[Any, Any]", findings: Findings) -> list[Generator]:
    """Return the generators that an environment draws from although they are no attributes."""
    return [*(getattr(env, name).np_random for name in findings.spaces), *findings.common]


def laid_out(env: "gym.Env[Any, Any]", known: Findings) -> Layout:
    """Decide how the attributes that an environment has now are saved."""
    attributes = vars(env)
    own = owned(env, known)
    fixed = {name for name in attributes if name in OWN or name in known.constant}
    generators = {name for name, value in attributes.items() if is_generator(value)}
    surveys = surveyed(env, fixed | generators, own)
    together, left = _together(surveys, known), _unmoved(surveys, attributes, own, known)
    mutable = {name for name, found in surveys.items() if found.mutable}
    left |= fixed | generators
    together -= left
    plain = (mutable | known.plain & surveys.keys()) - together - left
    empty = {name for name in surveys if attributes[name] is None} - known.seen - plain - together
    watched = [name for name in attributes if name in empty or name in known.constant]
    return Layout(
        names=frozenset(attributes),
        plain=tuple(filter(plain.__contains__, attributes)),
        together=tuple(filter(together.__contains__, attributes)),
        left=tuple(filter((left | together).__contains__, attributes)),
        generators=tuple(filter(generators.__contains__, attributes)),
        watched=tuple(watched),
        expected=tuple(map(attributes.__getitem__, watched)),
    )


def _together(surveys: Mapping[str, Survey], known: Findings) -> set[str]:
    """Name the attributes that have to be copied in one piece."""
    if known.whole:
        return {name for name, found in surveys.items() if found.mutable}
    strange = {name for name, found in surveys.items() if found.mutable and not found.plain}
    return strange | aliased(surveys) | known.together & surveys.keys()


def _unmoved(
    surveys: Mapping[str, Survey], attributes: Mapping[str, Any], own: list[Any], known: Findings
) -> set[str]:
    """Name the attributes that cannot be taken over by another instance."""
    bound = {name for name, found in surveys.items() if found.bound and not known.whole}
    strange = {name for name, found in surveys.items() if found.mutable and not found.plain}
    return bound | {name for name in strange - bound if not _copies(attributes[name], own)}


def surveyed(env: "gym.Env[Any, Any]", without: set[str], own: list[Any]) -> dict[str, Survey]:
    """Look into the attributes of an environment, but not into what belongs to it."""
    outside = set(map(id, own))
    return {
        name: survey(value, outside) for name, value in vars(env).items() if name not in without
    }


def aliased(surveys: Mapping[str, Survey]) -> set[str]:
    """Name the attributes that hold a part twice, or one that another holds too."""
    holders = Counter(key for found in surveys.values() for key in found.mutable)
    twice = {key for key, count in holders.items() if count > 1}
    return {
        name for name, found in surveys.items() if found.repeats or twice & found.mutable.keys()
    }


def _copies(value: Any, own: list[Any]) -> bool:
    """Whether a value can be copied at all."""
    try:
        deepcopy(value, {id(part): part for part in own})
    except Exception:  # noqa: BLE001  # whatever a stranger's class may raise
        return False
    return True
