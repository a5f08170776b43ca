"""Specifications and descriptions of the household environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cwm_cli.envs.simulators import Values
from cwm_cli.envs.spec import EnvironmentSpec, making
from cwm_household.house import (
    ACTIONS,
    ADJECTIVES,
    CELLS,
    CHORES,
    CLASSES,
    MAX_STEPS,
    OPENABLE,
    PLACES,
    REVISION,
    ROOMS,
    SCHEMA,
    SUITABLE,
    THING_COUNT,
    WORK_PLACES,
    Household,
)

if TYPE_CHECKING:
    import gymnasium as gym

GUIDE = """# {name}

A household with {places} places in {rooms} rooms and {there} things, and a mission in words. \
Every episode has another mission, and other things in other places. All things are visible, also \
in closed places.

## Observation
A dict with two keys.
- `mission` is a text that says what to do. It stays the same for a whole episode.
- `objects` is an array of whole numbers of shape ({slots}, 7), a row for every object. An object \
keeps its row for a whole episode: row 0 is the agent, then come the places, the lamp, and the \
{there} things. The columns are:
  - 0 class: {classes}.
  - 1 x, 2 y: its position. Every place has its own position: {cells}. The lamp is at the \
desk. The agent is at a place, and a thing has the position of the place that contains it.
  - 3 state: {states}. Only {openable} are open or closed, and only the lamp is on or off.
  - 4 temperature: {temperatures}. Only things have one; at the start it is `room`.
  - 5 surface: {surfaces}. Only things have one; at the start they are dirty.
  - 6 held: 1 while the agent holds the thing, otherwise 0. A held thing has the agent's position.

## Actions
{actions}.
These actions are valid:
- Going to any other place. The agent takes the held thing along.
- Opening a closed place and closing an open one, if the agent is there.
- Taking a thing at the place of the agent, if the agent holds nothing, and the place is open or \
cannot be closed.
- Putting down the held thing, in or on the place of the agent, if the place is open or cannot be \
closed.
- {work}
- Using the lamp, if the agent is at the desk: it goes on if it was off, and off if it was on.
Any other action changes nothing.

## Reward and end
The forms of missions are:
{missions}
The step that fulfils the mission rewards 1 and terminates the episode. All others reward 0. An \
episode is cut off after {most} steps. The observation does not contain the number of steps."""

STANDARD_WORK = (
    "Heating, cooling and cleaning the held thing, if the agent is at the {heat}, the {cool} or "
    "the {clean}, respectively, and this place is open or cannot be closed. Heating makes the "
    "thing hot and cooling makes it cool, also if it was cool or hot before. Cleaning makes it "
    "clean for the rest of the episode."
)

SHIFTED_WORK = (
    "Heating, cooling and cleaning the held thing. Each has its own place: the fridge, the "
    "microwave or the sink. This assignment is different from most households. The place has to "
    "be open if it can be closed. Heating makes the thing hot and cooling makes it cool, also if "
    "it was cool or hot before. Cleaning makes it clean for the rest of the episode."
)


def specify(name: str, families: Sequence[str]) -> EnvironmentSpec:
    """Return the specification of a household with missions of some families."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name, tuple(families)),
        describe=_describe,
        versions=_versions,
        valid_actions=lambda env: _house(env).valid_actions(),
        rewinder=lambda env: Values(env, "chore", "state"),
        restore=lambda env, observation: _house(env).restore(observation),
        shift=_shift,
        objects=lambda env: SCHEMA,
        action_names=lambda env: ACTIONS,
    )


def _make(name: str, families: tuple[str, ...], /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make a household; raise `CwmError` for unknown arguments."""
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import TimeLimit

    most = env_args.pop("max_episode_steps", MAX_STEPS)
    with making(name, env_args, ["max_episode_steps", "render_mode"]):
        env = Household(families, **env_args)
        env.spec = EnvSpec(name, entry_point=partial(Household, families), disable_env_checker=True)
        return TimeLimit(env, most)


def _house(env: gym.Env[Any, Any]) -> Household:
    return cast(Household, env.unwrapped)


def _describe(env: gym.Env[Any, Any]) -> str:
    """Return the rules of the household; a shifted household does not reveal the work places."""
    house = _house(env)
    fields = {field.name: _enumerate(field.values) for field in SCHEMA.fields}
    return GUIDE.format(
        name=env.spec.id if env.spec else "Household",
        places=len(PLACES),
        rooms=len(ROOMS),
        there=THING_COUNT,
        slots=2 + len(PLACES) + THING_COUNT,
        classes=_enumerate(CLASSES),
        cells=", ".join(
            f"the {name} ({x}, {y})" for name, (x, y) in zip(PLACES, CELLS, strict=True)
        ),
        openable=", ".join(f"the {name}" for name in OPENABLE),
        states=fields["state"],
        temperatures=fields["temperature"],
        surfaces=fields["surface"],
        actions=_enumerate(ACTIONS),
        work=STANDARD_WORK.format(**WORK_PLACES)
        if house.work_places == WORK_PLACES
        else SHIFTED_WORK,
        missions="\n".join(map(_describe_family, house.families)),
        most=MAX_STEPS,
    )


def _describe_family(family: str) -> str:
    """Return an example of the missions of a family, and the condition that fulfils them."""
    kinds = ", ".join(SUITABLE[family])
    example = next(words for words, chore in CHORES.items() if chore.family == family)
    if family == "examine":
        rule = "the agent holds the thing at the desk, and the lamp is on"
    else:
        condition = f"{ADJECTIVES[family].strip()}, " if ADJECTIVES[family] else ""
        rule = f"the thing is {condition}in or on the place, and not held"
    return f"- {example!r}, with one of {kinds}: fulfilled when {rule}."


def _enumerate(names: Sequence[str]) -> str:
    """Return names with their numbers, such as "0 free, 1 agent"."""
    return ", ".join(f"{number} {name}" for number, name in enumerate(names))


def _versions() -> Mapping[str, str]:
    """Return the versions that determine the behaviour of the household."""
    return {"household": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}


def _shift(env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
    """Permute the places where things are heated, cooled and cleaned."""
    house, places = _house(env), list(WORK_PLACES.values())
    while house.work_places == WORK_PLACES:
        house.work_places = {
            verb: places[at] for verb, at in zip(WORK_PLACES, rng.permutation(3), strict=True)
        }
