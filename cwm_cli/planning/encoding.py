"""Actions of any countable or bounded space, encoded as the actions that planners choose.

Planners choose a number of a `Discrete` space, or real numbers of a bounded `Box`. Two
encodings convert other actions:

- `CountedActions`: a number for each combination, if there are few.
- `NumberedActions`: real numbers for the components. Whole numbers are rounded, and a category has
  a score for each of its values.

`EncodedModel` is a model with encoded actions; the model behind it receives the real ones.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Leaf, Space
from cwm_cli.planning.model import Model, PossibleStep, Step, copy_value

MAX_COMBINATIONS = 1_000
"""Maximum number of combinations to list, because planners try every one in every situation."""

MAX_CATEGORIES = 10
"""Whole numbers with more values are rounded: a score for each value would need many samples."""


class ActionEncoding:
    """Base class of encodings.

    Attributes:
        actions: The space of the real actions.
        space: The space of the encoded actions: Discrete, or a flat Box of real numbers.
    """

    def __init__(self, actions: Space, space: Space) -> None:
        self.actions, self.space = actions, space

    def arrays(self, codes: np.ndarray) -> np.ndarray:
        """Return actions (..., *flat_shape) of encoded actions (..., *shape of `space`)."""
        raise NotImplementedError

    def decode(self, code: Any) -> Any:
        """Return one action, with parts of int64 and float64, as programs receive it."""
        [action] = self.actions.unflatten(self.arrays(np.asarray(code)[None]))
        return action


class CountedActions(ActionEncoding):
    """The number of each combination; the last component changes fastest."""

    def __init__(self, actions: Space) -> None:
        count = int(actions.cardinality)
        super().__init__(actions, Space("discrete", low=(0,), high=(count - 1,)))
        rest, columns = np.arange(count), list[np.ndarray]()
        for low, high in reversed(_bounds(actions)):
            columns.insert(0, rest % int(high - low + 1) + int(low))
            rest = rest // int(high - low + 1)
        flat = np.stack(columns, -1) if columns else np.zeros((count, 0), np.int64)
        self._table: np.ndarray = flat.reshape(count, *actions.flat_shape)
        self._values = actions.unflatten(self._table)

    def arrays(self, codes: np.ndarray) -> np.ndarray:
        """Return the actions of numbers (...)."""
        actions: np.ndarray = self._table[codes]
        return actions

    def decode(self, code: Any) -> Any:
        """Return a copy of the action of a number, because programs may change it."""
        return copy_value(self._values[int(code)])


class NumberedActions(ActionEncoding):
    """Real numbers for the components of a bounded space.

    A real component is its own number. A whole number is a real number that is rounded. A category
    with 3 to `MAX_CATEGORIES` values has a score for each value, and the highest score counts.
    """

    def __init__(self, actions: Space) -> None:
        low, high = list[float](), list[float]()
        self._rounded, self._categories = list[int](), list[tuple[int, int, int]]()
        self._sources = list[int]()  # the first number of each component
        leaves = [leaf.space for leaf in actions.leaves("")]
        ranges = [
            (leaf, *pair) for leaf in leaves for pair in zip(leaf.low, leaf.high, strict=True)
        ]
        for place, (leaf, least, most) in enumerate(ranges):
            count = most - least + 1
            self._sources.append(len(low))
            if leaf.kind in ("discrete", "multidiscrete") and 3 <= count <= MAX_CATEGORIES:
                self._categories.append((place, int(count), int(least)))
                low += [-1.0] * int(count)
                high += [1.0] * int(count)
                continue
            margin = 0.0 if leaf.is_float else 0.5  # so that each whole number has an equal share
            self._rounded += [] if leaf.is_float else [place]
            low.append(least - margin)
            high.append(most + margin)
        super().__init__(actions, Space("box", "float64", (len(low),), tuple(low), tuple(high)))
        self._low, self._high = np.array(_bounds(actions), float).reshape(-1, 2).T
        self._is_whole = not actions.children and not actions.is_float

    def arrays(self, codes: np.ndarray) -> np.ndarray:
        """Return the actions of real numbers (..., numbers)."""
        actions = codes[..., self._sources].astype(float)
        for place, count, least in self._categories:
            first = self._sources[place]
            actions[..., place] = codes[..., first : first + count].argmax(axis=-1) + least
        if self._rounded:
            low, high = self._low[self._rounded], self._high[self._rounded]
            actions[..., self._rounded] = np.clip(np.rint(actions[..., self._rounded]), low, high)
        shaped = actions.reshape(*codes.shape[:-1], *self.actions.flat_shape)
        return shaped.astype(np.int64) if self._is_whole else shaped


class EncodedModel(Model):
    """A model whose actions are encoded; the model behind it receives the real actions."""

    def __init__(self, model: Model, encoding: ActionEncoding) -> None:
        self._model, self.encoding = model, encoding
        self.action_space = encoding.space
        self.deterministic, self.counter = model.deterministic, model.counter
        self.remembers, self.hides = model.remembers, model.hides
        self.examples = model.examples

    @property
    def memoryless(self) -> Model:
        """The model, reset to its last observation before every step."""
        return encode_actions(self._model.memoryless, self.encoding)

    def stand(self, state: Any) -> None:
        """Set the state."""
        self._model.stand(state)

    def here(self) -> Any:
        """Return the current state."""
        return self._model.here()

    def agree(self, one: Any, other: Any) -> bool:
        """Return whether two states are equal within the tolerance."""
        return self._model.agree(one, other)

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the random numbers of the model."""
        super().draw_from(key)
        self._model.draw_from(key)

    def step(self, action: Any) -> Step:
        """Take an encoded action."""
        return self._model.step(self.encoding.decode(action))

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take encoded actions; return the discounted sum of rewards."""
        return self._model.play([self.encoding.decode(action) for action in actions], discount)

    def outcomes(self, action: Any) -> Sequence[PossibleStep] | None:
        """Return all possible results of an encoded action, if the model lists them."""
        return self._model.outcomes(self.encoding.decode(action))

    def sample_outcomes(self, action: Any, times: int) -> list[PossibleStep]:
        """Return the results of n samples of an encoded action."""
        return self._model.sample_outcomes(self.encoding.decode(action), times)

    def step_all(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take an encoded action in each of several states."""
        return self._model.step_all(observations, self.encoding.arrays(actions))

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the returns of plans of encoded actions from each state."""
        return self._model.returns(states, self.encoding.arrays(plans), draws)


def encode_actions(model: Model, encoding: ActionEncoding) -> EncodedModel:
    """Return a model with encoded actions, the same object for the same model and encoding."""
    # Planners identify a model by its `id`, so that they can keep tables of its values.
    known: dict[ActionEncoding, EncodedModel] = vars(model).setdefault("encoded", {})
    if encoding not in known:
        known[encoding] = EncodedModel(model, encoding)
    return known[encoding]


def find_encoding(
    actions: Space, serves: Callable[[Space], bool], *, prefers_numbers: bool = False
) -> ActionEncoding | None:
    """Return the first encoding of a space that a planner serves, or None."""
    encodings = list_encodings(actions)
    ordered = encodings[::-1] if prefers_numbers else encodings
    return next((each for each in ordered if serves(each.space)), None)


@lru_cache(maxsize=64)
def list_encodings(actions: Space) -> tuple[ActionEncoding, ...]:
    """Return the encodings of a space; none for a space that planners choose from directly."""
    if actions.kind == "discrete" or actions.is_float or find_unplannable(actions):
        return ()
    encodings: tuple[ActionEncoding, ...] = (NumberedActions(actions),)
    if actions.cardinality <= MAX_COMBINATIONS:
        return (CountedActions(actions), *encodings)
    return encodings


def find_unplannable(actions: Space) -> Leaf | None:
    """Return the first part of an action that is a text or has no finite bounds."""
    for leaf in actions.leaves("actions"):
        if leaf.space.kind == "text" or not all(map(isfinite, leaf.space.low + leaf.space.high)):
            return leaf
    return None


def _bounds(actions: Space) -> list[tuple[float, float]]:
    """Return the lowest and the highest value of each component."""
    leaves = [leaf.space for leaf in actions.leaves("")]
    return [pair for leaf in leaves for pair in zip(leaf.low, leaf.high, strict=True)]
