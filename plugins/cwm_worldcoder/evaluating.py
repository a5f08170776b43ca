"""Evaluation of world models of two programs: agreement with the data, and plans for the mission.

All programs run in the sandbox. Each program is scored alone: the transition program gets states
and actions, and the reward program gets recorded states before and after a step. Whether a world
model predicts rows is checked with both programs together. Predictions are compared outside the
sandbox, and cached, since programs and rows do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.remote import ProgramFailed
from cwm_learn.imagination import SearchImagination
from cwm_learn.missions import StateView, content_words
from cwm_worldcoder.world_program import WorldProgram


class Prediction(NamedTuple):
    """The prediction of a program for a row: a state, or a reward and an end; or an error."""

    observation: Any = None
    reward: float = 0.0
    done: bool = False
    error: str = ""

    def has_reward_of(self, row: Transition) -> bool:
        """Return whether the reward is equal to the reward of a row."""
        reward_tolerance = 1e-6  # rewards with a smaller difference are equal
        return not self.error and abs(self.reward - row.reward) < reward_tolerance

    def has_end_of(self, row: Transition) -> bool:
        """Return whether `done` is equal to `terminated` of a row."""
        return not self.error and self.done == row.terminated


class FoundPlan(NamedTuple):
    """Actions from a start, and whether they end the episode with a reward in the program."""

    actions: tuple[int, ...]
    reached: bool


@dataclass
class WorldEvaluator:
    """Predicts and plans with programs in the sandbox; `close` ends their processes.

    Predictions and plans raise `OutOfTime` when `seconds_left` returns 0 or less.
    """

    sandbox: Sandbox
    view: StateView
    action_space: Space
    depth: int = 30
    exploration: float = 1.0
    seed: int = 0
    seconds_left: Callable[[], float] = lambda: inf
    _open: dict[str, SearchImagination] = field(default_factory=dict, init=False, repr=False)
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def predict_states(self, transition: str, rows: Sequence[Transition]) -> list[Prediction]:
        """Return the next states that a transition program predicts."""
        program = WorldProgram(transition).source(self.view)
        return self._predict(program, rows, self.view.space, lambda row: row.observation)

    def predict_rewards(
        self, reward: str, mission: str, rows: Sequence[Transition]
    ) -> list[Prediction]:
        """Return the rewards and ends that a reward program predicts for recorded states."""
        program = WorldProgram("", {mission: reward}).reward_source(self.view)
        pair = Space("tuple", children=(self.view.space, self.view.space))
        return self._predict(
            program, rows, pair, lambda row: (row.observation, row.next_observation)
        )

    def predicts_all(self, world: WorldProgram, rows: Sequence[Transition]) -> bool:
        """Return whether both programs together predict every row correctly."""
        program = world.source(self.view)
        found = self._predict(program, rows, self.view.space, lambda row: row.observation)
        return all(
            self.has_state_of(each, row) and each.has_reward_of(row) and each.has_end_of(row)
            for each, row in zip(found, rows, strict=True)
        )

    def has_state_of(self, prediction: Prediction, row: Transition) -> bool:
        """Return whether the predicted state is equal to the next state of a row."""
        return not prediction.error and self.view.same(prediction.observation, row.next_observation)

    def find_plans(self, world: WorldProgram, starts: Sequence[Any], nodes: int) -> list[FoundPlan]:
        """Search for a plan for the mission from each start, with at most `nodes` nodes each."""
        program = world.source(self.view)
        plans = []
        for start in starts:
            key = (program, "plan", nodes, self.view.key(start), self.view.mission(start))
            if key not in self._cache:
                self._cache[key] = self._find_plan(world, program, start, nodes)
            plans.append(self._cache[key])
        return plans

    def _find_plan(self, world: WorldProgram, program: str, start: Any, nodes: int) -> FoundPlan:
        """Search from one start; a program that fails or exceeds a limit has no plan."""
        mission = self.view.mission(start)
        if not world.is_complete(mission):
            return FoundPlan((), reached=False)
        try:
            found = self._imagination(program, self.view.space).ask(
                "missions:find_plans",
                self.view.space.pack("observations", [start]),
                space=self.view.space.to_json(),
                words=content_words(mission),
                actions=self.view.actions,
                schema=self.view.schema.to_json() if self.view.schema else None,
                budget=nodes,
                depth=self.depth,
                exploration=self.exploration,
            )
        except ProgramFailed:
            return FoundPlan((), reached=False)
        actions = found["plans"][0, : int(found["lengths"][0])].tolist()
        return FoundPlan(tuple(actions), bool(found["reached"][0]))

    def _predict(
        self,
        program: str,
        rows: Sequence[Transition],
        space: Space,
        state: Callable[[Transition], Any],
    ) -> list[Prediction]:
        """Return cached predictions, after the program has predicted the other rows."""
        keys = [(program, self.row_key(row)) for row in rows]
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._cache}
        if new:
            arrays = space.pack("observations", [state(row) for row in new.values()])
            arrays |= self.action_space.pack("actions", [row.action for row in new.values()])
            try:
                found = self._imagination(program, space).ask(
                    "missions:predict_rows", arrays, space=space.to_json()
                )
                predictions = [
                    Prediction(
                        space.unpack("next_observations", found, n),
                        float(found["rewards"][n]),
                        bool(found["terminations"][n]),
                        str(found["errors"][n]),
                    )
                    for n in range(len(new))
                ]
            except (ProgramFailed, ValueError, KeyError, IndexError) as error:
                failure = error.failure.message if isinstance(error, ProgramFailed) else "no answer"
                predictions = [Prediction(error=failure.splitlines()[0])] * len(new)
            self._cache |= dict(zip(new, predictions, strict=True))
        return [self._cache[key] for key in keys]

    def row_key(self, row: Transition) -> Hashable:
        """Return a key that is equal for equal rows."""
        view = self.view
        before, after = view.key(row.observation), view.key(row.next_observation)
        return (view.mission(row.observation), before, int(row.action), after, row.reward,
                row.terminated)  # fmt: skip

    def _imagination(self, program: str, space: Space) -> SearchImagination:
        """Return the process of a program, and close the least recently used processes.

        An open process occupies a worker of the sandbox, and one worker has to stay free.
        """
        if program in self._open:
            self._open[program] = self._open.pop(program)
        else:
            while self._open and len(self._open) >= self.sandbox.workers - 1:
                self._open.pop(next(iter(self._open))).close()
            no_rows = Dataset.of([], observation_space=space, action_space=self.action_space)
            self._open[program] = SearchImagination(
                self.sandbox, program, no_rows, seed=self.seed, form="scalar"
            )
            self._open[program].seconds_left = self.seconds_left
        return self._open[program]

    def close(self) -> None:
        """End the processes of all programs."""
        with ExitStack() as stack:
            while self._open:
                stack.callback(self._open.popitem()[1].close)


@dataclass(frozen=True)
class WorldEvaluation:
    """The agreement of a world model with rows, and the starts without a plan.

    `states` and `rewards` are the predictions of the two programs. `correct_states` and
    `correct_rewards` mark the rows that they predict correctly.
    """

    world: WorldProgram
    rows: tuple[Transition, ...]
    states: tuple[Prediction, ...]
    rewards: tuple[Prediction, ...]
    correct_states: tuple[bool, ...]
    correct_rewards: tuple[bool, ...]
    fit_score: float
    """Share of correct states, rewards and ends."""
    plan_score: float | None = None
    """Share of starts with a plan; None without planning."""
    fit_weight: float = 1.0
    """Number of rows, as a share of the number of rows and starts."""
    unsolved_starts: tuple[Any, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether all rows are predicted correctly."""
        return all(self.correct_states) and all(self.correct_rewards)

    @property
    def score(self) -> float:
        """The weighted mean of both scores, for the choice of arms."""
        if self.plan_score is None:
            return self.fit_weight * self.fit_score
        return self.fit_weight * self.fit_score + (1 - self.fit_weight) * self.plan_score

    @property
    def is_solution(self) -> bool:
        """Whether all rows are predicted correctly, and all starts have a plan."""
        planned = self.plan_score is not None or self.fit_weight == 1
        return self.fits and not self.unsolved_starts and planned

    @property
    def rank(self) -> tuple[float, float]:
        """The order of world models: by agreement with the rows, then by plans."""
        return self.fit_score, self.plan_score or 0.0


def evaluate(
    evaluator: WorldEvaluator,
    world: WorldProgram,
    rows: Sequence[Transition],
    starts: Sequence[Any] | None = None,
    *,
    budget: int = 6000,
) -> WorldEvaluation:
    """Evaluate a world model by rows; if it predicts them all, also by plans from the starts.

    Args:
        evaluator: Runs the programs.
        world: The world model.
        rows: Recorded rows.
        starts: Observations that need a plan for the mission; None disables this check.
        budget: Maximum number of nodes per search for a plan.
    """
    view = evaluator.view
    states = evaluator.predict_states(world.transition, rows)
    missions = [view.mission(row.observation) for row in rows]
    rewards: list[Prediction] = [Prediction()] * len(rows)
    for mission in dict.fromkeys(missions):
        own = [n for n, each in enumerate(missions) if each == mission]
        code = world.rewards.get(mission, "")
        found = evaluator.predict_rewards(code, mission, [rows[n] for n in own])
        for n, prediction in zip(own, found, strict=True):
            rewards[n] = prediction
    correct_states = tuple(map(evaluator.has_state_of, states, rows))
    correct = [(each.has_reward_of(row), each.has_end_of(row))
               for each, row in zip(rewards, rows, strict=True)]  # fmt: skip
    count = sum(correct_states) + sum(map(sum, correct))
    evaluation = WorldEvaluation(
        world=world,
        rows=tuple(rows),
        states=tuple(states),
        rewards=tuple(rewards),
        correct_states=correct_states,
        correct_rewards=tuple(map(all, correct)),
        fit_score=count / (3 * len(rows)) if rows else 1.0,
        fit_weight=1.0 if starts is None else len(rows) / max(1, len(rows) + len(starts)),
    )
    if starts is None or not evaluation.fits:
        return evaluation
    plans = evaluator.find_plans(world, starts, budget)
    unsolved = tuple(s for s, plan in zip(starts, plans, strict=True) if not plan.reached)
    plan_score = 1 - len(unsolved) / len(starts) if starts else 1.0
    return replace(evaluation, plan_score=plan_score, unsolved_starts=unsolved)
