"""The search of the agent for a world: arms that ask for programs, drawn by Thompson sampling.

An arm is a way to go on: to write both programs anew, or to mend one of a world that is known, by a
counterexample or by a start from which the mission is out of reach. Each pull asks whoever answers
once or twice, grades what comes back, and adds the arms that this opens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from cwm_cli.data.dataset import Transition
from cwm_learn.missions import REWARD, TRANSITION, WorldProgram, merge_programs
from cwm_worldcoder.asking import ProgramQuestion, Shown, programs_in
from cwm_worldcoder.evaluating import WorldEvaluation, WorldEvaluator, evaluate

Kind = Literal["init", "transition", "reward", "reach"]
Ask = Callable[[ProgramQuestion], str]

FIRST, RIGHT = 7, 3
"""Examples for a first program, and those beside a counterexample that are handled."""

BANDIT = re.compile(r"thompson|greedy|(bfs|grid)([1-9]\d*)")
"""How the next arm is chosen."""

TIES = 1e-5
"""The spread of the noise that decides between equal arms, where the greedy choice is taken."""


@dataclass
class Arm:
    """A way to go on from a world, and what came of it so far: `good` and `bad` weigh the two."""

    kind: Kind
    base: WorldEvaluation | None
    good: float
    bad: float
    mission: str = ""
    pulls: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)

    @property
    def score(self) -> float:
        """The score of the world that it goes on from."""
        return self.base.ratio if self.base else 0.0


@dataclass
class WorldSearch:
    """Searches for a world that fits rows and, if there are starts, reaches the mission from each.

    `rows` and `starts` are those of the missions that count; `everything` are all rows, which first
    transition programs are written from. `bandit` says how arms are chosen: thompson, greedy, bfsN
    (the oldest first, at most N pulls each) or gridN (N first programs, one refinement each).
    """

    evaluator: WorldEvaluator
    ask: Ask
    rows: Sequence[Transition]
    everything: Sequence[Transition]
    starts: Sequence[Any] | None
    rng: np.random.Generator
    budget: int = 6000
    bandit: str = "thompson"
    prior_weight: float = 5.0
    arms: list[Arm] = field(default_factory=list, init=False)
    pulled: list[tuple[str, float]] = field(default_factory=list, init=False)
    """The kind of each arm that was pulled, and the score of what came of it."""
    _seen: set[Any] = field(default_factory=set, init=False, repr=False)
    _best: list[WorldEvaluation] = field(default_factory=list, init=False, repr=False)
    _moving: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _paying: dict[tuple[str, ...], Mapping[str, str]] = field(
        default_factory=dict, init=False, repr=False
    )

    def search(self, given: WorldProgram | None, pulls: int) -> WorldEvaluation | None:
        """Return a world that is right, or the best that so many pulls led to."""
        self._rewards = dict(given.rewards) if given else {}
        self.arms.append(Arm("init", None, 1.0, 1.0))
        if given is not None and (found := self._take(self._graded(given))):
            return found
        for _ in range(pulls):
            arm = self._chosen()
            if arm is None:
                break
            world = self._pull(arm)
            graded = self._graded(world) if world else None
            found = self._take(graded) if graded else None
            arm.pulls += 1
            arm.good += found is not None
            arm.bad += found is None
            self.pulled.append((arm.kind, graded.ratio if graded else 0.0))
            if found:
                return found
        return self._best[self.rng.integers(len(self._best))] if self._best else None

    def _graded(self, world: WorldProgram) -> WorldEvaluation:
        return evaluate(self.evaluator, world, self.rows, self.starts, budget=self.budget)

    def _take(self, graded: WorldEvaluation) -> WorldEvaluation | None:
        """Take a graded world in; return one that is right: itself, or parts of several."""
        if graded.succeeds:
            return graded
        if not self._best or graded.rank > self._best[0].rank:
            self._best = [graded]
        elif graded.rank == self._best[0].rank:
            self._best.append(graded)
        self._add_arms(graded)
        world = graded.world
        rewards = {m: world.rewards.get(m, "") for m in self._missions}
        key = tuple(rewards.values())
        pairs = []
        if all(graded.moves) and world.transition not in self._moving:
            self._moving[world.transition] = None
            pairs += [(world.transition, each) for each in self._paying.values()]
        if all(graded.pays) and key not in self._paying:
            self._paying[key] = rewards
            pairs += [(each, rewards) for each in self._moving if each != world.transition]
        for transition, pays in pairs:
            joined = self._graded(WorldProgram(transition, {**world.rewards, **pays}))
            if joined.succeeds:
                return joined
            self._add_arms(joined)
        return None

    @property
    def _missions(self) -> list[str]:
        view = self.evaluator.view
        states = [row.observation for row in self.rows] + list(self.starts or ())
        return list(dict.fromkeys(map(view.mission, states)))

    def _add_arms(self, graded: WorldEvaluation) -> None:
        """Add the ways to go on from a world that are not there yet."""
        wanted: list[tuple[Kind, str]] = []
        if not all(graded.moves) and any(graded.moves):
            wanted.append(("transition", graded.world.transition))
        if not all(graded.pays) and any(graded.pays):
            wanted.append(("reward", repr(sorted(graded.world.rewards.items()))))
        if graded.failing:
            wanted.append(("reach", repr(graded.world)))
        for kind, code in wanted:
            key = kind, code, len(graded.rows), len(graded.failing)
            if key not in self._seen:
                self._seen.add(key)
                weight, score = self.prior_weight, graded.ratio
                self.arms.append(Arm(kind, graded, 1 + weight * score, 1 + weight * (1 - score)))

    def _chosen(self) -> Arm | None:
        """Choose the next arm; None where none may be pulled any more."""
        found = BANDIT.fullmatch(self.bandit)
        if found is None:
            raise ValueError("bandit must be thompson, greedy, bfsN or gridN")
        if self.bandit == "thompson":
            draws = [self.rng.beta(arm.good, arm.bad) for arm in self.arms]
            return self.arms[int(np.argmax(draws))]
        if self.bandit == "greedy":
            scores = [arm.score + self.rng.normal(0, TIES) for arm in self.arms]
            return self.arms[int(np.argmax(scores))]
        most = int(found[2])
        limits = {"init": most} if found[1] == "grid" else {}
        usual = 1 if found[1] == "grid" else most
        may = (arm for arm in self.arms if arm.pulls < limits.get(arm.kind, usual))
        return next(may, None)

    def _pull(self, arm: Arm) -> WorldProgram | None:
        """Ask for what an arm stands for; None where no program came back."""
        if arm.kind == "init" or arm.base is None:
            return self._anew(arm)
        if arm.kind == "reach":
            return self._reach(arm, arm.base)
        return self._mend(arm, arm.base)

    def _anew(self, arm: Arm) -> WorldProgram | None:
        """Write both programs from examples."""
        view = self.evaluator.view
        moved = [Shown(row) for row in _drawn(arm.rng, self.everything, FIRST)]
        text = self.ask(ProgramQuestion("transition", view, right=tuple(moved)))
        transition = merge_programs(*programs_in(text))
        mission = self._missions[arm.rng.integers(len(self._missions))]
        own = [row for row in self.rows if view.mission(row.observation) == mission]
        paid = [Shown(row) for row in _drawn(arm.rng, own, FIRST)]
        text = self.ask(ProgramQuestion("reward", view, mission, right=tuple(paid)))
        reward = merge_programs(*programs_in(text))
        if not transition and not reward:
            return None
        rewards = {**self._rewards, mission: reward} if reward else self._rewards
        return WorldProgram(transition, rewards)

    def _mend(self, arm: Arm, base: WorldEvaluation) -> WorldProgram | None:
        """Show a program what it gets wrong once, and up to three times what it gets right."""
        view, mission, world = self.evaluator.view, "", base.world
        marks = base.moves if arm.kind == "transition" else base.pays
        said = base.moved if arm.kind == "transition" else base.paid
        missions = [view.mission(row.observation) for row in base.rows]
        places = list(range(len(base.rows)))
        if arm.kind == "reward":
            wrong = {missions[n] for n in places if not marks[n]}
            both = {missions[n] for n in places if marks[n]} & wrong
            among = sorted(both or wrong)
            mission = among[arm.rng.integers(len(among))]
            places = [n for n in places if missions[n] == mission]
        wrong_ones = [n for n in places if not marks[n]]
        chosen = wrong_ones[arm.rng.integers(len(wrong_ones))]
        right = [Shown(base.rows[n]) for n in places if marks[n]]
        question = ProgramQuestion(
            "mend transition" if arm.kind == "transition" else "mend reward",
            view,
            mission,
            world.transition,
            world.rewards.get(mission, ""),
            right=tuple(_drawn(arm.rng, right, RIGHT)),
            wrong=Shown(base.rows[chosen], said[chosen]),
        )
        codes = programs_in(self.ask(question))
        if not codes:
            return None
        if arm.kind == "transition":
            return WorldProgram(merge_programs(world.transition, *codes), world.rewards)
        return world.with_reward(mission, merge_programs(world.rewards.get(mission, ""), *codes))

    def _reach(self, arm: Arm, base: WorldEvaluation) -> WorldProgram | None:
        """Ask what is missing, that the mission cannot be reached from a start."""
        start = base.failing[arm.rng.integers(len(base.failing))]
        mission, world = self.evaluator.view.mission(start), base.world
        reward = world.rewards.get(mission, "")
        question = ProgramQuestion(
            "reach", self.evaluator.view, mission, world.transition, reward, start=start
        )
        codes = programs_in(self.ask(question))
        if not codes:
            return None
        return WorldProgram(
            merge_programs(world.transition, *codes, entries=[TRANSITION]),
            {**world.rewards, mission: merge_programs(reward, *codes, entries=[REWARD])},
        )


T = TypeVar("T")


def _drawn(rng: np.random.Generator, some: Sequence[T], most: int) -> list[T]:
    """Draw at most so many, each at most once."""
    places = rng.permutation(len(some))[:most]
    return [some[place] for place in places]
