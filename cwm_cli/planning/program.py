"""A program as a model that planners plan with; returns of many plans at once."""

import random
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import (
    LARGEST,
    Batch,
    Counter,
    Model,
    PossibleStep,
    Step,
    Unbatched,
    copied,
)

MOST_LANES = 8000
"""More lanes than this are played one part after the other: their arrays would leave the cache."""

_ENDED_SHARE = 0.25

_MOST_SETBACKS = 3
"""So often a batch may refuse what the program answers; then it is no longer asked."""


_MOST_BEGUN = 1000
"""Keys of which is kept how random numbers begin: more than plans share at a time."""


class Checks(NamedTuple):
    """Functions that return what a program answered as it should be, or refuse it."""

    parts: Callable[[Any], Any]
    reward: Callable[[Any], float]
    terminated: Callable[[Any], bool]
    observation: Callable[[Any], Any]
    valid: Callable[[Any], tuple[int, ...] | None] | None = None
    outcomes: Callable[[Any], Sequence[tuple[float, Any]]] | None = None


class ManyAtOnce(Model):
    """A model that plays many plans at once where it has such a form, and notes where it cannot."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._setbacks = 0

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the sums of rewards of plans from each state; the program gets copies."""
        if self.batch is not None and not draws:
            try:
                return self._returns_of_batch(self.batch, states, plans)
            except Unbatched as reason:
                failed = str(reason)
        alone = super().returns(states, plans, draws)
        if self.batch is not None and not draws:
            self._set_back(failed)
        return alone

    def _returns_of_batch(
        self, batch: Batch, states: Sequence[Any], plans: np.ndarray
    ) -> np.ndarray:
        """Return the sums of rewards of plans, all of them played at once."""
        total, steps = returns(batch, states, plans)
        if not (np.abs(total) < LARGEST).all():
            raise Unbatched("a reward was not a finite number")
        self.counter[0] += steps
        return total

    def _set_back(self, reason: str) -> None:
        """Do without the batched form when it refuses what the program answers."""
        self._setbacks += 1
        if self._setbacks == _MOST_SETBACKS:
            self.batch = None
            self.notes.append(f"not batched any more: {reason}")


class Program(ManyAtOnce):
    """A program's `Environment`; arrays are copied on their way in and out.

    Between two calls of `stand` every step goes on from the one before. One that has
    `outcomes` steps by drawing from these. `used` are the forms in which steps were taken,
    `notes` says what stands against others. It may draw from more than `self.rng`, which is
    seeded as well, unless `draws_elsewhere` is made False.
    """

    draws_elsewhere = True

    def __init__(
        self,
        environment: Any,
        checks: Checks,
        *,
        action_space: Space,
        deterministic: bool = True,
        counter: Counter | None = None,
    ) -> None:
        """Stand nowhere yet; one that is not `deterministic` draws random numbers."""
        super().__init__()
        self.environment = environment
        self._set_state: Any = getattr(environment, "set_state", None)  # none with a memory
        tells = checks.outcomes and not self.remembers  # a step of its own moves its memory on
        self._outcomes: Any = getattr(environment, "outcomes", None) if tells else None
        self._step = environment.step if self._outcomes is None else self._drawn
        self._checks = checks
        rng = getattr(environment, "rng", None)
        self._rng = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(0)
        self._begun: dict[Sequence[int], Any] = {}
        self.action_space = action_space
        self.deterministic = deterministic
        self.counter: Counter = [0] if counter is None else counter
        self.used: set[str] = set()
        self._answer: Any = None
        self._valid: Any = None
        self._here: Any = None

    @cached_property
    def anew(self) -> Model:
        """The program that is stood at its last observation before every step."""
        return Anew(self, self)

    @property
    def names_actions(self) -> bool:
        """Whether every step has to say which actions are valid after it."""
        return self._checks.valid is not None

    def stand(self, state: Any) -> None:
        """Stand at an observation."""
        self._here = state
        self._set_state(copied(state))

    def here(self) -> Any:
        """Return the last observation."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action."""
        reward, terminated = self._take((action,), 1.0)
        self._here = self._checks.observation(self._answer)
        valid = self._checks.valid(self._valid) if self._checks.valid else None
        return Step(self._here, reward, terminated, valid)

    def outcomes(self, action: Any) -> list[PossibleStep] | None:
        """Return all that may follow an action, where the program has `outcomes`."""
        if self._outcomes is None:
            return None
        self.used.add("scalar")
        self.counter[0] += 1
        checks, found = self._checks, []
        for probability, (answer, reward, terminated, *valid) in self._told(action):
            seen = checks.observation(answer)
            following = checks.valid(*valid) if checks.valid else None
            step = Step(seen, checks.reward(reward), checks.terminated(terminated), following)
            found.append(PossibleStep(probability, step, seen))
        return found

    def draw_from(self, key: Sequence[int]) -> None:
        """Have what chance decides follow from a key: `self.rng`, `random` and `numpy.random`."""
        super().draw_from(key)
        begun = self._begun.get(self.drawn_from)
        if begun is None:
            random.seed(repr(self.drawn_from))
            np.random.seed([part % 2**32 for part in key])
            own = np.random.default_rng(key).bit_generator.state
            begun = own, random.getstate(), np.random.get_state()
            if len(self._begun) == _MOST_BEGUN:
                self._begun.clear()
            self._begun[self.drawn_from] = begun
        self._rng.bit_generator.state, python, numpy = begun
        if self.draws_elsewhere:
            random.setstate(python)
            np.random.set_state(numpy)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        total, _ = self._take(actions, discount)
        self._checks.observation(self._answer)  # one that is wrong is refused, though not needed
        return total

    def _take(self, actions: Iterable[Any], discount: float) -> tuple[float, bool]:
        """Take actions; planners spend nearly all their time here."""
        self.used.add("scalar")
        step, checks, counter = self._step, self._checks, self.counter
        count, total, factor, terminated = counter[0], 0.0, 1.0, False
        size = 3 if checks.valid is None else 4
        for action in actions:
            counter[0] = count = count + 1
            result = step(action)
            if type(result) is not tuple or len(result) != size:
                result = checks.parts(result)
            if size == 4:
                *result, self._valid = result
            self._answer, reward, terminated = result
            if type(reward) is not float or not -LARGEST < reward < LARGEST:
                reward = checks.reward(reward)
            total += factor * reward
            if terminated is not False and checks.terminated(terminated):
                return total, True
            factor *= discount
        return total, False

    def _told(self, action: Any) -> list[tuple[float, Any]]:
        """Return what the program says can follow, without what is impossible."""
        assert self._checks.outcomes is not None
        told = self._checks.outcomes(self._outcomes(action))
        return [(probability, answer) for probability, answer in told if probability]

    def _drawn(self, action: Any) -> Any:
        """Step by drawing one of the outcomes, and stand there."""
        told = self._told(action)
        sums = list(accumulate(probability for probability, _ in told))
        place = bisect(sums, self._rng.random() * sums[-1], hi=len(sums) - 1)
        answer = told[place][1]
        self._set_state(copied(self._checks.observation(answer[0])))
        return answer


class Anew(ManyAtOnce):
    """A program, in any form, that is stood at its last observation before every step.

    So what it remembers beyond that counts for nothing, as with the published planners.
    """

    def __init__(self, model: Model, program: Program) -> None:
        super().__init__()
        self._model, self._observation, self._stands = model, None, True
        self.action_space, self.deterministic = model.action_space, model.deterministic
        self.counter, self.notes = model.counter, program.notes
        self.batch = AnewBatch(program.batch) if program.batch else None

    def stand(self, state: Any) -> None:
        """Stand at an observation."""
        self._observation, self._stands = state, True
        self._model.stand(state)

    def here(self) -> Any:
        """Return the last observation."""
        return self._observation

    def draw_from(self, key: Sequence[int]) -> None:
        """Have what chance decides follow from a key."""
        super().draw_from(key)
        self._model.draw_from(key)

    def step(self, action: Any) -> Step:
        """Take an action from the last observation."""
        if not self._stands:
            self._model.stand(self._observation)
        step = self._model.step(action)
        self._observation, self._stands = step.observation, False
        return step


class AnewBatch:
    """The same for many states at once."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._stands = batch, True
        self._observations = np.empty(0)

    def stand(self, observations: np.ndarray) -> None:
        """Stand at observations."""
        self._observations, self._stands = observations, True
        self._batch.stand(observations)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards and terminated."""
        if not self._stands:
            self._batch.stand(self._observations)
        answers = self._batch.step(actions)
        self._observations, self._stands = answers[0], False
        return answers

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated."""
        return self.step(actions)[1:]

    def keep(self, lanes: np.ndarray) -> None:
        """Go on with some lanes only."""
        self._observations = self._observations[..., lanes]
        self._batch.keep(lanes)


class Returns(NamedTuple):
    """Sums of rewards until the end of the episode, and the steps that were taken for them."""

    returns: np.ndarray
    steps: int


def returns(batch: Batch, observations: Sequence[Any], plans: np.ndarray) -> Returns:
    """Return the returns (observations, plans) of plans (observations, plans, steps, *action)."""
    count, number, horizon = plans.shape[:3]
    starts = np.stack([np.asarray(value) for value in observations], -1)
    by_step = plans.reshape(count * number, horizon, -1)
    total, steps = np.zeros(count * number), 0
    for part in _parts(count * number):
        lanes = np.arange(part.start, part.stop) // number
        actions = np.ascontiguousarray(by_step[part].transpose(1, 2, 0))
        if plans.ndim == 3:
            actions = actions[:, 0]
        total[part], taken = _played(batch, np.take(starts, lanes, -1), actions)
        steps += taken
    return Returns(total.reshape(count, number), steps)


def _parts(lanes: int) -> Iterator[slice]:
    """Yield parts of about equal size."""
    parts = -(-lanes // MOST_LANES)
    bounds = [lanes * part // max(parts, 1) for part in range(parts + 1)]
    yield from map(slice, bounds, bounds[1:])


def _played(batch: Batch, starts: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, int]:
    """Play all plans; once more without ended lanes if these are what the batch cannot do."""
    try:
        return _play(batch, starts, actions, _ENDED_SHARE)
    except _Ended:
        return _play(batch, starts, actions, 0.0)


def _play(
    batch: Batch, starts: np.ndarray, actions: np.ndarray, share: float
) -> tuple[np.ndarray, int]:
    """Play all plans; ended lanes are left out when they are more than a share."""
    total = np.zeros(starts.shape[-1])
    everybody = slice(None)
    lanes: Any = everybody
    alive, living, steps = np.ones(len(total), bool), len(total), 0
    batch.stand(starts)
    for now in actions:
        now = now if lanes is everybody else np.take(now, lanes, -1)
        all_alive = living == len(alive)
        rewards, terminated = _step(batch, now, ended=not all_alive)
        steps += living
        total[lanes] += rewards if all_alive else np.where(alive, rewards, 0.0)
        if not np.count_nonzero(terminated):
            continue
        alive &= np.logical_not(terminated)
        living = int(np.count_nonzero(alive))
        if not living:
            break
        if len(alive) - living > share * len(alive):
            batch.keep(alive)
            lanes = np.arange(len(total))[lanes][alive]
            alive = np.ones(living, bool)
    return total, steps


class _Ended(Exception):
    """What cannot be done may be in lanes that have ended."""


def _step(batch: Batch, actions: np.ndarray, *, ended: bool) -> tuple[np.ndarray, np.ndarray]:
    """Take a step; return rewards and where the episode ended."""
    try:
        return batch.advance(actions)
    except Unbatched:
        if ended:
            raise _Ended from None
        raise
