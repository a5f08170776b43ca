"""Environments as models: planners try actions in a copy of the environment.

`Simulator` steps a copy of the environment. `CachingSimulator` takes no step twice; it requires
that observations identify the states. `Opening` makes them with the first rewinder that is exact.

Rewinders are tried from the fastest to the most thorough. Each is tested: the environment is
restored, and must repeat the same steps. Random steps show which attributes change.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy, deepcopy
from functools import partial
from itertools import compress, islice, repeat
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from weakref import WeakKeyDictionary

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.envs.saving import (
    GLOBAL,
    OWN,
    Attributes,
    Findings,
    Values,
    fingerprint,
    instance_objects,
    reseed,
    shared_names,
    survey_attributes,
)
from cwm_cli.envs.spec import EnvironmentSpec, Rewinder, space_of
from cwm_cli.envs.tasks import reward_number
from cwm_cli.envs.variants import disturbance_of
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import (
    Counter,
    Here,
    Model,
    Named,
    Step,
    close,
    copy_value,
    countable,
    key,
)

if TYPE_CHECKING:
    import gymnasium as gym

__all__ = [
    "Attributes",
    "CachingSimulator",
    "Findings",
    "Opening",
    "Simulator",
    "Values",
    "simulator",
]

Binder = Callable[["gym.Env[Any, Any]"], Rewinder]
"""Makes the rewinder of an environment."""

SEQUENCES, STEPS = 20, 10
"""Number of random action sequences that a test takes, and of the steps in each."""


def simulator(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], seed: int
) -> Simulator | CachingSimulator:
    """Return a simulator of an environment.

    Raises:
        CwmError: No rewinder is exact for this environment.
    """
    return Opening.of(spec, env_args).simulator(seed)


class Opening(NamedTuple):
    """The method for simulating an environment, which holds for every instance."""

    spec: EnvironmentSpec
    env_args: Mapping[str, Any]
    bind: Binder
    deterministic: bool
    observed: bool

    @classmethod
    def of(cls, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> Self:
        """Find the method by tests.

        Raises:
            CwmError: No rewinder is exact for this environment.
        """
        with closing(spec.make(**env_args)) as env:
            env.reset(seed=0)  # a checked environment reports wrong results here
            for actions in islice(_random_actions(env), SEQUENCES // 2):
                outcomes(env, actions)
            bind = _exact_binder(spec, env_args, env)
            deterministic = is_deterministic(env, bind(env))
            return cls(spec, env_args, bind, deterministic, deterministic and is_observed(env))

    def simulator(self, seed: int) -> Simulator | CachingSimulator:
        """Return a simulator with its own instance of the environment."""
        env = self.spec.make(**self.env_args)
        rng = np.random.default_rng(seed)
        env.reset(seed=int(rng.integers(2**31)))
        for generator in self.bind(env).generators():
            reseed(generator, rng)
        if "action_space" in vars(env.unwrapped):
            # Planners need no checks of actions, which are slow.
            unchecked = copy(env.unwrapped.action_space)
            always = object.__instancecheck__  # returns True for every value, without Python code
            unchecked.contains = always  # type: ignore[assignment, method-assign]
            env.unwrapped.action_space = unchecked
        disturbance = disturbance_of(env)
        simulator = Simulator(
            env,
            self.bind,
            spec=self.spec,
            deterministic=self.deterministic,
            observed=self.observed,
            hides=bool(disturbance and disturbance.altered),
        )
        return CachingSimulator(simulator) if self.observed else simulator


def _exact_binder(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], env: gym.Env[Any, Any]
) -> Binder:
    """Return the environment's own rewinder, or else the first general one, that is exact."""
    with closing(spec.make(**env_args)) as twin:
        if spec.rewinder and spec.rewinder(twin):
            binders = [cast(Binder, spec.rewinder)]
        else:
            findings = probe(twin)
            everything = Findings(spaces=findings.spaces, common=findings.common, whole=True)
            binders = [partial(Attributes, findings=known) for known in (findings, everything)]
        for bind in binders:
            if is_exact(bind, env, twin):
                return bind
    raise CwmError(f"{spec.id} cannot be saved and restored: plan without --real-env")


class Simulator(Model):
    """A model that steps its own instance of an environment; states are saves of its rewinder.

    Restoring a state leaves the random generators unchanged, so that planning does not foresee the
    random events of the played environment. An episode ends only by `terminated`, never by a time
    limit.

    Args:
        env: The instance to step.
        bind: Makes rewinders.
        spec: The environment, which may list valid actions, and the player to move in a game.
        deterministic: Whether equal actions have equal results.
        observed: Whether observations identify the states.
        hides: Whether observations lack parts of the state.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        bind: Binder,
        *,
        spec: EnvironmentSpec | None = None,
        deterministic: bool = False,
        observed: bool = False,
        hides: bool = False,
    ) -> None:
        self.action_space: Space = space_of(env.action_space, "actions")
        # Environments may check the types of the parts of an action.
        self._casts = self.action_space.kind != "discrete" and not self.action_space.is_float
        self.deterministic = deterministic
        self.counter: Counter = [0]
        self.rewinder = bind(env)
        self._env = env.unwrapped
        self._step = self._env.step  # beneath the wrappers, so no time limit ends an episode
        self._bind = bind
        self._valid_actions = spec.valid_actions if spec else None
        self._game = spec.game if spec else None
        self.turn = self._game.turn if self._game else ""
        self._observed = observed
        self.hides = hides
        self._seen: Any = None
        self._played: WeakKeyDictionary[Any, Rewinder] = WeakKeyDictionary()

    def state_of(self, env: gym.Env[Any, Any], observation: Any) -> Any:
        """Return the state of another instance with the same arguments."""
        if env not in self._played:
            self._played[env] = self._bind(env)
        return self._named(observation, self._played[env].save(chance=False))

    def stand(self, state: Any) -> None:
        """Restore a state."""
        if isinstance(state, Named):
            self._seen, state = state, state.state
        else:
            self._seen, state = state
        self.rewinder.load(state, chance=False)

    def here(self) -> Any:
        """Return the current state."""
        if isinstance(self._seen, Named):  # no step was taken since the state was restored
            return self._seen
        return self._named(self._seen, self.rewinder.save(chance=False))

    def agree(self, one: Any, other: Any) -> bool:
        """Return whether two states are equal, also in parts that observations do not show."""
        return close(one.state, other.state)

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the random generators from a key, so that no decision depends on earlier ones."""
        super().draw_from(key)
        # The last number separates these random numbers from the planner's own.
        rng = np.random.default_rng([*key, 1])
        for generator in self.rewinder.generators():
            if generator not in GLOBAL:  # other code draws from the global ones, too
                reseed(generator, rng)

    def step(self, action: Any) -> Step:
        """Take an action."""
        self.counter[0] += 1
        action = self.action_space.cast(action) if self._casts else action
        observation, reward, terminated, _, _ = self._step(action)
        self._seen = observation
        # Environments may change the returned observation in place at the next step.
        return Step(copy_value(observation), reward_number(reward), bool(terminated), self.legal())

    def legal(self) -> tuple[int, ...] | None:
        """Return the valid actions in the current state, None if the environment lists none."""
        valid = self._valid_actions(self._env) if self._valid_actions else None
        return None if valid is None else tuple(valid)

    def player(self) -> int:
        """Return the player to move in the current state of a game."""
        assert self._game is not None
        return self._game.to_move(self._env)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until the episode ends; return the discounted sum of rewards."""
        # Most time of a planner is spent here, so the loop makes no `Step` and no copy.
        step, count, total, factor = self._step, 0, 0.0, 1.0
        for action in map(self.action_space.cast, actions) if self._casts else actions:
            count += 1
            self._seen, reward, terminated, _, _ = step(action)
            total += factor * (reward if type(reward) is float else reward_number(reward))
            if terminated:
                break
            factor *= discount
        self.counter[0] += count
        return total if isfinite(total) else reward_number(total)

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the sums of rewards of plans from each state, in a batch if the rewinder can."""
        saved = [state.state for state in states]
        answer = self.rewinder.returns(saved, plans) if not draws else None
        if answer is not None:
            self.counter[0] += answer[1]
            return answer[0]
        return super().returns(states, plans, draws)

    def _named(self, observation: Any, state: Any) -> Named | Here:
        # Environments may change the returned observation in place at the next step.
        return Named(observation, state) if self._observed else Here(copy_value(observation), state)


class Place:
    """A state, and the result of each action in it."""

    __slots__ = ("state", "steps")

    def __init__(self, state: Named) -> None:
        self.state = state
        self.steps: dict[Any, tuple[Place, Step]] = {}


class CachingSimulator(Model):
    """A cache for a deterministic simulator whose observations identify its states."""

    deterministic = True

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._places: dict[Named, Place] = {}
        self._here: Any = None
        self.action_space = simulator.action_space
        self._is_discrete = simulator.action_space.kind == "discrete"
        self.counter: Counter = simulator.counter
        self.turn = simulator.turn

    @property
    def rewinder(self) -> Rewinder:
        """The rewinder of the simulated environment."""
        return self._simulator.rewinder

    def state_of(self, env: gym.Env[Any, Any], observation: Any) -> Any:
        """Return the state of another instance with the same arguments."""
        return self._simulator.state_of(env, observation)

    def stand(self, state: Any) -> None:
        """Restore a state."""
        self._here = self._place(state)

    def here(self) -> Any:
        """Return the current state."""
        return self._here.state

    def step(self, action: Any) -> Step:
        """Take an action."""
        self.counter[0] += 1
        name = action if self._is_discrete else key(action)
        self._here, step = self._here.steps.get(name) or self._take(self._here, action)
        return step

    def legal(self) -> tuple[int, ...] | None:
        """Return the valid actions in the current state, None if the environment lists none."""
        self._simulator.stand(self._here.state)
        return self._simulator.legal()

    def player(self) -> int:
        """Return the player to move in the current state of a game."""
        self._simulator.stand(self._here.state)
        return self._simulator.player()

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until the episode ends; return the discounted sum of rewards."""
        if not self._is_discrete:
            return super().play(actions, discount)
        here, count, total, factor = self._here, 0, 0.0, 1.0
        # A copy of the loop over `step`, because planners spend most of their time here.
        for action in actions:
            count += 1
            here, step = here.steps.get(action) or self._take(here, action)
            total += factor * step.reward
            if step.terminated:
                break
            factor *= discount
        self._here = here
        self.counter[0] += count
        return total

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the sums of rewards of plans from each state."""
        return self._simulator.returns(states, plans)

    def _take(self, here: Place, action: Any) -> tuple[Place, Step]:
        simulator = self._simulator
        simulator.stand(here.state)
        step = simulator.step(action)
        self.counter[0] -= 1  # `step` and `play` have counted it
        taken = self._place(simulator.here()), step
        here.steps[action if self._is_discrete else key(action)] = taken
        return taken

    def _place(self, state: Named) -> Place:
        place = self._places.get(state)
        if place is None:
            # Forgetting all is cheaper than tracking the use of places, and rarely happens.
            if len(self._places) >= 200_000:
                self._places.clear()
            place = self._places[state] = Place(state)
        return place


class Outcome(NamedTuple):
    """The results of a step, and of the reset after the end of an episode, for comparisons."""

    observation: Any
    reward: bytes
    terminated: bool
    over: bool
    start: Any


def is_exact(
    bind: Callable[[gym.Env[Any, Any]], Rewinder],
    env: gym.Env[Any, Any],
    twin: gym.Env[Any, Any],
) -> bool:
    """Return whether `env` repeats the steps of an untouched twin from its saved state.

    The twin is stepped through its wrappers, `env` beneath them: the test fails if wrappers change
    the results.
    """
    # Other seeds, so that everything which `load` forgets to restore differs.
    env.reset(seed=1)
    twin.reset(seed=0)
    try:
        mine, other = bind(env), bind(twin)
        sequences = islice(_random_actions(twin), SEQUENCES)
        return all(_agrees(env, mine, twin, other, actions) for actions in sequences)
    except Exception:  # noqa: BLE001  # foreign classes may raise any error if parts are missing
        return False


def _agrees(
    env: gym.Env[Any, Any],
    mine: Rewinder,
    twin: gym.Env[Any, Any],
    other: Rewinder,
    actions: Sequence[Any],
) -> bool:
    """Return whether both environments return the same results twice from the same state."""
    state = other.save()
    expected = outcomes(twin, actions)
    overs = [outcome.over for outcome in expected]
    # The second round shows whether `save` returns what `load` has restored.
    for _ in range(2):
        mine.load(state)
        state = mine.save()
        if outcomes(env.unwrapped, actions, overs) != expected:
            return False
    return True


def outcomes(
    env: gym.Env[Any, Any], actions: Sequence[Any], overs: Sequence[bool | None] = ()
) -> list[Outcome]:
    """Take actions, and reset after the end of an episode.

    Args:
        env: The environment.
        actions: The actions.
        overs: Whether to reset after each action; None follows the environment.
    """
    result = []
    for action, resets in zip(actions, overs or repeat(None), strict=False):
        observation, reward, terminated, truncated, _ = env.step(action)
        over = bool(terminated or truncated) if resets is None else resets
        start = key(env.reset()[0]) if over else None
        number = np.asarray(reward, float).tobytes()  # as bytes, NaN equals NaN
        result.append(Outcome(key(observation), number, bool(terminated), over, start))
    return result


def is_deterministic(env: gym.Env[Any, Any], rewinder: Rewinder, seed: int = 0) -> bool:
    """Return whether equal actions have equal results for any random numbers.

    If steps draw random numbers, this is tested from many states. An effect that occurs once in
    thousands of steps may be missed.
    """
    env.reset(seed=seed)
    inner, rng = env.unwrapped, np.random.default_rng(seed)
    sequences = islice(_random_actions(env), SEQUENCES)
    actions = [action for sequence in sequences for action in sequence]
    for index, action in enumerate(actions):
        state, before = rewinder.save(), _fingerprints(rewinder)
        (outcome,) = outcomes(inner, [action], [False])  # no reset, which may draw numbers
        if before != _fingerprints(rewinder):  # the step has drawn random numbers
            after = rewinder.save()
            ahead = actions[index : index + 3]  # randomness has to show within three steps
            if not _is_certain(inner, rewinder, state, ahead, rng):
                return False
            rewinder.load(after)
        if outcome.terminated:
            inner.reset()
    return True


def is_observed(env: gym.Env[Any, Any]) -> bool:
    """Return whether observations identify the states of a deterministic environment.

    The test uses random actions: the same action after the same observation must always have the
    same outcome. Observations with real numbers are excluded.
    """
    observation, _ = env.reset(seed=0)
    if not countable(observation) or disturbance_of(env):
        return False
    known: dict[Any, Outcome] = {}
    # Within 2000 steps observations repeat often enough to show a contradiction.
    here, sequences = key(observation), islice(_random_actions(env), 2000 // STEPS)
    for action in (action for sequence in sequences for action in sequence):
        [outcome] = outcomes(env, [action])
        # A reset may be random, and a time limit does not depend on the state alone.
        result = outcome._replace(start=None, over=outcome.terminated)
        if known.setdefault((here, key(action)), result) != result:
            return False
        here = outcome.start if outcome.over else outcome.observation
    return True


def _is_certain(
    env: gym.Env[Any, Any],
    rewinder: Rewinder,
    state: Any,
    actions: Sequence[Any],
    rng: np.random.Generator,
) -> bool:
    """Return whether a few actions have equal results in several random futures of a state."""
    futures = []
    # Four futures, as two may agree by chance if an event has a probability near 1/2.
    for _ in range(4):
        rewinder.load(state)
        for generator in rewinder.generators():
            reseed(generator, rng)
        future: list[Outcome] = []
        for action in actions:
            future += outcomes(env, [action], [False])
            if future[-1].terminated:
                break
        futures.append(future)
    return all(future == futures[0] for future in futures)


def _fingerprints(rewinder: Rewinder) -> list[bytes]:
    return [fingerprint(generator) for generator in rewinder.generators()]


def _random_actions(env: gym.Env[Any, Any]) -> Iterator[list[Any]]:
    """Yield random actions without using the environment's own generators."""
    space = deepcopy(env.action_space)  # draws of this copy leave the environment unchanged
    space.seed(0)
    while True:
        yield [space.sample() for _ in range(STEPS)]


def probe(env: gym.Env[Any, Any], seed: int = 0) -> Findings:
    """Step an environment at random, and return which attributes and generators change."""
    inner = env.unwrapped
    inner.reset(seed=seed)
    before = _outside_fingerprints(inner)
    space = deepcopy(inner.action_space)  # the space of the environment must not draw
    space.seed(seed)
    together: set[str] = set()
    constant: dict[str, tuple[Any, object]] | None = None
    for step in range(201):
        if step % 40 == 0:
            surveys = survey_attributes(inner, set(OWN), instance_objects(inner, Findings()))
            together |= shared_names(surveys)
            # Small values are always copied, whether they change or not.
            names = [name for name, found in surveys.items() if found.mutable and found.size > 100]
            large = {name: (value := vars(inner)[name], _pickle(value)) for name in names}
            constant = large if constant is None else _unchanged(constant, large)
        _, _, terminated, truncated, _ = inner.step(space.sample())
        if terminated or truncated:
            inner.reset()
    after = _outside_fingerprints(inner)
    drawn = [old != new for old, new in zip(before, after, strict=True)]
    return Findings(
        constant=frozenset(constant or ()),
        together=frozenset(together),
        spaces=tuple(compress(SPACES, drawn)),
        common=tuple(compress(GLOBAL, drawn[len(SPACES) :])),
    )


def _unchanged(
    first: dict[str, tuple[Any, object]], later: dict[str, tuple[Any, object]]
) -> dict[str, tuple[Any, object]]:
    """Return the attributes that are still the same objects with the same content."""
    return {
        name: (value, content)
        for name, (value, content) in first.items()
        if name in later and later[name][0] is value and later[name][1] == content
    }


def _pickle(value: Any) -> object:
    """Return the pickled value; a value that cannot be pickled equals nothing else."""
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  # foreign classes may raise any error
        return object()


SPACES = ("action_space", "observation_space")


def _outside_fingerprints(env: gym.Env[Any, Any]) -> list[bytes]:
    """Return the fingerprints of the generators of both spaces, and of the global ones."""
    spaces = [getattr(env, name).np_random for name in SPACES]
    return [fingerprint(generator) for generator in (*spaces, *GLOBAL)]
