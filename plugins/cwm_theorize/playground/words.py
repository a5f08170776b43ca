"""The playground in words, and its environment spec."""

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
    GRASP,
    GROWN,
    HANDS,
    MAX_EQUAL_THINGS,
    MAX_STEPS,
    NAMES,
    NOTHING,
    RELEASE_ALL,
    RELEASE_FIRST,
    REVISION,
    SPECIES,
    START_COUNTS,
    THINGS,
    TYPES,
    Playground,
    PlaygroundState,
    describe_scene,
    scene_of,
    solution,
)

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.dataset import Transition

GUIDE = """A playground. On the ground are seeds ({plant}), water, babies of small animals \
({small}) and of big animals ({big}). You can go to a thing on the ground, by its name, and stand \
on it; grasp the thing that you stand on, if you hold fewer than two things; release one held \
thing, or both, if this makes something grow. Each action has one result: you stand on a thing; \
you hold one thing or two, in the order of grasping; or a plant, a small animal or a big animal \
has grown. A grown thing is under your feet, and the things that it grew from are gone."""

DESCRIPTION = """# Playground

{guide}

## Observation
An array of {numbers} integers.
- The first {kinds} are the counts of each thing on the ground: {things}. Held things are not on \
the ground.
- Then follow the number of the thing under foot, of the first held thing and of the second; 0 \
means nothing. The thing under foot is included in the counts.

## Actions
0 to {last} go to the thing with that number; {rest}. Valid actions are: go to a thing on the \
ground; grasp, with a thing under foot and a free hand; release the first held thing, the second, \
or both, if something grows from the released things and the thing under foot. After a grasp, \
nothing is under foot. If the first held thing is released, the second becomes the first. An \
invalid action changes nothing.

## Reward and end
The goal is to {goal}. The step that reaches it has reward 1 and terminates the episode; all other \
steps have reward 0. An episode is truncated after {most} steps; the observation does not include \
the number of steps. It begins with {drawn} water, as many seeds of different kinds, one baby of a \
small animal and one of a big animal."""

GOAL_WORDS = {
    "plant": "grow a plant",
    "small": "grow a small animal",
    "big": "grow a small animal and a big one",
}
"""The goals in words, by name."""

STANDING, ONE, TWO = "standing", "holding 1", "holding 2"
"""Kinds of change without growth."""
GREW = {"plant": "plant grown", "small": "small animal grown", "big": "big animal grown"}
"""Kinds of change with growth, by category."""

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
"""The kind of each thing, in one or two words."""

_NUMBERS = {NAMES[thing]: thing for thing in THINGS}
_NAMED = ("nothing", *(NAMES[thing] for thing in THINGS))


class PlaygroundWords(TextView):
    """The text view of the playground; the facts are the verb and the things involved."""

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
    goals = tuple(GOAL_WORDS.values())

    def __init__(self, goal: str) -> None:
        self._goal = goal

    def guide(self) -> str:
        """Describe the playground, without the rules of growth."""
        return _fill_in(GUIDE)

    def state(self, observation: Any) -> str:
        """Return the state in words."""
        return describe_scene(scene_of(observation))

    def legal(self, observation: Any) -> Sequence[int]:
        """Return the valid actions."""
        return tuple(scene_of(observation).legal())

    def action(self, observation: Any, action: int) -> str:
        """Return the action in words, with the names of its things."""
        if action < GRASP:
            return f"You go to the {NAMES[action]}."
        scene = scene_of(observation)
        if action == GRASP:
            return f"You grasp the {NAMES[scene.foot]}."
        return f"You release {_listed(scene.released(action))}."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return the verb and its objects; several released things have no kind."""
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
        """Return the recorded change.

        Raises:
            CwmError: The action was not valid.
        """
        scene = scene_of(row.observation)
        if row.action not in scene.legal():
            name = ACTIONS[row.action]
            raise CwmError(f"{name!r} is not possible in {describe_scene(scene)!r}")
        return _change(row.action, scene_of(row.next_observation))

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return standing on each thing, holding one or two things, and each possible growth."""
        scene = scene_of(observation)
        return _candidates(tuple(sorted((*scene.ground, *scene.held))))

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return which candidates result from a valid action."""
        scene = scene_of(observation)
        there = {_change(action, scene.after(action)).text for action in scene.legal()}
        return [change.text in there for change in self.candidates(observation)]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return the state after a change; None if the change is impossible in this state."""
        after = _state_after_change(scene_of(observation), action, change)
        if after is None:
            return None
        done = after.reached(self._goal)
        return Consequence(after.numbers(), float(done), done)

    def features(self, observation: Any) -> np.ndarray:
        """Return counts of the things on the ground, under foot, held first and held second.

        Counts are by type, growth and category, as a vector.
        """
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
        names = {words: name for name, words in GOAL_WORDS.items()}
        if goal not in names:
            raise CwmError(f"unknown goal {goal!r}: choose one of {', '.join(names)}")
        return solution(scene_of(observation), names[goal])


def _categories() -> np.ndarray:
    """Return a (types, growth, categories) array: 1 at the category of each type."""
    places = np.zeros((GROWN, 2, len(SPECIES)))
    for kind, category in enumerate(CATEGORIES):
        if category:
            places[kind, :, list(SPECIES).index(category)] = 1
    return places


_PLACES = _categories()


def _listed(things: Sequence[int]) -> str:
    return " and ".join(f"the {NAMES[thing]}" for thing in things)


@lru_cache(maxsize=4096)  # states with equal things have equal candidates
def _candidates(things: tuple[int, ...]) -> tuple[Change, ...]:
    """Return standing on each thing, holding each one or pair, and each possible growth."""
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
    """Return the change after a valid action."""
    if action < GRASP:
        return _standing(after.foot)
    return _holding(after.held) if action == GRASP else _grown(after.foot)


def _state_after_change(
    scene: PlaygroundState, action: int, change: Change
) -> PlaygroundState | None:
    """Return the state after a change; None if the change is impossible in this state.

    It uses the words and the description only, not the hidden rules.
    """
    named = [_NUMBERS[name] for name in change.fields.values()]
    if change.kind == STANDING:
        return scene._replace(foot=named[0]) if named[0] in scene.ground else None
    if change.kind in (ONE, TWO):
        return _state_with_held(scene, tuple(named))
    if not (scene.released(action) and scene.foot):
        return None
    after = scene.growing(action, named[0])
    return after if after.ground.count(named[0]) <= MAX_EQUAL_THINGS else None


def _state_with_held(scene: PlaygroundState, held: tuple[int, ...]) -> PlaygroundState | None:
    """Return the state with exactly these things in the hands; None if one is missing."""
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
    """Return the spec of a playground."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=lambda env: _fill_in(DESCRIPTION, GOAL_WORDS[_playground(env).goal]),
        versions=_versions,
        valid_actions=lambda env: _playground(env).valid_actions(),
        rewinder=lambda env: Values(env, "scene"),
        restore=lambda env, observation: _playground(env).restore(observation),
        action_names=lambda env: ACTIONS,
        text=lambda env: PlaygroundWords(_playground(env).goal),
    )


def _make(name: str, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make a playground; `making` turns invalid arguments into one-line errors."""
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import TimeLimit

    most = env_args.pop("max_episode_steps", MAX_STEPS)
    with making(name, env_args, ["goal", "max_episode_steps", "render_mode"]):
        env = Playground(**env_args)
        env.spec = EnvSpec(name, entry_point=partial(Playground), disable_env_checker=True)
        return TimeLimit(env, most)


def _playground(env: gym.Env[Any, Any]) -> Playground:
    return cast(Playground, env.unwrapped)


def _fill_in(text: str, goal: str = "") -> str:
    """Fill the species, numbers and names of things into a text."""
    species = {category: ", ".join(of) for category, of in SPECIES.items()}
    return text.format(
        guide=GUIDE.format(**species),
        numbers=2 * GROWN + 1 + HANDS,
        kinds=2 * GROWN,
        things=", ".join(f"{thing} {NAMES[thing]}" for thing in THINGS),
        last=GRASP - 1,
        rest=", ".join(f"{GRASP + more} {verb}" for more, verb in enumerate(ACTIONS[GRASP:])),
        goal=goal,
        most=MAX_STEPS,
        drawn=dict(START_COUNTS)["plant"],
        **species,
    )


def _versions() -> Mapping[str, str]:
    """Return the versions that determine the dynamics."""
    return {"playground": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}
