"""The search of the agent for a world model, by Thompson sampling over arms.

An arm writes both programs from scratch, or fixes one program of an existing world model after a
wrong prediction or for a start without a plan. Each pull requests one or two programs, evaluates
the resulting world model, and adds arms that continue from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from cwm_cli.data.dataset import Transition
from cwm_cli.worlds.remote import OutOfTime
from cwm_learn.missions import merge_programs
from cwm_worldcoder.asking import ProgramQuestion, ShownRow, extract_programs
from cwm_worldcoder.evaluating import WorldEvaluation, WorldEvaluator, evaluate
from cwm_worldcoder.world_program import REWARD, TRANSITION, WorldProgram

ArmKind = Literal["init", "transition", "reward", "reach"]
T = TypeVar("T")

EXAMPLES, RIGHT_EXAMPLES = 7, 3
"""Maximum examples for a first program, and correct predictions next to a wrong one."""

TRANSITION_CASES, REWARD_CASES = "TRANSITION_CASES", "REWARD_CASES"
"""Names of the recorded cases in programs with offline rules. A fix reads the cases, although the
functions do not need them."""

BANDIT = re.compile(r"thompson|greedy|(bfs|grid)([1-9]\d*)")
"""Values of the option `bandit`."""


@dataclass
class Arm:
    """A way to continue from a world model; its chance of success has Beta(alpha, beta)."""

    kind: ArmKind
    base: WorldEvaluation | None
    alpha: float
    beta: float
    pulls: int = 0


@dataclass
class WorldSearch:
    """Searches for a world model that fits the rows and has plans from all starts.

    Args:
        evaluator: Evaluates world models.
        ask: Returns the answer to a question.
        rows: Rows of the relevant missions.
        all_rows: All rows, the source of examples for first transition programs.
        starts: Observations that need a plan for the mission; None if plans do not matter.
        rng: Random numbers for the choice of arms and of the examples in prompts.
        budget: Maximum number of nodes per search for a plan.
        bandit: The choice of arms: thompson, greedy, bfsN (the oldest arm first, at most N pulls
            each) or gridN (N first programs, one fix each).
        prior_weight: Number of pulls that the score of a world model counts for.
    """

    evaluator: WorldEvaluator
    ask: Callable[[ProgramQuestion], str]
    rows: Sequence[Transition]
    all_rows: Sequence[Transition]
    starts: Sequence[Any] | None
    rng: np.random.Generator
    budget: int = 6000
    bandit: str = "thompson"
    prior_weight: float = 5.0
    arms: list[Arm] = field(default_factory=list, init=False)
    _worlds: set[str] = field(default_factory=set, init=False, repr=False)
    _seen: set[Any] = field(default_factory=set, init=False, repr=False)
    _best: list[WorldEvaluation] = field(default_factory=list, init=False, repr=False)
    _correct_transitions: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _correct_rewards: dict[tuple[str, ...], Mapping[str, str]] = field(
        default_factory=dict, init=False, repr=False
    )

    def search(self, given: WorldProgram | None, pulls: int) -> WorldEvaluation | None:
        """Return a solution, or one of the best world models after `pulls` or the time limit."""
        self._rewards = dict(given.rewards) if given else {}
        self.arms.append(Arm("init", None, 1.0, 1.0))
        with suppress(OutOfTime):
            if given is not None and (solution := self._add(self._evaluate(given))):
                return solution
            repeated = 0
            # consecutive pulls without a new world model that end a search: offline rules and
            # models at temperature 0 repeat themselves
            max_repeated_pulls = 10
            for _ in range(pulls):
                arm = self._choose()
                if arm is None or self.evaluator.seconds_left() <= 0:
                    break
                world = self._pull(arm)
                repeated = repeated + 1 if repr(world) in self._worlds else 0
                self._worlds.add(repr(world))
                solution = self._add(self._evaluate(world)) if world and not repeated else None
                arm.pulls += 1
                if solution:
                    return solution
                arm.beta += 1
                if repeated == max_repeated_pulls:
                    break
        return self._best[self.rng.integers(len(self._best))] if self._best else None

    def _evaluate(self, world: WorldProgram) -> WorldEvaluation:
        return evaluate(self.evaluator, world, self.rows, self.starts, budget=self.budget)

    def _add(self, found: WorldEvaluation) -> WorldEvaluation | None:
        """Add a world model; return a solution: itself, or a combination with earlier programs."""
        if found.is_solution:
            return found
        if not self._best or found.rank > self._best[0].rank:
            self._best = [found]
        elif found.rank == self._best[0].rank:
            self._best.append(found)
        self._add_arms(found)
        world = found.world
        rewards = {mission: world.rewards.get(mission, "") for mission in self._missions}
        key = tuple(rewards.values())
        pairs = []
        if all(found.correct_states) and world.transition not in self._correct_transitions:
            self._correct_transitions[world.transition] = None
            pairs += [(world.transition, each) for each in self._correct_rewards.values()]
        if all(found.correct_rewards) and key not in self._correct_rewards:
            self._correct_rewards[key] = rewards
            others = (each for each in self._correct_transitions if each != world.transition)
            pairs += [(each, rewards) for each in others]
        for transition, own in pairs:
            combined = self._evaluate(WorldProgram(transition, {**world.rewards, **own}))
            if combined.is_solution:
                return combined
            self._add_arms(combined)
        return None

    @property
    def _missions(self) -> list[str]:
        states = [row.observation for row in self.rows] + list(self.starts or ())
        return list(dict.fromkeys(map(self.evaluator.view.mission, states)))

    def _add_arms(self, found: WorldEvaluation) -> None:
        """Add new arms for a world model that is partly correct."""
        arms: list[tuple[ArmKind, str]] = []
        if not all(found.correct_states) and any(found.correct_states):
            arms.append(("transition", found.world.transition))
        if not all(found.correct_rewards) and any(found.correct_rewards):
            arms.append(("reward", repr(sorted(found.world.rewards.items()))))
        if found.unsolved_starts:
            arms.append(("reach", repr(found.world)))
        for kind, code in arms:
            key = kind, code, len(found.rows), len(found.unsolved_starts)
            if key not in self._seen:
                self._seen.add(key)
                weight, score = self.prior_weight, found.score
                self.arms.append(Arm(kind, found, 1 + weight * score, 1 + weight * (1 - score)))

    def _choose(self) -> Arm | None:
        """Choose the next arm; None if all arms have reached their maximum number of pulls."""
        option = BANDIT.fullmatch(self.bandit)
        if option is None:
            raise ValueError("bandit must be thompson, greedy, bfsN or gridN")
        if self.bandit == "thompson":
            draws = [self.rng.beta(arm.alpha, arm.beta) for arm in self.arms]
            return self.arms[int(np.argmax(draws))]
        if self.bandit == "greedy":
            scores = [arm.base.score if arm.base else 0.0 for arm in self.arms]
            # standard deviation of the noise that decides between equal scores in a greedy choice
            tie_noise = 1e-5
            noise = [self.rng.normal(0, tie_noise) for _ in self.arms]
            return self.arms[int(np.argmax(np.add(scores, noise)))]
        pulls = int(option[2])
        later = 1 if option[1] == "grid" else pulls
        limits = (pulls if arm.kind == "init" else later for arm in self.arms)
        return next(
            (a for a, limit in zip(self.arms, limits, strict=True) if a.pulls < limit), None
        )

    def _pull(self, arm: Arm) -> WorldProgram | None:
        """Return the new world model of an arm; None if the answer had no program."""
        if arm.kind == "init" or arm.base is None:
            return self._write(arm)
        if arm.kind == "reach":
            return self._reach(arm, arm.base)
        return self._fix(arm, arm.base)

    def _write(self, arm: Arm) -> WorldProgram | None:
        """Request both programs from examples."""
        view = self.evaluator.view
        examples = tuple(map(ShownRow, _sample(self.rng, self.all_rows, EXAMPLES)))
        text = self.ask(ProgramQuestion("transition", view, right=examples))
        transition = merge_programs(*extract_programs(text))
        mission = self._missions[self.rng.integers(len(self._missions))]
        own = [row for row in self.rows if view.mission(row.observation) == mission]
        examples = tuple(map(ShownRow, _sample(self.rng, own, EXAMPLES)))
        text = self.ask(ProgramQuestion("reward", view, mission, right=examples))
        reward = merge_programs(*extract_programs(text))
        if not transition and not reward:
            return None
        rewards = {**self._rewards, mission: reward} if reward else self._rewards
        return WorldProgram(transition, rewards)

    def _fix(self, arm: Arm, base: WorldEvaluation) -> WorldProgram | None:
        """Request a fix for a wrong prediction; the question also shows correct predictions."""
        view, world, is_reward = self.evaluator.view, base.world, arm.kind == "reward"
        correct = base.correct_rewards if is_reward else base.correct_states
        predictions = base.rewards if is_reward else base.states
        missions = [view.mission(row.observation) for row in base.rows]
        mission, rows = "", list(range(len(base.rows)))
        if is_reward:
            wrong = {missions[n] for n in rows if not correct[n]}
            mixed = {missions[n] for n in rows if correct[n]} & wrong
            candidates = sorted(mixed or wrong)
            mission = candidates[self.rng.integers(len(candidates))]
            rows = [n for n in rows if missions[n] == mission]
        wrong_rows = [n for n in rows if not correct[n]]
        chosen = wrong_rows[self.rng.integers(len(wrong_rows))]
        right = [ShownRow(base.rows[n]) for n in rows if correct[n]]
        question = ProgramQuestion(
            "fix reward" if is_reward else "fix transition",
            view,
            mission,
            world.transition,
            world.rewards.get(mission, ""),
            right=tuple(_sample(self.rng, right, RIGHT_EXAMPLES)),
            wrong=ShownRow(base.rows[chosen], predictions[chosen]),
        )
        codes = extract_programs(self.ask(question))
        if not codes:
            return None
        if is_reward:
            reward = merge_programs(world.rewards.get(mission, ""), *codes)
            return world.with_reward(mission, reward)
        return WorldProgram(merge_programs(world.transition, *codes), world.rewards)

    def _reach(self, arm: Arm, base: WorldEvaluation) -> WorldProgram | None:
        """Request the missing rules for a start without a plan."""
        start = base.unsolved_starts[self.rng.integers(len(base.unsolved_starts))]
        mission, world = self.evaluator.view.mission(start), base.world
        reward = world.rewards.get(mission, "")
        question = ProgramQuestion(
            "reach", self.evaluator.view, mission, world.transition, reward, start=start
        )
        codes = extract_programs(self.ask(question))
        if not codes:
            return None
        return WorldProgram(
            merge_programs(world.transition, *codes, entries=[TRANSITION, TRANSITION_CASES]),
            {
                **world.rewards,
                mission: merge_programs(reward, *codes, entries=[REWARD, REWARD_CASES]),
            },
        )


def _sample(rng: np.random.Generator, items: Sequence[T], count: int) -> list[T]:
    """Draw at most `count` items without replacement."""
    return [items[n] for n in rng.permutation(len(items))[:count]]
