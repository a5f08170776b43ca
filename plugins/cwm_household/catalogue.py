"""The household as environments that can be made, restored, shifted and described."""

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
    CELLS,
    CHORES,
    CLASSES,
    MOST_STEPS,
    OPENABLE,
    PLACES,
    REVISION,
    ROOMS,
    SCHEMA,
    SUITED,
    THERE,
    WORDS,
    WORK,
    Household,
)

if TYPE_CHECKING:
    import gymnasium as gym

GUIDE = """# {name}

A household with {places} places in {rooms} rooms and {there} things, and a mission in words. \
Every episode has another mission, other things, and these in other places; nothing is out of \
sight, also in places that are closed.

## Observation
A dict with two keys.
- `mission` is a text that says what to do. It stays the same for a whole episode.
- `objects` is an array of whole numbers of shape ({slots}, 7), a row for every object. An object \
keeps its row for a whole episode: row 0 is the agent, then come the places, the lamp, and the \
{there} things. The columns are:
  - 0 class: {classes}.
  - 1 x, 2 y: where it is. Every place has an x and a y of its own: {cells}. The lamp is at the \
desk. The agent is at a place, and a thing is where the place is in or on which it lies.
  - 3 state: {states}. Only {openable} are open or closed, and only the lamp is on or off.
  - 4 temperature: {temperatures}. Only things have one; at the start it is that of the room.
  - 5 surface: {surfaces}. Only things have one; at the start they are dirty.
  - 6 held: 1 while the agent holds the thing, otherwise 0. What is held is where the agent is.

## Actions
{actions}.
Valid are the actions that can be carried out:
- Going to any place but the one where the agent is. It takes what it holds with it.
- Opening a closed place and closing an open one, if the agent is there.
- Taking a thing that lies where the agent is, if the agent holds nothing, and the place is open \
or cannot be closed.
- Putting down what is held, in or on the place where the agent is, if that is open or cannot be \
closed.
- {work}
- Using the lamp, if the agent is at the desk: it goes on if it was off, and off if it was on.
Any other action changes nothing.

## Reward and end
The mission is of one of these forms.
{missions}
The step that fulfils it rewards 1 and terminates the episode. All others reward 0. An episode is \
cut off after {most} steps, which the observation does not count."""

KNOWN = (
    "Heating, cooling and cleaning what is held, if the agent is at the {heat}, the {cool} or the "
    "{clean}, and that is open or cannot be closed. What is heated becomes hot, what is cooled "
    "becomes cool, whatever it was before; what is cleaned becomes clean and stays so."
)

SHIFTED = (
    "Heating, cooling and cleaning what is held. Each has a place of its own at which it can be "
    "done, another one than in most households: one of the fridge, the microwave and the sink, "
    "which has to be open if it can be closed. What is heated becomes hot, what is cooled becomes "
    "cool, whatever it was before; what is cleaned becomes clean and stays so."
)


def specify(name: str, families: Sequence[str]) -> EnvironmentSpec:
    """Describe how to make an environment, and what can be done with it."""
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
    """Make an environment, or say in one line why not."""
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import TimeLimit

    most = env_args.pop("max_episode_steps", MOST_STEPS)
    with making(name, env_args, ["max_episode_steps", "render_mode"]):
        env = Household(families, **env_args)
        env.spec = EnvSpec(name, entry_point=partial(Household, families), disable_env_checker=True)
        return TimeLimit(env, most)


def _house(env: gym.Env[Any, Any]) -> Household:
    return cast(Household, env.unwrapped)


def _describe(env: gym.Env[Any, Any]) -> str:
    """Say how the household works; a shifted one does not give away where things are done."""
    house = _house(env)
    fields = {field.name: _numbered(field.values) for field in SCHEMA.fields}
    return GUIDE.format(
        name=env.spec.id if env.spec else "Household",
        places=len(PLACES),
        rooms=len(ROOMS),
        there=THERE,
        slots=2 + len(PLACES) + THERE,
        classes=_numbered(CLASSES),
        cells=", ".join(
            f"the {name} ({x}, {y})" for name, (x, y) in zip(PLACES, CELLS, strict=True)
        ),
        openable=", ".join(f"the {name}" for name in OPENABLE),
        states=fields["state"],
        temperatures=fields["temperature"],
        surfaces=fields["surface"],
        actions=_numbered(ACTIONS),
        work=KNOWN.format(**WORK) if house.work == WORK else SHIFTED,
        missions="\n".join(map(_form, house.families)),
        most=MOST_STEPS,
    )


def _form(family: str) -> str:
    """Say what the missions of a family are like, and when one is fulfilled."""
    kinds = ", ".join(SUITED[family])
    example = next(words for words, chore in CHORES.items() if chore.family == family)
    if family == "examine":
        rule = "the agent holds the thing at the desk, and the lamp is on"
    else:
        how = f"is {WORDS[family].strip()}, " if WORDS[family] else ""
        rule = f"the thing {how}lies in or on the place, and is not held"
    return f"- {example!r}, with one of {kinds}: fulfilled when {rule}."


def _numbered(names: Sequence[str]) -> str:
    """Write names with their numbers."""
    return ", ".join(f"{number} {name}" for number, name in enumerate(names))


def _versions() -> Mapping[str, str]:
    """Name what decides how the household goes, with its versions."""
    return {"household": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}


def _shift(env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
    """Draw anew where things are heated, cooled and cleaned."""
    house, places = _house(env), list(WORK.values())
    while house.work == WORK:
        house.work = {verb: places[at] for verb, at in zip(WORK, rng.permutation(3), strict=True)}
