"""What the agent asks of a world in two programs: does it fit the data, does it reach the mission.

All of it runs in the sandbox. The transition program is asked with states and actions, the reward
program with states that really followed, so that each is graded alone; whether a world replays
rows is asked of both together. The answers are compared here, and kept: programs and rows do not
change, so each row is asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.remote import ProgramFailed
from cwm_learn.imagination import SearchImagination
from cwm_learn.missions import StateView, WorldProgram, content_words

SAME_REWARD = 1e-6
"""By less than this two rewards may differ."""


class Answered(NamedTuple):
    """What a program said of a row: an observation, or a reward and an end; or its error."""

    observation: Any = None
    reward: float = 0.0
    done: bool = False
    error: str = ""


class FoundPlan(NamedTuple):
    """Actions from a start, and whether a program is paid and done at their end."""

    actions: tuple[int, ...]
    reached: bool


@dataclass
class WorldEvaluator:
    """Asks programs of an environment in the sandbox, each thing once; to be closed."""

    sandbox: Sandbox
    view: StateView
    action_space: Space
    depth: int = 30
    exploration: float = 1.0
    seed: int = 0
    planned: int = field(default=0, init=False)
    """Situations that searches for plans went through."""
    _open: dict[str, SearchImagination] = field(default_factory=dict, init=False, repr=False)
    _known: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def moved(self, transition: str, rows: Sequence[Transition]) -> list[Answered]:
        """Return what a transition program makes of each row."""
        program = WorldProgram(transition).source(self.view)
        return self._asked(program, rows, self.view.space, lambda row: row.observation)

    def paid(self, reward: str, mission: str, rows: Sequence[Transition]) -> list[Answered]:
        """Return what a reward program pays for each row, as it really went."""
        program = WorldProgram("", {mission: reward}).reward_source(self.view)
        pair = Space("tuple", children=(self.view.space, self.view.space))
        return self._asked(program, rows, pair, lambda row: (row.observation, row.next_observation))

    def replays(self, world: WorldProgram, rows: Sequence[Transition]) -> bool:
        """Whether both programs together say of every row what was seen."""
        program = world.source(self.view)
        said = self._asked(program, rows, self.view.space, lambda row: row.observation)
        pairs = zip(said, rows, strict=True)
        return all(self.is_state(o, row) and is_pay(o, row) for o, row in pairs)

    def is_state(self, said: Answered, row: Transition) -> bool:
        """Whether the state was said that followed."""
        return not said.error and self.view.same(said.observation, row.next_observation)

    def plans(self, world: WorldProgram, starts: Sequence[Any], budget: int) -> list[FoundPlan]:
        """Search in a world for a way to the mission from each start, in so many situations."""
        program = world.source(self.view)
        found = []
        for start in starts:
            key = (program, "plan", budget, self.view.key(start), self.view.mission(start))
            if key not in self._known:
                self._known[key] = self._plan(world, program, start, budget)
            found.append(self._known[key])
        return found

    def _plan(self, world: WorldProgram, program: str, start: Any, budget: int) -> FoundPlan:
        """Search from one start; a program that fails, or takes too long, reaches nothing."""
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
                budget=budget,
                depth=self.depth,
                exploration=self.exploration,
            )
        except ProgramFailed:
            return FoundPlan((), reached=False)
        self.planned += int(found["nodes"][0])
        actions = found["plans"][0, : int(found["lengths"][0])].tolist()
        return FoundPlan(tuple(actions), bool(found["reached"][0]))

    def _asked(
        self,
        program: str,
        rows: Sequence[Transition],
        space: Space,
        state: Callable[[Transition], Any],
    ) -> list[Answered]:
        """Ask a program for the rows that it was not asked for yet."""
        keys = [(program, self.row_key(row)) for row in rows]
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._known}
        if new:
            asked = list(new.values())
            arrays = space.pack("observations", [state(row) for row in asked])
            arrays |= self.action_space.pack("actions", [row.action for row in asked])
            try:
                said = self._imagination(program, space).ask(
                    "missions:predict_rows", arrays, space=space.to_json()
                )
                answers = [
                    Answered(
                        space.unpack("next_observations", said, place),
                        float(said["rewards"][place]),
                        bool(said["terminations"][place]),
                        str(said["errors"][place]),
                    )
                    for place in range(len(asked))
                ]
            except (ProgramFailed, ValueError, KeyError, IndexError) as error:
                failure = error.failure.message if isinstance(error, ProgramFailed) else "no answer"
                answers = [Answered(error=failure.splitlines()[0])] * len(asked)
            self._known |= dict(zip(new, answers, strict=True))
        return [self._known[key] for key in keys]

    def row_key(self, row: Transition) -> Hashable:
        """Return what tells a row from others."""
        view = self.view
        before, after = view.key(row.observation), view.key(row.next_observation)
        return (view.mission(row.observation), before, int(row.action), after, row.reward,
                row.terminated)  # fmt: skip

    def _imagination(self, program: str, space: Space) -> SearchImagination:
        """Return the process of a program; of those that are open the oldest is closed.

        Each takes a place in the sandbox as long as it is open, and one has to be left.
        """
        if program in self._open:
            self._open[program] = self._open.pop(program)
        else:
            while self._open and len(self._open) >= self.sandbox.workers - 1:
                self._open.pop(next(iter(self._open))).close()
            none = Dataset.of([], observation_space=space, action_space=self.action_space)
            self._open[program] = SearchImagination(
                self.sandbox, program, none, seed=self.seed, form="scalar"
            )
        return self._open[program]

    def close(self) -> None:
        """End all processes of programs."""
        with ExitStack() as stack:
            while self._open:
                stack.callback(self._open.popitem()[1].close)


def is_pay(said: Answered, row: Transition) -> bool:
    """Whether the reward was said that was paid, and whether that was the end."""
    close = abs(said.reward - row.reward) < SAME_REWARD
    return not said.error and close and said.done == row.terminated


@dataclass(frozen=True)
class WorldEvaluation:
    """How a world fits some rows, and from how many starts it reaches the mission.

    `moves` and `pays` say of each row whether the transition and the reward program are right,
    `moved` and `paid` what they said. `plan_ratio` is None where nothing was planned.
    """

    world: WorldProgram
    rows: tuple[Transition, ...]
    moved: tuple[Answered, ...]
    paid: tuple[Answered, ...]
    moves: tuple[bool, ...]
    pays: tuple[bool, ...]
    exp_ratio: float
    plan_ratio: float | None = None
    weight: float = 1.0
    """The share of the rows among rows and starts."""
    failing: tuple[Any, ...] = ()
    """Starts from which the mission is not reached."""

    @property
    def fits(self) -> bool:
        """Whether every row is as it was."""
        return all(self.moves) and all(self.pays)

    @property
    def ratio(self) -> float:
        """The score that arms are drawn by."""
        if self.plan_ratio is None:
            return self.weight * self.exp_ratio
        return self.weight * self.exp_ratio + (1 - self.weight) * self.plan_ratio

    @property
    def succeeds(self) -> bool:
        """Whether it is right in all that was asked."""
        return self.fits and not self.failing and (self.plan_ratio is not None or self.weight == 1)

    @property
    def rank(self) -> tuple[float, float]:
        """What orders worlds: how much they fit, then from how many starts they get there."""
        return self.exp_ratio, self.plan_ratio or 0.0


def evaluate(
    evaluator: WorldEvaluator,
    world: WorldProgram,
    rows: Sequence[Transition],
    starts: Sequence[Any] | None = None,
    *,
    budget: int = 6000,
) -> WorldEvaluation:
    """Grade a world by the rows, and where it fits them all by the starts, if there are some."""
    view = evaluator.view
    moved = evaluator.moved(world.transition, rows)
    missions = [view.mission(row.observation) for row in rows]
    paid: list[Answered] = [Answered()] * len(rows)
    for mission in dict.fromkeys(missions):
        places = [place for place, each in enumerate(missions) if each == mission]
        code = world.rewards.get(mission, "")
        said = evaluator.paid(code, mission, [rows[place] for place in places])
        for place, outcome in zip(places, said, strict=True):
            paid[place] = outcome
    moves = tuple(evaluator.is_state(o, row) for o, row in zip(moved, rows, strict=True))
    pays = tuple(is_pay(o, row) for o, row in zip(paid, rows, strict=True))
    parts = [
        moves[n]
        + (not o.error and abs(o.reward - row.reward) < SAME_REWARD)
        + (not o.error and o.done == row.terminated)
        for n, (o, row) in enumerate(zip(paid, rows, strict=True))
    ]
    graded = WorldEvaluation(
        world=world,
        rows=tuple(rows),
        moved=tuple(moved),
        paid=tuple(paid),
        moves=moves,
        pays=pays,
        exp_ratio=sum(parts) / (3 * len(rows)) if rows else 1.0,
        weight=1.0 if starts is None else len(rows) / max(1, len(rows) + len(starts)),
    )
    if starts is None or not graded.fits:
        return graded
    plans = evaluator.plans(world, starts, budget)
    failing = tuple(s for s, plan in zip(starts, plans, strict=True) if not plan.reached)
    share = 1 - len(failing) / len(starts) if starts else 1.0
    return WorldEvaluation(**{**vars(graded), "plan_ratio": share, "failing": failing})
