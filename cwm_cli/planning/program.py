"""A program as a model for planners, and the returns of many plans played together."""

import random
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
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
    copy_value,
)


class Checks(NamedTuple):
    """Functions that check and normalise the results of a program, or raise an exception."""

    parts: Callable[[Any], Any]
    reward: Callable[[Any], float]
    terminated: Callable[[Any], bool]
    observation: Callable[[Any], Any]
    valid: Callable[[Any], tuple[int, ...] | None] | None = None
    outcomes: Callable[[Any], Sequence[tuple[float, Any]]] | None = None


class BatchedModel(Model):
    """A model that plays many plans together if it has a batch; `notes` has the limitations."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._setbacks = 0

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the returns of plans from each state; the program gets copies."""
        if self.batch is None or draws:
            return super().returns(states, plans, draws)
        try:
            total, steps = returns(self.batch, states, plans)
            if not (np.abs(total) < LARGEST).all():
                raise Unbatched("a reward was not a finite number")
            self.counter[0] += steps
            return total
        except Unbatched as refusal:
            reason = str(refusal)
        alone = super().returns(states, plans, draws)
        # Only a refusal where the program itself answers counts against the batch.
        self._setbacks += 1
        if self._setbacks == 3:
            self.batch = None
            self.notes.append(f"not batched any more: {reason}")
        return alone


class Program(BatchedModel):
    """The `Environment` of a program; arrays are copied on their way in and out.

    Between two calls of `stand` each step continues from the one before. A program that defines
    `outcomes` steps by drawing one outcome. `used` has the forms that took steps, and `notes` the
    reasons against other forms. The generators of `random` and `numpy.random` are seeded together
    with `self.rng`, unless `draws_elsewhere` is False.
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
        super().__init__()
        self.environment = environment
        self._set_state: Any = getattr(environment, "set_state", None)  # None with a memory
        uses = checks.outcomes and not self.remembers  # only `step` updates a memory
        self._outcomes: Any = getattr(environment, "outcomes", None) if uses else None
        self._step = environment.step if self._outcomes is None else self._draw
        self._checks = checks
        rng = getattr(environment, "rng", None)
        self._rng = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(0)
        self._seeded: dict[Sequence[int], Any] = {}
        self.action_space = action_space
        self.deterministic = deterministic
        self.counter: Counter = [0] if counter is None else counter
        self.used: set[str] = set()
        self._answer: Any = None
        self._valid: Any = None
        self._here: Any = None

    @cached_property
    def memoryless(self) -> Model:
        """The program, reset to its last observation before every step."""
        return MemorylessModel(self, self)

    @property
    def names_actions(self) -> bool:
        """Whether every step returns the next valid actions."""
        return self._checks.valid is not None

    def stand(self, state: Any) -> None:
        """Set the state to an observation."""
        self._here = state
        self._set_state(copy_value(state))

    def here(self) -> Any:
        """Return the last observation."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action."""
        reward, terminated = self._take((action,), 1.0)
        self._here = self._checks.observation(self._answer)
        valid = self._checks.valid(self._valid) if self._checks.valid else None
        return Step(self._here, reward, terminated, valid)

    def legal(self) -> tuple[int, ...] | None:
        """Return the legal actions in the current state, None without `legal_actions`."""
        if self._checks.valid is None or not hasattr(self.environment, "legal_actions"):
            return None
        return self._checks.valid(self.environment.legal_actions())

    def player(self) -> int:
        """Return the player to move in the last observation."""
        return int(self._here[self.turn])

    def play_randomly(self, seed: int, limit: int) -> float:
        """Play random legal moves, as `Model` does, without a `Step` and an observation for each.

        The last observation is checked.
        """
        draw, first, total = random.Random(seed).random, self.player(), 0.0  # noqa: S311
        player, legal, valid_of = first, self.legal(), self._checks.valid
        if valid_of is None or not legal:
            return 0.0
        for _ in range(limit):
            reward, terminated = self._take((legal[int(draw() * len(legal))],), 1.0)
            total += reward if player == first else -reward
            if terminated:
                break
            player, legal = int(self._answer[self.turn]), valid_of(self._valid)
            if not legal:
                break
        self._checks.observation(self._answer)
        return total

    def outcomes(self, action: Any) -> list[PossibleStep] | None:
        """Return all possible results of an action, or None without `outcomes`."""
        if self._outcomes is None:
            return None
        self.used.add("scalar")
        self.counter[0] += 1
        checks, found = self._checks, []
        for probability, (answer, reward, terminated, *valid) in self._possible(action):
            seen = checks.observation(answer)
            following = checks.valid(*valid) if checks.valid else None
            step = Step(seen, checks.reward(reward), checks.terminated(terminated), following)
            found.append(PossibleStep(probability, step, seen))
        return found

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed `self.rng`, `random` and `numpy.random` with a key."""
        super().draw_from(key)
        # Seeding from a key takes much longer than restoring a state.
        seeded = self._seeded.get(self.drawn_from)
        if seeded is None:
            random.seed(repr(self.drawn_from))
            np.random.seed([part % 2**32 for part in key])
            own = np.random.default_rng(key).bit_generator.state
            seeded = own, random.getstate(), np.random.get_state()
            if len(self._seeded) == 1000:  # more keys than plans share at a time
                self._seeded.clear()
            self._seeded[self.drawn_from] = seeded
        self._rng.bit_generator.state, python, numpy = seeded
        if self.draws_elsewhere:
            random.setstate(python)
            np.random.set_state(numpy)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        total, _ = self._take(actions, discount)
        self._checks.observation(self._answer)  # refuse a wrong one, although it is not needed
        return total

    def _take(self, actions: Iterable[Any], discount: float) -> tuple[float, bool]:
        """Take actions; return the discounted return and whether the episode ended.

        Planners spend almost all of their time here, so the usual types skip the checks.
        """
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

    def _possible(self, action: Any) -> list[tuple[float, Any]]:
        """Return the outcomes of the program with a probability above 0."""
        assert self._checks.outcomes is not None
        outcomes = self._checks.outcomes(self._outcomes(action))
        return [(probability, answer) for probability, answer in outcomes if probability]

    def _draw(self, action: Any) -> Any:
        """Take a step by drawing one of the outcomes."""
        outcomes = self._possible(action)
        sums = list(accumulate(probability for probability, _ in outcomes))
        place = bisect(sums, self._rng.random() * sums[-1], hi=len(sums) - 1)
        answer = outcomes[place][1]
        self._set_state(copy_value(self._checks.observation(answer[0])))
        return answer


class MemorylessModel(BatchedModel):
    """A program, in any form, that is reset to its last observation before every step.

    So any other memory has no effect, as with the published planners.
    """

    def __init__(self, model: Model, program: Program) -> None:
        super().__init__()
        self._model, self._observation, self._is_reset = model, None, True
        self.action_space, self.deterministic = model.action_space, model.deterministic
        self.counter, self.notes = model.counter, program.notes
        self.batch = MemorylessBatch(program.batch) if program.batch else None

    def stand(self, state: Any) -> None:
        """Set the state to an observation."""
        self._observation, self._is_reset = state, True
        self._model.stand(state)

    def here(self) -> Any:
        """Return the last observation."""
        return self._observation

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the random numbers of the program with a key."""
        super().draw_from(key)
        self._model.draw_from(key)

    def step(self, action: Any) -> Step:
        """Take an action from the last observation."""
        if not self._is_reset:
            self._model.stand(self._observation)
        step = self._model.step(action)
        self._observation, self._is_reset = step.observation, False
        return step


class MemorylessBatch:
    """The same as `MemorylessModel` for a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._is_reset = batch, True
        self._observations = np.empty(0)

    def stand(self, observations: np.ndarray) -> None:
        """Set the states to observations."""
        self._observations, self._is_reset = observations, True
        self._batch.stand(observations)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards and terminated."""
        if not self._is_reset:
            self._batch.stand(self._observations)
        answers = self._batch.step(actions)
        self._observations, self._is_reset = answers[0], False
        return answers

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated."""
        return self.step(actions)[1:]

    def keep(self, lanes: np.ndarray) -> None:
        """Keep only some lanes."""
        self._observations = self._observations[..., lanes]
        self._batch.keep(lanes)


class Returns(NamedTuple):
    """Undiscounted returns to the end of the episode, and the number of steps taken."""

    returns: np.ndarray
    steps: int


def returns(batch: Batch, observations: Sequence[Any], plans: np.ndarray) -> Returns:
    """Play plans in a batch.

    Args:
        batch: The model.
        observations: The states to start from.
        plans: Actions, of shape (observations, plans, steps, *action).

    Returns:
        Returns of shape (observations, plans), and the number of steps.
    """
    count, number, horizon = plans.shape[:3]
    starts = np.stack([np.asarray(value) for value in observations], -1)
    by_step = plans.reshape(count * number, horizon, -1)
    total, steps = np.zeros(count * number), 0
    # The arrays of more than 8000 lanes would not fit in the cache of the CPU.
    parts = -(-count * number // 8000)
    bounds = [count * number * part // max(parts, 1) for part in range(parts + 1)]
    for part in map(slice, bounds, bounds[1:]):
        lanes = np.arange(part.start, part.stop) // number
        actions = np.ascontiguousarray(by_step[part].transpose(1, 2, 0))
        if plans.ndim == 3:
            actions = actions[:, 0]
        lane_starts = np.take(starts, lanes, -1)
        try:
            total[part], taken = _play(batch, lane_starts, actions, 0.25)
        except _RefusedWithEnded:  # an ended lane may be the cause, so drop each immediately
            total[part], taken = _play(batch, lane_starts, actions, 0.0)
        steps += taken
    return Returns(total.reshape(count, number), steps)


class _RefusedWithEnded(Exception):
    """The batch refused a step while it had lanes whose episode had ended."""


def _play(
    batch: Batch, starts: np.ndarray, actions: np.ndarray, max_ended: float
) -> tuple[np.ndarray, int]:
    """Play plans; drop the ended lanes if they are more than the fraction `max_ended`.

    Returns:
        Returns (lanes,), and the number of steps.
    """
    total = np.zeros(starts.shape[-1])
    everything = slice(None)
    lanes: Any = everything  # the lanes of `total` that the batch still has
    alive, living, steps = np.ones(len(total), bool), len(total), 0
    batch.stand(starts)
    for now in actions:
        now = now if lanes is everything else np.take(now, lanes, -1)
        all_alive = living == len(alive)
        try:
            rewards, terminated = batch.advance(now)
        except Unbatched:
            if all_alive:
                raise
            raise _RefusedWithEnded from None
        steps += living
        total[lanes] += rewards if all_alive else np.where(alive, rewards, 0.0)
        if not np.count_nonzero(terminated):
            continue
        alive &= np.logical_not(terminated)
        living = int(np.count_nonzero(alive))
        if not living:
            break
        if len(alive) - living > max_ended * len(alive):
            batch.keep(alive)
            lanes = np.arange(len(total))[lanes][alive]
            alive = np.ones(living, bool)
    return total, steps
