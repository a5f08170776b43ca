"""Which planners act, with which options, and what a decision may use up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cwm_cli.errors import CwmError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cwm_cli.agents.pilots import Planning
    from cwm_cli.data.spaces import Space
    from cwm_cli.sandbox import Limits

DECISION = {"wall_seconds": 1800.0, "cpu_seconds": 1200.0}
"""For the decisions of all episodes in flight: a plan of the published CEM is 2 million steps."""


class Choice(NamedTuple):
    """The name that was asked for, the planners that it stands for, and the limits of decisions."""

    name: str
    planners: list[Planning]
    limits: Limits


def choose(
    name: str, pairs: list[str], spaces: tuple[Space, Space], limits: dict[str, Any]
) -> Choice:
    """Choose the planners and read the options; an option selects the planner that has it."""
    from cwm_cli.registry import Owner, find, read_options
    from cwm_cli.sandbox import Limits

    names = _candidates(name, spaces)
    owners = [Owner(candidate, find("planner", candidate)) for candidate in names]
    options = read_options(pairs, [*owners, Owner("sandbox", Limits)])
    bounds = Limits.chosen(limits | DECISION | options["sandbox"])
    names = [candidate for candidate in names if options[candidate]] or names
    planners = [_planning(candidate, options[candidate]) for candidate in names]
    return Choice(name, planners, bounds)


def _candidates(name: str, spaces: tuple[Space, Space]) -> list[str]:
    """Return the planners that a name stands for."""
    from cwm_cli.planning import automatic, serving
    from cwm_cli.registry import find, names

    planners = {known: find("planner", known) for known in names("planner")}
    if name not in (*planners, "auto"):
        raise UnknownNameError("planner", name, (*planners, "auto"))
    able, unasked = serving(planners, spaces[1]), automatic(planners, *spaces)
    if not able:
        needs = " or ".join(dict.fromkeys(planner.NEEDS for planner in planners.values()))
        raise CwmError(f"no planner serves these actions: choose an environment with {needs}")
    if name not in (*able, "auto"):
        raise CwmError(f"{name} needs {planners[name].NEEDS}: choose --planner {unasked[-1]}")
    return unasked if name == "auto" else [name]


def _planning(name: str, options: dict[str, Any]) -> Planning:
    """Return a planner with all of its options, also those that nobody set."""
    from cwm_cli.agents.pilots import Planning
    from cwm_cli.registry import Owner, find

    planner = find("planner", name)
    try:
        made = planner(**options)
    except ValueError as error:
        raise CwmError(f"{name} refuses its options: {error}") from error
    known = Owner(name, planner).options
    return Planning(name, {option: getattr(made, option) for option in known})


def unsuited(planners: Sequence[Planning], reason: str) -> CwmError:
    """Say that no planner could plan with a model."""
    names = " and ".join(planner.name for planner in planners)
    return CwmError(f"{names} cannot plan here (it {reason}): choose --planner mcts")
