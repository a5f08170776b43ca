"""The playground in words, and what `cwm` has to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cwm_cli.envs.simulators import Values
from cwm_cli.envs.spec import EnvironmentSpec, making
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.errors import CwmError
from cwm_theorize.playground.playground import (
    ACTIONS,
    CATEGORIES,
    DRAWN,
    GRASP,
    GROWN,
    HANDS,
    MOST_ALIKE,
    MOST_STEPS,
    NAMES,
    NOTHING,
    RELEASE_ALL,
    RELEASE_FIRST,
    REVISION,
    SPECIES,
    THINGS,
    TYPES,
    Playground,
    PlaygroundState,
    in_words,
    scene_of,
    solution,
)

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.dataset import Transition

GUIDE = """A playground. There lie seeds ({plant}), water, babies of small animals ({small}) and \
of big animals ({big}). You can go to a thing that lies there, by its name, and stand on it; grasp \
what you stand on, if you hold fewer than two things; release one thing that you hold, or both \
of them, where something comes of that. What happens is one of these: you stand on a thing, you \
hold one thing or two, in the order in which you took them, or a plant, a small or a big animal \
has grown. What grows lies under your feet, and what it has grown from is gone."""

DESCRIPTION = """# Playground

{guide}

## Observation
An array of {numbers} whole numbers.
- The first {kinds} say how many of each thing lie there: {things}. What is held does not lie there.
- Then comes the number of the thing under foot, and of the first and the second thing that are \
held, 0 for nothing. What is under foot is counted among the things that lie there.

## Actions
0 to {last} go to the thing of that number; {rest}. Valid are going to things that lie there, \
grasping with something under foot and a free hand, and releasing what something comes of, \
together with what is under foot: the first or the second thing that is held, or both at once. \
After a grasp nothing is under foot. What is held second becomes the first when that is released. \
An action that is not valid changes nothing.

## Reward and end
The goal is to {goal}. The step that reaches it rewards 1 and terminates the episode, all others \
reward 0. An episode is cut off after {most} steps, which the observation does not count. It \
begins with {drawn} water, as many seeds of different kinds, one baby of a small animal and one of \
a big animal."""

WORDED = {
    "plant": "grow a plant",
    "small": "grow a small animal",
    "big": "grow a small animal and a big one",
}
"""The goals in words, by name."""

STANDING, ONE, TWO = "standing", "holding 1", "holding 2"
GREW = {"plant": "plant grown", "small": "small animal grown", "big": "big animal grown"}
"""Kinds of change."""

VERBS = ("go to", "grasp", "release", "release all")
KINDS = tuple(
    {
        "": "nothing",
        "water": "water",
        "plant": "plant" if thing >= GROWN else "seed",
        "small": "small animal" if thing >= GROWN else "small baby",
        "big": "big animal" if thing >= GROWN else "big baby",
    }[CATEGORIES[thing % GROWN]]
    for thing in range(2 * GROWN)
)
"""The kind of each thing, in a word or two."""

_NUMBERS = {NAMES[thing]: thing for thing in THINGS}
_NAMED = ("nothing", *(NAMES[thing] for thing in THINGS))
_SPECIES = TYPES[2:]


class PlaygroundWords(TextView):
    """The playground in words: who does what, with what, on what."""

    kinds = (STANDING, TWO, ONE, *GREW.values())
    vocabulary: Mapping[str, tuple[str, ...]] = {
        "verb": VERBS,
        "target": _NAMED,
        "under foot": _NAMED,
        "kind under foot": tuple(dict.fromkeys(KINDS)),
        "species under foot": TYPES,
        "held": _NAMED,
        "also held": _NAMED,
        "kind released": tuple(dict.fromkeys(KINDS)),
        "species released": TYPES,
    }
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = {
        STANDING: {"object": _NAMED[1:]},
        TWO: {"first": _NAMED[1:], "second": _NAMED[1:]},
        ONE: {"object": _NAMED[1:]},
        **{kind: {"species": SPECIES[category]} for category, kind in GREW.items()},
    }
    goals = tuple(WORDED.values())

    def __init__(self, goal: str) -> None:
        self._goal = goal

    def guide(self) -> str:
        """Describe the playground, and nothing of what grows from what."""
        return _described(GUIDE)

    def state(self, observation: Any) -> str:
        """Say what lies there, what is under foot, and what is held."""
        return in_words(scene_of(observation))

    def legal(self, observation: Any) -> Sequence[int]:
        """Return the actions that can be carried out."""
        return tuple(scene_of(observation).legal())

    def action(self, observation: Any, action: int) -> str:
        """Say what is done, by the names of the things."""
        if action < GRASP:
            return f"You go to the {NAMES[action]}."
        scene = scene_of(observation)
        if action == GRASP:
            return f"You grasp the {NAMES[scene.foot]}."
        return f"You release {_listed(scene.released(action))}."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return who does what, with what, on what; several things released have no kind."""
        scene = scene_of(observation)
        first, second = (*scene.held, NOTHING, NOTHING)[:HANDS]
        given = scene.released(action)
        released = given[0] if len(given) == 1 else NOTHING
        verb = max(0, action - GRASP + 1) if action <= RELEASE_FIRST else 2
        return {
            "verb": "release all" if action == RELEASE_ALL else VERBS[verb],
            "target": NAMES[action] if action < GRASP else "nothing",
            "under foot": NAMES[scene.foot],
            "kind under foot": KINDS[scene.foot],
            "species under foot": TYPES[scene.foot % GROWN],
            "held": NAMES[first],
            "also held": NAMES[second],
            "kind released": KINDS[released],
            "species released": TYPES[released % GROWN],
        }

    def change(self, row: Transition) -> Change:
        """Say what followed; `CwmError` where the action could not be carried out."""
        scene = scene_of(row.observation)
        if row.action not in scene.legal():
            name = ACTIONS[row.action]
            raise CwmError(f"{name!r} is not possible in {in_words(scene)!r}")
        return _change(row.action, scene_of(row.next_observation))

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return standing on each thing, holding each one or two, and all that could grow."""
        scene = scene_of(observation)
        return _candidates(tuple(sorted((*scene.ground, *scene.held))))

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return which candidates an action that can be carried out leads to."""
        scene = scene_of(observation)
        there = {_change(action, scene.after(action)).text for action in scene.legal()}
        return [change.text in there for change in self.candidates(observation)]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return the scene that a change tells; what has grown was made of what is at hand."""
        after = _told(scene_of(observation), action, change)
        if after is None:
            return None
        done = after.reached(self._goal)
        return Consequence(after.numbers(), float(done), done)

    def features(self, observation: Any) -> np.ndarray:
        """Count what is seen, under foot, held first and second, by type, growth and category."""
        *_, foot, first, second = np.asarray(observation).tolist()
        counts = np.zeros((2 + HANDS, *_PLACES.shape))
        counts[0] = np.asarray(observation)[: 2 * GROWN].reshape(2, GROWN).T[:, :, None] * _PLACES
        for slot, thing in enumerate((foot, first, second), 1):
            if thing:
                grown, kind = divmod(thing, GROWN)
                counts[slot, kind, grown] = _PLACES[kind, grown]
        return counts.ravel()

    def solution(self, observation: Any, goal: str) -> Sequence[int]:
        """Return the fewest actions that reach a goal."""
        names = {words: name for name, words in WORDED.items()}
        if goal not in names:
            raise CwmError(f"unknown goal {goal!r}: choose one of {', '.join(names)}")
        return solution(scene_of(observation), names[goal])


def _categories() -> np.ndarray:
    """Return (types, growth, categories): 1 at the category of each type, in both states."""
    places = np.zeros((GROWN, 2, len(SPECIES)))
    for kind, category in enumerate(CATEGORIES):
        if category:
            places[kind, :, list(SPECIES).index(category)] = 1
    return places


_PLACES = _categories()


def _listed(things: Sequence[int]) -> str:
    return " and ".join(f"the {NAMES[thing]}" for thing in things)


@lru_cache(maxsize=4096)  # scenes of the same things have the same, which are told apart once
def _candidates(things: tuple[int, ...]) -> tuple[Change, ...]:
    """Return standing on each of some things, holding each or two of them, and what could grow."""
    each = sorted({*things})
    pairs = ((one, other) for one in each for other in each)
    return (
        *map(_standing, each),
        *(_holding((thing,)) for thing in each),
        *(_holding(pair) for pair in pairs if pair[0] != pair[1] or things.count(pair[0]) > 1),
        *map(_grown, PlaygroundState(things).products()),
    )


@cache
def _standing(thing: int) -> Change:
    return Change(f"You are standing on the {NAMES[thing]}.", STANDING, {"object": NAMES[thing]})


@cache
def _holding(things: tuple[int, ...]) -> Change:
    names = [NAMES[thing] for thing in things]
    kind, fields = ONE, {"object": names[0]}
    if len(names) == HANDS:
        kind, fields = TWO, {"first": names[0], "second": names[1]}
    return Change(f"You are holding {_listed(things)}.", kind, fields)


@cache
def _grown(thing: int) -> Change:
    kind = GREW[CATEGORIES[thing % GROWN]]
    return Change(f"The {NAMES[thing]} has grown.", kind, {"species": NAMES[thing]})


def _change(action: int, after: PlaygroundState) -> Change:
    """Say what has followed an action that was carried out."""
    if action < GRASP:
        return _standing(after.foot)
    return _holding(after.held) if action == GRASP else _grown(after.foot)


def _told(scene: PlaygroundState, action: int, change: Change) -> PlaygroundState | None:
    """Return the scene that a change tells, None where it has no sense there.

    It goes by the words and by what the guide says of them, never by what could really follow.
    """
    named = [_NUMBERS[name] for name in change.fields.values()]
    if change.kind == STANDING:
        return scene._replace(foot=named[0]) if named[0] in scene.ground else None
    if change.kind in (ONE, TWO):
        return _holding_now(scene, tuple(named))
    if not (scene.released(action) and scene.foot):
        return None
    after = scene.growing(action, named[0])
    return after if after.ground.count(named[0]) <= MOST_ALIKE else None


def _holding_now(scene: PlaygroundState, held: tuple[int, ...]) -> PlaygroundState | None:
    """Return the scene in which just these things are held, taken from where they lie."""
    ground, foot, taken = [*scene.ground], scene.foot, [*held]
    for thing in scene.held:
        if thing not in taken:
            return None
        taken.remove(thing)
    for thing in taken:
        if thing not in ground:
            return None
        ground.remove(thing)
        foot = NOTHING if thing == foot else foot
    return PlaygroundState(tuple(ground), foot, held)


def specify(name: str) -> EnvironmentSpec:
    """Describe how to make a playground, and what can be done with it."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=lambda env: _described(DESCRIPTION, WORDED[_playground(env).goal]),
        versions=_versions,
        valid_actions=lambda env: _playground(env).valid_actions(),
        rewinder=lambda env: Values(env, "scene"),
        restore=lambda env, observation: _playground(env).restore(observation),
        action_names=lambda env: ACTIONS,
        text=lambda env: PlaygroundWords(_playground(env).goal),
    )


def _make(name: str, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make a playground, or say in one line why not."""
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import TimeLimit

    most = env_args.pop("max_episode_steps", MOST_STEPS)
    with making(name, env_args, ["goal", "max_episode_steps", "render_mode"]):
        env = Playground(**env_args)
        env.spec = EnvSpec(name, entry_point=partial(Playground), disable_env_checker=True)
        return TimeLimit(env, most)


def _playground(env: gym.Env[Any, Any]) -> Playground:
    return cast(Playground, env.unwrapped)


def _described(text: str, goal: str = "") -> str:
    """Fill in what there is to know of the things."""
    species = {category: ", ".join(of) for category, of in SPECIES.items()}
    return text.format(
        guide=GUIDE.format(**species),
        numbers=2 * GROWN + 1 + HANDS,
        kinds=2 * GROWN,
        things=", ".join(f"{thing} {NAMES[thing]}" for thing in THINGS),
        last=GRASP - 1,
        rest=", ".join(f"{GRASP + more} {verb}" for more, verb in enumerate(ACTIONS[GRASP:])),
        goal=goal,
        most=MOST_STEPS,
        drawn=dict(DRAWN)["plant"],
        **species,
    )


def _versions() -> Mapping[str, str]:
    """Name what decides how the playground goes, with its versions."""
    return {"playground": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}
