"""The base class of models that planners simulate, and functions on states."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import is_
from random import Random
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np

from cwm_cli.data.spaces import Space

FORMS = ("scalar", "arithmetic", "batched", "table")
"""The forms of a program: itself, its plain arithmetic, a batch of states, a table."""

LARGEST = 1e300
"""Rewards beyond this are checked, so that sums over any horizon stay finite."""

TOLERANCE = 1e-5
"""Maximum difference of equal real numbers, absolute plus relative."""


class Step(NamedTuple):
    """The result of a step; `valid` has the next valid actions, None means all."""

    observation: Any
    reward: float
    terminated: bool
    valid: tuple[int, ...] | None = None


class PossibleStep(NamedTuple):
    """A possible result of a step, with its probability and the next state."""

    probability: float
    step: Step
    state: Any


class EpisodeHistory(NamedTuple):
    """The history of an episode, which is the state of a model with memory.

    `observations` has one more element than `actions` and `rewards`: the first observation.
    """

    observations: tuple[Any, ...]
    actions: tuple[Any, ...] = ()
    rewards: tuple[float, ...] = ()

    def after(self, action: Any, observation: Any, reward: float) -> "EpisodeHistory":
        """Return the history with one more step."""
        return EpisodeHistory(
            (*self.observations, observation), (*self.actions, action), (*self.rewards, reward)
        )

    def continues(self, other: "EpisodeHistory") -> bool:
        """Return whether it begins with another history, with identical objects."""
        count = len(other.actions)
        return (
            count <= len(self.actions)
            and all(map(is_, other.observations, self.observations))
            and all(map(is_, other.actions, self.actions))
            and self.rewards[:count] == other.rewards
        )


class Here(NamedTuple):
    """A state and its observation."""

    observation: Any
    state: Any


class Counter(Protocol):
    """A place for one number, such as a list or shared memory."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Unbatched(Exception):
    """A batch cannot continue exactly as the program would; the text is the reason."""


class Batch(Protocol):
    """A model of many states; the last axis of every array is the lane.

    A batch raises `Unbatched` if it cannot answer exactly as the program would.
    """

    def stand(self, observations: np.ndarray) -> None:
        """Set the states to observations: (components, lanes), or (lanes,) for single integers."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions: (lanes,) if they are integers, otherwise (components, lanes).

        Returns:
            Observations in the shape of `stand`, rewards (lanes,) and terminated (lanes,).
        """

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions as `step` does, but return only rewards and terminated.

        Either may be a single value for all lanes.
        """

    def keep(self, lanes: np.ndarray) -> None:
        """Keep only some lanes, given by numbers or by a mask."""


class Model:
    """Base class of models, which are in one state and step from there.

    A program is a model, and so is a true environment. A state is an observation, or the result of
    `here`.

    Attributes:
        action_space: The actions.
        deterministic: Whether the same action in the same state always has the same result.
        counter: Its first element counts the steps.
        remembers: Whether its state is the history of an episode.
        hides: Whether different states may have equal observations.
        batch: A form that steps many states together, or None.
        examples: (rows, components) recorded observations in whose range to plan, or None if there
            are none, or if observations are not arrays.
        drawn_from: The key of the latest `draw_from`.
        turn: The entry of the observation with the player to move, in a game of two players.
    """

    action_space: Space
    deterministic: bool
    counter: Counter
    remembers: bool = False
    hides: bool = False
    batch: Batch | None = None
    examples: np.ndarray | None = None
    drawn_from: Sequence[int] = (0,)
    turn: str = ""

    @property
    def memoryless(self) -> "Model":
        """The model, reset to its last observation before every step, as published.

        This is the model itself if it saves states exactly, as true environments do.
        """
        return self

    def stand(self, state: Any) -> None:
        """Set the state."""
        raise NotImplementedError

    def here(self) -> Any:
        """Return the current state for `stand`; callers must not modify it."""
        raise NotImplementedError

    def agree(self, one: Any, other: Any) -> bool:
        """Return whether two states with equal observations are equal within the tolerance."""
        return True

    def step(self, action: Any) -> Step:
        """Take an action in the current state."""
        raise NotImplementedError

    def legal(self) -> tuple[int, ...] | None:
        """Return the legal actions in the current state, None if the model does not list them."""
        return None

    def player(self) -> int:
        """Return the player to move in the current state of a game of two players."""
        raise NotImplementedError

    def play_randomly(self, seed: int, limit: int) -> float:
        """Play a game of two players with random legal moves from the current state.

        Args:
            seed: Seed of the moves.
            limit: Maximum number of moves.

        Returns:
            The rewards of the player to move, minus the rewards of the opponent.
        """
        draw, first, total = Random(seed).random, self.player(), 0.0  # noqa: S311  # no secret
        player, legal = first, self.legal()
        for _ in range(limit):
            if not legal:
                break
            step = self.step(legal[int(draw() * len(legal))])
            total += step.reward if player == first else -step.reward
            if step.terminated:
                break
            player, legal = int(step.observation[self.turn]), step.valid
        return total

    def step_all(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take an action in each of several states, all together if the batch can.

        Args:
            observations: (components, lanes) real numbers, one state in each lane.
            actions: (1, *action) one action for all states, or (lanes, *action), where *action is
                the `flat_shape` of the action space.

        Returns:
            Observations (components, lanes), rewards (lanes,) and terminated (lanes,), a bool.
        """
        count = observations.shape[1]
        actions = np.broadcast_to(actions, (count, *actions.shape[1:]))
        if self.batch is not None:
            with suppress(Unbatched):
                self.batch.stand(observations.copy())
                by_component = np.ascontiguousarray(np.moveaxis(actions, 0, -1))
                states, rewards, ends = self.batch.step(by_component)
                self.counter[0] += count
                return (
                    states.astype(float),
                    np.broadcast_to(np.asarray(rewards, float), count),
                    np.broadcast_to(np.asarray(ends, bool), count),
                )
        steps = []
        for state, action in zip(observations.T, self.action_space.unflatten(actions), strict=True):
            self.stand(state.copy())
            steps.append(self.step(action))
        return (
            np.array([step.observation for step in steps], float).reshape(len(steps), -1).T,
            np.array([step.reward for step in steps], float),
            np.array([step.terminated for step in steps], bool),
        )

    def outcomes(self, action: Any) -> Sequence[PossibleStep] | None:
        """Return all possible results of an action, or None if the model cannot list them.

        The probabilities sum to 1, and the state of the model does not change.
        """
        return None

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the random numbers of the model with a key."""
        self.drawn_from = tuple(key)

    def sample_outcomes(self, action: Any, times: int) -> list[PossibleStep]:
        """Return the results of n samples of an action in the current state.

        Equal results are merged, with their share as probability. The samples depend only on the
        state and the action, not on earlier samples.
        """
        start, found = self.here(), dict[Any, list[Any]]()
        before = self.drawn_from
        # Not `hash`, whose values for texts differ between processes.
        is_number = isinstance(action, int | np.integer)
        number = int(action) if is_number else crc32(repr(key(action)).encode())
        self.draw_from([crc32(repr(name(start)).encode()), number])
        for _ in range(times):
            self.stand(start)
            step = self.step(action)
            state = self.here()
            same = found.setdefault(name((state, *step)), [0, step, state])
            same[0] += 1
        self.draw_from(before)
        return [PossibleStep(count / times, step, state) for count, step, state in found.values()]

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        total, factor = 0.0, 1.0
        for action in actions:
            step = self.step(action)
            total += factor * step.reward
            if step.terminated:
                break
            factor *= discount
        return total

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the undiscounted returns of plans from each state, to the end of the episode.

        Args:
            states: The states to start from.
            plans: Actions, of shape (states, plans, steps, *action), where *action is the
                `flat_shape` of the action space. They are never modified.
            draws: Number of times to play each plan, with the same random numbers for all plans.
                0 plays each plan once, without a seed.

        Returns:
            Mean returns of shape (states, plans).
        """
        returns, key, space = np.empty(plans.shape[:2]), self.drawn_from, self.action_space
        for index, state in enumerate(states):
            for number, plan in enumerate(plans[index]):
                total = 0.0
                for draw in range(max(draws, 1)):
                    if draws:
                        self.draw_from((*key, draw))
                    self.stand(state)
                    total += self.play(space.unflatten(plan) if space.children else plan.copy())
                returns[index, number] = total / max(draws, 1)
        if draws:
            self.draw_from(key)
        return returns


def copy_value(value: Any) -> Any:
    """Return a value with copies of all its arrays."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(map(copy_value, value))
    if isinstance(value, dict):
        return {key: copy_value(part) for key, part in value.items()}
    return value


def key(value: Any) -> Any:
    """Return a hashable value that is equal for equal values."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple | list):
        return tuple(map(key, value))
    if isinstance(value, dict):
        return tuple(map(key, value.values()))
    return value


class Named:
    """A state that its observation identifies."""

    __slots__ = ("name", "state")

    def __init__(self, observation: Any, state: Any) -> None:
        self.name = key(observation)
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def name(state: Any) -> Any:
    """Return a hashable name, equal for equal states; unique if the state is not hashable."""
    found = key(state)
    try:
        hash(found)
    except TypeError:
        return object()
    return found


def countable(state: Any) -> bool:
    """Return whether a state has no real numbers, so that it may recur."""
    if isinstance(state, tuple):
        return all(map(countable, state))
    if isinstance(state, dict):
        return all(map(countable, state.values()))
    if isinstance(state, np.ndarray | np.generic):
        return state.dtype.kind in "biuUS"
    return isinstance(state, int | str | bytes | Named)


def close(left: Any, right: Any) -> bool:
    """Return whether two values are equal, real numbers within `TOLERANCE`."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[name], right[name]) for name in left)
    if isinstance(left, np.ndarray | float) and isinstance(right, np.ndarray | float):
        if np.shape(left) != np.shape(right):
            return False
        if {np.asarray(left).dtype.kind, np.asarray(right).dtype.kind} - set("iuf"):
            return np.array_equal(left, right)
        return np.allclose(left, right, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    return type(left) is type(right) and bool(left == right)
