"""The agent of WorldCoder: acts on a world in two programs, and has it mended when it is wrong.

After Tang, Key and Ellis (2024). A world has to fit what was seen (phi 1), and to say how the
mission can be reached from every start (phi 2), so that one in which nothing pays is wrong before
anything was paid: what it then invents is tried, and comes true or is refuted.
`docs/reference/published.md` says where the published code is done right instead of as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from cwm_cli.data.dataset import Transition
from cwm_cli.data.objects import MISSION
from cwm_cli.data.spaces import refuse_pictures
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import random_action, seeds_of
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import GENERATE, Backend, Move, Request
from cwm_learn.missions import StateView, WorldProgram, merge_programs, nearest_missions
from cwm_learn.strategy import LearningSession, LearningStrategy, LearningTask
from cwm_worldcoder.arms import BANDIT, WorldSearch
from cwm_worldcoder.asking import ProgramQuestion, programs_in
from cwm_worldcoder.evaluating import WorldEvaluator
from cwm_worldcoder.proposer import RuleProposer

WARM_SHARE = 2
"""So many times the rows to begin with is the longest that an episode warms up."""


@dataclass
class WorldCoderAgent(LearningStrategy):
    """Learns worlds of objects with missions (Tang, Key and Ellis, 2024).

    A language model writes the programs, or, where none is named, rules that are offered offline.
    """

    warm: Annotated[int, Field(ge=1)] = 10
    """Number of different rows to collect at random before the first program is written."""
    exploration: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Fraction of the actions that are random."""
    length: Annotated[int, Field(ge=1)] = 100
    """Maximum number of steps in an episode."""
    patience: Annotated[int, Field(ge=1)] = 10
    """Number of successful episodes in a row before the next environment."""
    episodes: Annotated[int, Field(ge=1)] = 1000
    """Maximum number of episodes in an environment."""
    plan_nodes: Annotated[int, Field(ge=1)] = 6000
    """Maximum number of nodes in a search for a plan when a program is checked; three times as many
    when the agent acts."""
    depth: Annotated[int, Field(ge=1)] = 30
    """Maximum length of a plan."""
    uct: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the exploration term in the search for a plan."""
    pulls: Annotated[int, Field(ge=1)] = 50
    """Maximum number of bandit pulls in a search for a program."""
    prior_weight: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    """Number of pulls that a program's score counts for (C in the paper)."""
    bandit: str = "thompson"
    """Choice of the next arm: thompson, greedy, bfsN or gridN."""
    optimism: bool = True
    """Require that the program can reach the mission (phi 2); if false, it must only fit the
    data."""
    two_stages: bool = True
    """Fit the data first, then make the mission reachable; if false, do both together."""
    single_start: bool = False
    """Require a plan from the newest initial state only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not BANDIT.fullmatch(self.bandit):
            raise ValueError("bandit must be thompson, greedy, bfsN or gridN")

    def learn(self, session: LearningSession) -> None:
        """Learn one environment after the other; what is known of how things move is carried on."""
        world: WorldProgram | None = None
        for task in session.tasks:
            with closing(TaskLearner(self, session, task, world)) as learner:
                learner.learn()
                world = learner.world
                if session.goal is not None and task is session.tasks[-1]:
                    learner.pursue(session.goal)
            if session.over:
                return


class Failed(NamedTuple):
    """A search that came to nothing: the rows that it knew, and whether it was for plans."""

    rows: int
    plans: bool


@dataclass
class TaskLearner:
    """Learns one environment; it begins with the world of the one before, and no rows."""

    agent: WorldCoderAgent
    session: LearningSession
    task: LearningTask
    world: WorldProgram | None = None
    rows: dict[Hashable, Transition] = field(default_factory=dict, init=False)
    """Every row that differs from the others."""
    starts: dict[tuple[str, Hashable], Any] = field(default_factory=dict, init=False)
    succeeded: list[bool] = field(default_factory=list, init=False)
    """Of each episode whether its last step was paid and ended it."""
    pulls: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.env = self.task.task.make()
        actions = space_of(self.env.action_space, "actions")
        if actions.kind != "discrete":
            raise CwmError("the agent of WorldCoder needs discrete actions: leave out --strategy")
        observations = space_of(self.env.observation_space)
        refuse_pictures(observations, "a program")
        self.view = StateView(
            observations,
            self.task.schema,
            self.task.actions,
            int(actions.low[0]),
        )
        self.evaluator = WorldEvaluator(
            self.session.sandbox,
            self.view,
            actions,
            depth=self.agent.depth,
            exploration=self.agent.uct,
            seed=self.session.seed,
        )
        self.rng = np.random.default_rng(self.session.seed)
        self.env.action_space.seed(seeds_of(self.session.seed, 0)[1])
        self.backend: Backend = self.session.backend or RuleProposer()
        self._asked: Counter[str] = Counter()
        self._failed: Failed | None = None
        self._pause = self._waits = 0
        self._plan: list[int] = []

    @property
    def asked(self) -> int:
        """How many questions were asked."""
        return self._asked.total()

    def learn(self) -> None:
        """Play episodes until the last ones all succeeded, or the session is over."""
        patience = self.agent.patience
        for number in range(self.agent.episodes):
            if self.session.over:
                return
            if number > patience and all(self.succeeded[-patience:]):
                return
            self.episode(number)

    def episode(self, number: int) -> None:
        """Play an episode: plan, act, and have the world mended where it is wrong."""
        seed, _ = seeds_of(self.session.seed, number)
        observation, _ = self.env.reset(seed=seed)
        mission, returned, aim, succeeded = self.view.mission(observation), 0.0, "explore", False
        tried, self._plan, self._pause, self._waits = False, [], 0, 0
        if self.world is not None and mission not in self.world.rewards:
            self.guess(mission)
        if self.agent.single_start:
            self.starts.clear()
        self.starts[mission, self.view.key(observation)] = observation
        if len(self.rows) >= self.agent.warm:
            tried = self._mended(mission, plans=True)
        for step in range(min(self.agent.length, self.task.task.limit)):
            action, aim = self.act(observation, mission)
            row = self._stepped(observation, action, number, aim)
            returned, observation = returned + row.reward, row.next_observation
            warms = len(self.rows) < self.agent.warm and step < WARM_SHARE * self.agent.warm
            if not warms and not self.session.over:
                tried |= self._mended(mission, plans=not tried)
            succeeded = row.terminated and row.reward > 0
            if row.terminated or row.truncated or self.session.over:
                break
        self.succeeded.append(succeeded)
        self.session.ended(returned, aim=aim)

    def pursue(self, goal: str) -> None:
        """Act for a mission that the environment does not know, by a reward that is guessed.

        Nobody else can say what it pays: the guess decides what an episode returns.
        """
        if not self.view.has_mission:
            raise CwmError(f"{self.task.name} has no missions in words: leave out --strategy")
        if self.world is not None and goal not in self.world.rewards:
            self.guess(goal)
        for number in range(self.agent.patience):
            if self.session.over or self.world is None or not self.world.is_complete(goal):
                return
            seed, _ = seeds_of(self.session.seed, self.agent.episodes + number)
            observation, returned, aim = self.env.reset(seed=seed)[0], 0.0, "explore"
            self._plan = []
            for _ in range(min(self.agent.length, self.task.task.limit)):
                action, aim = self.act({**observation, MISSION: goal}, goal)
                row = self._stepped(observation, action, self.agent.episodes + number, aim)
                observation = row.next_observation
                code = self.world.rewards[goal]
                [said] = self.evaluator.paid(code, goal, [_meant(row, goal)])
                returned += said.reward
                if said.done or row.terminated or row.truncated or self.session.over:
                    break
            self.session.ended(returned, aim=aim)

    def act(self, observation: Any, mission: str) -> tuple[int, str]:
        """Return what to do and what for: the next action of a plan, or a random one.

        Where no plan was found, one is searched for again after 1, 3, 7 ... steps, in twice as many
        situations each time: one that a search was too short for is there all the same.
        """
        allowed = self.task.task.allowed(self.env)
        wanders = self.rng.random() < self.agent.exploration
        if self.world is None or wanders or not self.world.is_complete(mission):
            self._plan = []
            return int(random_action(self.env.action_space, allowed)), "explore"
        if not self._plan and self._waits:
            self._waits -= 1
        elif not self._plan:
            nodes = 3 * self.agent.plan_nodes * (1 + self._pause)
            [found] = self.evaluator.plans(self.world, [observation], nodes)
            self._plan = list(found.actions) if found.reached else []
            self._pause = 0 if found.reached else 2 * self._pause + 1
            self._waits = self._pause
        if self._plan and (allowed is None or self._plan[0] in allowed):
            return self._plan.pop(0), "exploit"
        self._plan = []
        return int(random_action(self.env.action_space, allowed)), "explore"

    def guess(self, mission: str) -> None:
        """Have a reward guessed for a mission that was never met, from those of the nearest."""
        world = self.world or WorldProgram()
        known = {m: code for m, code in world.rewards.items() if code}
        others = {each: known[each] for each in nearest_missions(mission, known)}
        if not others or self.session.over:
            return
        question = ProgramQuestion("guess reward", self.view, mission, others=others)
        codes = programs_in(self._answered(question))
        self.world = world.with_reward(mission, merge_programs(*reversed(others.values()), *codes))
        self._changed(f"the reward of {mission!r} is guessed")

    def _stepped(self, observation: Any, action: int, episode: int, aim: str) -> Transition:
        """Take a step, and tell of it."""
        before = deepcopy(observation)
        found, reward, terminated, truncated, _ = self.env.step(action)
        row = Transition(
            before,
            action,
            deepcopy(found),
            float(reward),
            bool(terminated),
            bool(truncated),
            episode,
            valid=self.task.task.allowed(self.env),
        )
        self.rows.setdefault(self.evaluator.row_key(row), row)
        mismatched = self.world is not None and not self.evaluator.replays(self.world, [row])
        self.session.stepped(row, aim=aim, mismatched=mismatched)
        return row

    def _mended(self, mission: str, *, plans: bool) -> bool:
        """Have the world mended unless it does what it has to; return whether that was tried."""
        view = self.view
        rows = [row for row in self.rows.values() if view.mission(row.observation) == mission]
        starts = [start for (of, _), start in self.starts.items() if of == mission]
        plans = plans and self.agent.optimism
        if not rows:
            return False
        world = self.world
        fits = (
            world is not None and world.is_complete(mission) and self.evaluator.replays(world, rows)
        )
        reaches = fits and world is not None and plans
        if reaches and world is not None:
            found = self.evaluator.plans(world, starts, self.agent.plan_nodes)
            reaches = all(plan.reached for plan in found)
        if fits and (reaches or not plans):
            return False
        if self._failed == Failed(len(self.rows), plans):
            return True  # nothing was seen since that could help
        self._search(rows, starts if self.agent.optimism else None)
        return True

    def _search(self, rows: list[Transition], starts: list[Any] | None) -> None:
        """Search for a world: one that fits first, then one that reaches the mission as well."""
        stages = [None, starts] if self.agent.two_stages and starts is not None else [starts]
        succeeds = False
        for wanted in stages:
            search = WorldSearch(
                self.evaluator,
                self._answered,
                rows,
                list(self.rows.values()),
                wanted,
                self.rng,
                budget=self.agent.plan_nodes,
                bandit=self.agent.bandit,
                prior_weight=self.agent.prior_weight,
            )
            found = search.search(self.world, self.agent.pulls)
            self.pulls.update(kind for kind, _ in search.pulled)
            succeeds = found is not None and found.succeeds
            if found is not None:
                self.world = found.world
            if not succeeds or self.session.over:
                break
        self._failed = None if succeeds else Failed(len(self.rows), starts is not None)
        self._changed("it fits what was seen" if succeeds else "the best that was found")

    def _changed(self, why: str) -> None:
        """Act on another world from now on."""
        self._plan, self._pause, self._waits = [], 0, 0
        if self.world is not None:
            self.session.wrote(self.world.source(self.view), why)

    def _answered(self, question: ProgramQuestion) -> str:
        """Ask whoever answers; "" where the session is over."""
        if self.session.over:
            return ""
        messages = question.messages()
        step = self.asked
        request = Request(messages, self.session.seed, Move(GENERATE), question, step)
        request = request._replace(occurrence=self._asked[request.key])
        self._asked[request.key] += 1
        if self.session.backend is None:
            return self.backend.complete(request).text
        return self.session.complete(request).text

    def close(self) -> None:
        """Let go of the environment and of the processes of programs."""
        self.env.close()
        self.evaluator.close()


def _meant(row: Transition, goal: str) -> Transition:
    """Return a row as if the goal were its mission."""
    before, after = ({**o, MISSION: goal} for o in (row.observation, row.next_observation))
    return row._replace(observation=before, next_observation=after)
