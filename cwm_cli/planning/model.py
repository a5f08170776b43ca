"""What planners plan with: something that stands at a state and steps from there.

States are copied, named and compared here, too.
"""

from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np

from cwm_cli.data.spaces import Space

FORMS = ("scalar", "arithmetic", "batched", "table")
"""What a program is used as: itself, its plain arithmetic, many states at once, a table."""

LARGEST = 1e300
"""Rewards beyond this are checked: sums over any horizon have to stay finite."""

TOLERANCE = 1e-5
"""Real numbers agree when they differ by less than this, absolute plus relative."""


class Step(NamedTuple):
    """What a step led to; `valid` are the actions that may follow, None where all may."""

    observation: Any
    reward: float
    terminated: bool
    valid: tuple[int, ...] | None = None


class PossibleStep(NamedTuple):
    """What may follow an action, how likely it is, and the state that it leads to."""

    probability: float
    step: Step
    state: Any


class EpisodeHistory(NamedTuple):
    """What happened in an episode so far: the state that plans begin from with memory.

    `observations` are one more than `actions` and `rewards`: the first is where it began.
    """

    observations: tuple[Any, ...]
    actions: tuple[Any, ...] = ()
    rewards: tuple[float, ...] = ()

    def after(self, action: Any, observation: Any, reward: float) -> "EpisodeHistory":
        """Return the history with a step more."""
        return EpisodeHistory(
            (*self.observations, observation), (*self.actions, action), (*self.rewards, reward)
        )

    def continues(self, other: "EpisodeHistory") -> bool:
        """Whether it begins with all of another one: with the very same values."""
        count = len(other.actions)
        return (
            count <= len(self.actions)
            and all(map(is_, other.observations, self.observations))
            and all(map(is_, other.actions, self.actions))
            and self.rewards[:count] == other.rewards
        )


class Here(NamedTuple):
    """A state, and the observation that came with it."""

    observation: Any
    state: Any


class Counter(Protocol):
    """A place for one number, such as a list or shared memory."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Unbatched(Exception):
    """A batch cannot go on as the program would; the text says why."""


class Batch(Protocol):
    """A model at many observations at once; the last axis of every array is the lane.

    Whatever it cannot answer just as the program would is refused: `Unbatched`.
    """

    def stand(self, observations: np.ndarray) -> None:
        """Stand at observations: (components, lanes), or (lanes,) where they are one integer."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards (lanes,) and terminated (lanes,).

        Actions are (lanes,) where they are integers, else (components, lanes).
        """

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions as `step` does, but return rewards and terminated only.

        Either may be a single value for all lanes.
        """

    def keep(self, lanes: np.ndarray) -> None:
        """Go on with some lanes only, given by number or by a mask."""


class Model:
    """Stands at one state at a time, and steps from there: a program, or a true environment.

    A state is an observation, or what `here` has returned. `deterministic` says that the
    same action in the same state always leads to the same; where it does not, `drawn_from` is
    the key that its draws began from. The first element of `counter` counts steps, each once.
    `batch` answers for many observations at once, where there is such a form. One that
    `remembers` stands where the history of an episode leads. With `hides` equal observations
    may be of different states.
    """

    action_space: Space
    deterministic: bool
    counter: Counter
    remembers: bool = False
    hides: bool = False
    batch: Batch | None = None
    drawn_from: Sequence[int] = (0,)

    @property
    def anew(self) -> "Model":
        """The model that is stood at its last observation before every step, as published.

        That is this one where states are saved exactly, as those of true environments are.
        """
        return self

    def stand(self, state: Any) -> None:
        """Stand at a state."""
        raise NotImplementedError

    def here(self) -> Any:
        """Return what leads `stand` back to where the model stands; nobody may change it."""
        raise NotImplementedError

    def agree(self, one: Any, other: Any) -> bool:
        """Whether two states whose observations agree are the same, but for rounding."""
        return True

    def step(self, action: Any) -> Step:
        """Take an action."""
        raise NotImplementedError

    def outcomes(self, action: Any) -> Sequence[PossibleStep] | None:
        """Return all that may follow an action from where the model stands, where it can tell.

        The probabilities sum to 1, and the model stays where it stands. None where it only draws
        one outcome after the other, or is certain.
        """
        return None

    def draw_from(self, key: Sequence[int]) -> None:
        """Have what chance decides from now on follow from a key: equal keys, equal draws."""
        self.drawn_from = tuple(key)

    def drawn(self, action: Any, times: int) -> list[PossibleStep]:
        """Return what so many draws of an action from where the model stands lead to.

        Equal ones are one, with their share. What is drawn follows from the state and the action,
        whatever was drawn before.
        """
        start, found = self.here(), dict[Any, list[Any]]()
        key = self.drawn_from
        self.draw_from([crc32(repr(name(start)).encode()), int(action)])
        for _ in range(times):
            self.stand(start)
            step = self.step(action)
            state = self.here()
            same = found.setdefault(name((state, *step)), [0, step, state])
            same[0] += 1
        self.draw_from(key)
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
        """Return the sums of rewards, up to the end of the episode, of plans from each state.

        `plans` are (states, plans, steps, *shape of an action), the returns
        (states, plans). Nothing that steps can change the plans. With `draws` each plan is
        played so often, in draws that are the same for all plans, and returns are their means.
        """
        returns, key = np.empty(plans.shape[:2]), self.drawn_from
        for index, state in enumerate(states):
            for number, plan in enumerate(plans[index]):
                total = 0.0
                for draw in range(max(draws, 1)):
                    if draws:
                        self.draw_from((*key, draw))
                    self.stand(state)
                    total += self.play(plan.copy())
                returns[index, number] = total / max(draws, 1)
        if draws:
            self.draw_from(key)
        return returns


def copied(value: Any) -> Any:
    """Copy a value, so that whoever gets it cannot change the original."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value


def key(value: Any) -> Any:
    """Return something hashable that is equal for equal values."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple | list):
        return tuple(map(key, value))
    if isinstance(value, dict):
        return tuple(map(key, value.values()))
    return value


class Named:
    """A state that its observation tells from all others."""

    __slots__ = ("name", "state")

    def __init__(self, observation: Any, state: Any) -> None:
        self.name = key(observation)
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def name(state: Any) -> Any:
    """Return something hashable, equal for equal states; a state that cannot be told is its own."""
    named = key(state)
    try:
        hash(named)
    except TypeError:
        return object()
    return named


def countable(state: Any) -> bool:
    """Whether a state holds no real numbers, so that the same one may well come again."""
    if isinstance(state, tuple):
        return all(map(countable, state))
    if isinstance(state, dict):
        return all(map(countable, state.values()))
    if isinstance(state, np.ndarray | np.generic):
        return state.dtype.kind in "biuUS"
    return isinstance(state, int | str | bytes | Named)


def close(left: Any, right: Any) -> bool:
    """Whether two values are equal, real numbers within the tolerance."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[name], right[name]) for name in left)
    if isinstance(left, np.ndarray | float) and isinstance(right, np.ndarray | float):
        return np.shape(left) == np.shape(right) and _near(np.asarray(left), np.asarray(right))
    return type(left) is type(right) and bool(left == right)


def _near(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether numbers differ by no more than the tolerance; what is none has to be equal."""
    if {left.dtype.kind, right.dtype.kind} - set("iuf"):
        return np.array_equal(left, right)
    return np.allclose(left, right, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
