"""The situations that can be reached in a program, and what every action leads to in each."""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Batch, Model, Step, Unbatched, name

AT_ONCE = 4_000
"""Steps that are taken in a batch at once: enough to make it worth while, few enough for memory."""

STEPS = 60_000
"""Steps of the program for one table: about a second."""

MOST_SETBACKS = 3
"""So often a batch may refuse what is asked; then the program answers alone."""


def actions_of(space: Space) -> list[Any]:
    """Return all actions of a space of whole numbers, in order."""
    if space.kind == "discrete":
        return list(range(int(space.low[0]), int(space.high[0]) + 1))
    if space.children:
        parts = list(product(*(actions_of(child) for child in space.children)))
        if space.kind == "tuple":
            return parts
        return [dict(zip(space.keys, part, strict=True)) for part in parts]
    bounds = zip(space.low, space.high, strict=True)
    ranges = [range(int(low), int(high) + 1) for low, high in bounds]
    dtype = np.dtype(space.dtype)
    return [np.array(values, dtype).reshape(space.shape) for values in product(*ranges)]


def reachable(  # options that are plain data
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    space: dict[str, Any],
    most: int = 6_000,
    width: int = 0,
    apart: Sequence[int] = (),
    enough: float | None = None,
) -> dict[str, np.ndarray]:
    """Take every action in every situation that can be reached, the nearest first.

    `arrays` are the observations (rows, ...) to begin from, by leaf of the `space` of
    observations. Situations are numbered: first these rows, then those that are found, whose
    `observations` are returned. `tried` are the numbers of those in which actions were taken, one
    row each in `following` (-1 where the program failed), `rewards` and `terminated`. It goes on
    until there are no more, or `most` situations, or too many steps. With a `width` only such
    situations are gone on from in which some so many numbers are together for the first time
    (iterated width), apart for each combination of the numbers in the places `apart`. An
    episode that ends with a reward of `enough` is all that is looked for.

    Lipovetzky and Geffner, Width and serialization of classical planning problems, 2012, and
    Best-first width search, 2017.
    """
    search = _Search(model, Space.from_json(space), arrays)
    novelty = _Novelty(width, apart) if width else None
    budget = model.counter[0] + STEPS
    while search.waiting and len(search.states) < most and model.counter[0] < budget:
        if enough is not None and search.best_end >= enough:
            break
        size = min(AT_ONCE // len(search.actions) + 1, most - len(search.states))
        search.expand(size, novelty)
    return search.found()


DRAWN = 32
"""Draws of a step where a program only draws: chances are then known to a tenth."""


def outcomes(
    model: Model, arrays: Mapping[str, np.ndarray], *, space: dict[str, Any], most: int = 6_000
) -> dict[str, np.ndarray]:
    """List all that can follow each action in every situation that can be reached.

    `arrays` are the observations to begin from, as for `reachable`, and situations are numbered
    and returned as there. Every line of `before`, `action`, `probability`, `following`, `rewards`
    and `terminated` is an outcome. What a program only draws is drawn so many times.
    """
    search = _Search(model, Space.from_json(space), arrays)
    lines: list[tuple[Any, ...]] = []
    budget = model.counter[0] + STEPS
    while search.waiting and len(search.states) < most and model.counter[0] < budget:
        lines += search.outcomes(search.waiting.pop(0))
    columns = zip(*lines, strict=True) if lines else [()] * 6
    names = ("before", "action", "probability", "following", "rewards", "terminated")
    kinds = (np.int64, np.int64, float, np.int64, float, bool)
    told = {
        name: np.array(column, kind)
        for name, column, kind in zip(names, columns, kinds, strict=True)
    }
    return search.observations() | told


class _Search:
    """Situations by number, those from which steps are still to be taken, and what steps led to."""

    def __init__(self, model: Model, space: Space, arrays: Mapping[str, np.ndarray]) -> None:
        self._model, self._space = model, space
        self.actions = actions_of(model.action_space)
        self._flat = not space.children and space.kind != "text"
        self._batch = model.batch if self._flat else None
        self._setbacks = 0
        self._bounds = _Bounds(space)
        given = len(next(iter(arrays.values())))
        self.states = [space.unpack("observations", arrays, row) for row in range(given)]
        self._given = given
        self._numbers: dict[Any, int] = {}
        for number, state in enumerate(self.states):
            self._numbers.setdefault(self._key(state), number)
        self.waiting = sorted(self._numbers.values())
        self._tried: list[int] = []
        self._following: list[np.ndarray] = []
        self._rewards: list[np.ndarray] = []
        self._terminated: list[np.ndarray] = []
        self.best_end = -np.inf

    def expand(self, size: int, novelty: "_Novelty | None") -> None:
        """Take every action in the next situations that wait; those found wait then."""
        now, self.waiting = self.waiting[:size], self.waiting[size:]
        before = len(self.states)
        following, rewards, terminated = self._together(now) or self._alone(now)
        self._tried += now
        self._following.append(following)
        self._rewards.append(rewards)
        self._terminated.append(terminated)
        self.best_end = max(self.best_end, rewards[terminated].max(initial=-np.inf))
        ended = set(following[terminated].tolist()) - set(following[~terminated].tolist())
        fresh = [n for n in range(before, len(self.states)) if n not in ended]
        if novelty is not None:
            fresh = [n for n in fresh if novelty.adds(self._numbers_in(self.states[n]))]
        self.waiting += fresh

    def outcomes(self, number: int) -> list[tuple[Any, ...]]:
        """Return a line for each outcome of every action in a situation; new ones wait then."""
        lines: list[tuple[Any, ...]] = []
        for place, action in enumerate(self.actions):
            before = len(self.states)
            try:
                self._model.stand(self.states[number])
                told = self._possible(number, action)
            except Exception:  # noqa: BLE001, S112  # it has nothing to say of this situation
                continue
            for chance, step in told:
                after = self._number(step.observation)
                lines.append((number, place, chance, after, step.reward, step.terminated))
            going = {after for *_, after, _, ended in lines if not ended}
            self.waiting += [n for n in range(before, len(self.states)) if n in going]
        return lines

    def _possible(self, number: int, action: Any) -> list[tuple[float, Step]]:
        """Return what may follow an action: as it is told, certain, or as it is drawn."""
        told = self._model.outcomes(action)
        if told is not None:
            return [(each.probability, each.step) for each in told]
        if self._model.deterministic:
            return [(1.0, self._model.step(action))]
        found = []
        for draw in range(DRAWN):
            self._model.draw_from([number, draw])
            self._model.stand(self.states[number])
            found.append((1 / DRAWN, self._model.step(action)))
        return found

    def observations(self) -> dict[str, np.ndarray]:
        """Return the situations that were found."""
        columns = self._space.pack("observations", self.states)
        return {name: column[self._given :] for name, column in columns.items()}

    def found(self) -> dict[str, np.ndarray]:
        """Return what was found as arrays."""
        size = len(self.actions)
        empty = np.zeros((0, size), np.int64)
        return self.observations() | {
            "tried": np.array(self._tried, np.int64),
            "following": np.concatenate([empty, *self._following]),
            "rewards": np.concatenate([empty.astype(float), *self._rewards]),
            "terminated": np.concatenate([empty.astype(bool), *self._terminated]),
        }

    def _together(self, now: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Take every action in some situations at once; None where that cannot be done."""
        if self._batch is None:
            return None
        states = np.stack([np.asarray(self.states[n]).ravel() for n in now], -1)
        states = np.repeat(states, len(self.actions), -1)
        actions = np.stack([np.asarray(action).ravel() for action in self.actions], -1)
        actions = np.tile(actions, len(now))
        try:
            return self._numbered(self._batch, states, actions)
        except (Unbatched, ArithmeticError, ValueError, IndexError, TypeError):
            self._setbacks += 1
            self._batch = self._batch if self._setbacks < MOST_SETBACKS else None
            return None

    def _numbered(
        self, batch: Batch, states: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take steps in a batch; number where they lead."""
        scalar = self._space.kind == "discrete"
        batch.stand(states[0] if scalar else states)
        one = not self._model.action_space.shape
        after, rewards, terminated = batch.step(actions[0] if one else actions)
        count, shape = states.shape[1], (-1, len(self.actions))
        after = np.broadcast_to(after, (count,) if scalar else (len(states), count))
        if not np.array_equal(after, np.round(after)):
            raise Unbatched("observations are not whole numbers")
        rows = np.atleast_2d(after).astype(np.int64).T
        unique, place = np.unique(rows, axis=0, return_inverse=True)
        dtype = np.dtype(self._space.dtype)
        values = [
            int(row[0]) if scalar else row.astype(dtype).reshape(self._space.shape)
            for row in unique
        ]
        numbers = np.array([self._number(value) for value in values], np.int64)
        self._model.counter[0] += count
        rewards = np.broadcast_to(np.asarray(rewards, float), (count,))
        ends = np.broadcast_to(np.asarray(terminated, bool), (count,))
        if not np.isfinite(rewards).all():
            raise Unbatched("a reward is not a finite number")
        return (
            numbers[place.reshape(-1)].reshape(shape),
            rewards.reshape(shape),
            ends.reshape(shape),
        )

    def _alone(self, now: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take every action in some situations, one after the other."""
        shape = len(now), len(self.actions)
        following, rewards = np.full(shape, -1, np.int64), np.zeros(shape)
        terminated = np.zeros(shape, bool)
        for row, number in enumerate(now):
            for column, action in enumerate(self.actions):
                try:
                    self._model.stand(self.states[number])
                    observation, reward, ended, _ = self._model.step(action)
                    following[row, column] = self._number(observation)
                except Exception:  # noqa: BLE001, S112  # it has nothing to say of this situation
                    continue
                rewards[row, column], terminated[row, column] = reward, ended
        return following, rewards, terminated

    def _number(self, state: Any) -> int:
        """Return the number of a situation, a new one if it was not met before.

        It is -1 where a number is out of its bounds: nothing can be observed like that.
        """
        key = self._key(state)
        number = self._numbers.get(key, -1)
        if number < 0 and self._bounds.admit(state):
            number = self._numbers[key] = len(self.states)
            self.states.append(state)
        return number

    def _key(self, state: Any) -> Any:
        return np.asarray(state, np.int64).tobytes() if self._flat else name(state)

    def _numbers_in(self, state: Any) -> list[Any]:
        """Return the numbers and texts of a situation, in a fixed order."""
        if self._flat:
            values: list[Any] = np.asarray(state).ravel().tolist()
            return values
        columns = self._space.pack("", [state])
        return list(chain.from_iterable(column.reshape(-1).tolist() for column in columns.values()))


class _Bounds:
    """What a space admits: numbers within their bounds."""

    def __init__(self, space: Space) -> None:
        self._parts = list(map(_Bounds, space.children))
        keys: Sequence[Any] = space.keys if space.kind == "dict" else range(len(space.children))
        self._keys = keys
        self._is_bounded = bool(space.low)
        if self._is_bounded:
            self._low, self._high = (np.reshape(b, space.shape) for b in (space.low, space.high))

    def admit(self, state: Any) -> bool:
        """Whether a value is within its bounds in every part."""
        if self._parts:
            pairs = zip(self._parts, self._keys, strict=True)
            return all(part.admit(state[key]) for part, key in pairs)
        return not self._is_bounded or bool(((state >= self._low) & (state <= self._high)).all())


class _Novelty:
    """Which numbers were seen together, so many at a time, apart where some are others."""

    def __init__(self, width: int, apart: Sequence[int] = ()) -> None:
        self._width, self._apart = width, apart
        self._parts: dict[tuple[Any, ...], _Novelty] = {}
        self._first: Sequence[Any] | None = None
        self._seen: set[Any] = set()
        self._varying: set[int] = set()

    def adds(self, values: Sequence[Any]) -> bool:
        """Take note of a situation, and return whether something in it is new.

        Only tuples with a number that is not that of the first situation are kept, and of numbers
        that were ever another: there are few.
        """
        if self._apart:
            part = tuple(values[place] for place in self._apart)
            return self._parts.setdefault(part, _Novelty(self._width)).adds(values)
        if self._first is None:
            self._first = values
            return True
        before, items = len(self._seen), list(enumerate(values))
        others = [item for item in items if item[1] != self._first[item[0]]]
        self._varying.update(place for place, _ in others)
        alike = [(n, self._first[n]) for n in self._varying if values[n] == self._first[n]]
        for count in range(1, self._width + 1):
            rest = [r for n in range(self._width - count + 1) for r in combinations(alike, n)]
            self._seen.update(product(combinations(others, count), rest))
        return len(self._seen) > before
