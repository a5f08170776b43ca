"""The agent of WorldCoder: acts on a world model of two programs, and has wrong programs fixed.

After Tang, Key and Ellis (2024). A world model has to predict the data (phi 1) and to contain a
plan for the mission from every start (phi 2). So a world model without any reward is wrong even
before the first reward. The agent then tries the invented rules, which confirms or refutes them.
`docs/reference/published.md` lists the differences from the published code.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from cwm_cli.data.dataset import Transition
from cwm_cli.data.objects import MISSION
from cwm_cli.data.spaces import refuse_pictures
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import random_action, seeds_of
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.worlds.remote import OutOfTime
from cwm_learn.missions import StateView, merge_programs
from cwm_learn.strategy import LearningSession, LearningStrategy, LearningTask
from cwm_worldcoder.arms import BANDIT, WorldSearch
from cwm_worldcoder.asking import ProgramQuestion, extract_programs
from cwm_worldcoder.evaluating import WorldEvaluator
from cwm_worldcoder.proposer import RuleProposer
from cwm_worldcoder.world_program import WorldProgram, nearest_missions


@dataclass
class WorldCoderAgent(LearningStrategy):
    """Learns environments of objects with missions (Tang, Key and Ellis, 2024).

    A language model writes the programs. Without a model, rules are learned offline.
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
        """Learn the environments in order; each one starts with the previous world model."""
        world: WorldProgram | None = None
        for task in session.tasks:
            with closing(TaskLearner(self, session, task, world)) as learner:
                learner.learn()
                world = learner.world
                if session.goal is not None and task is session.tasks[-1]:
                    learner.pursue(session.goal)
            if session.over:
                return


class FailedSearch(NamedTuple):
    """The last search without a solution; it is repeated after `pause` new rows of its mission.

    Each further failure doubles the pause, so that rows that no program explains cost few searches.
    """

    mission: str
    starts: int
    rows: int
    pause: int = 1


@dataclass
class TaskLearner:
    """Learns one environment, starting with a given world model and without rows."""

    agent: WorldCoderAgent
    session: LearningSession
    task: LearningTask
    world: WorldProgram | None = None
    rows: dict[Hashable, Transition] = field(default_factory=dict, init=False)
    """All different rows."""
    starts: dict[tuple[str, Hashable], Any] = field(default_factory=dict, init=False)
    """All different initial observations."""
    succeeded: list[bool] = field(default_factory=list, init=False)
    """Whether each episode ended with a reward."""

    def __post_init__(self) -> None:
        self.env = self.task.task.make()
        actions = space_of(self.env.action_space, "actions")
        if actions.kind != "discrete":
            raise CwmError("the agent of WorldCoder needs discrete actions: leave out --strategy")
        observations = space_of(self.env.observation_space)
        refuse_pictures(observations)
        first = int(actions.low[0])
        self.view = StateView(observations, self.task.schema, self.task.actions, first)
        self.evaluator = WorldEvaluator(
            self.session.sandbox,
            self.view,
            actions,
            depth=self.agent.depth,
            exploration=self.agent.uct,
            seed=self.session.seed,
            seconds_left=self.session.seconds_left,
        )
        self.rng = np.random.default_rng(self.session.seed)
        self.env.action_space.seed(seeds_of(self.session.seed, 0)[1])
        self._offline = RuleProposer()
        self._requests: list[str] = []  # hashes of their prompts
        self._failed_search: FailedSearch | None = None
        self._plan: list[int] = []
        self._pause = self._steps_to_search = 0

    @property
    def request_count(self) -> int:
        """The number of requests so far."""
        return len(self._requests)

    def learn(self) -> None:
        """Play until the last `patience` episodes succeeded, or the session is over."""
        patience = self.agent.patience
        for number in range(self.agent.episodes):
            if self.session.over or (number > patience and all(self.succeeded[-patience:])):
                return
            self.play_episode(number)

    def play_episode(self, number: int) -> None:
        """Play an episode, and fix wrong programs."""
        seed, _ = seeds_of(self.session.seed, number)
        observation, _ = self.env.reset(seed=seed)
        mission, total, aim, row = self.view.mission(observation), 0.0, "explore", None
        self._reset_plan()
        if self.agent.single_start:
            self.starts.clear()
        self.starts[mission, self.view.key(observation)] = observation
        with suppress(OutOfTime):
            if self.world is not None and mission not in self.world.rewards:
                self.guess_reward(mission)
            searched = False  # after the first search of an episode, plans are not checked any more
            if len(self.rows) >= self.agent.warm:
                searched = self._fix_world(mission, plans=True)
            # maximum steps per episode without requests for programs, as a multiple of `warm`
            max_warm_steps = 2
            for step in range(min(self.agent.length, self.task.task.limit)):
                action, aim = self.choose(observation, mission)
                row = self._step(observation, action, number, aim)
                total, observation = total + row.reward, row.next_observation
                is_warm = step >= max_warm_steps * self.agent.warm
                if (is_warm or len(self.rows) >= self.agent.warm) and not self.session.over:
                    searched |= self._fix_world(mission, plans=not searched)
                if row.terminated or row.truncated or self.session.over:
                    break
        self.succeeded.append(row is not None and row.terminated and row.reward > 0)
        if row is not None:
            self.session.ended(total, aim=aim)

    def pursue(self, goal: str) -> None:
        """Act for a mission that the environment does not have, with a guessed reward.

        The guessed reward program also determines the return of an episode.
        """
        if not self.view.has_mission:
            raise CwmError(f"{self.task.name} has no missions in words: leave out --strategy")
        if self.world is not None and goal not in self.world.rewards:
            self.guess_reward(goal)
        for number in range(self.agent.episodes, self.agent.episodes + self.agent.patience):
            if self.session.over or self.world is None or not self.world.is_complete(goal):
                return
            seed, _ = seeds_of(self.session.seed, number)
            observation, total, aim = self.env.reset(seed=seed)[0], 0.0, "explore"
            row, self._plan = None, []
            with suppress(OutOfTime):
                for _ in range(min(self.agent.length, self.task.task.limit)):
                    action, aim = self.choose({**observation, MISSION: goal}, goal)
                    row = self._step(observation, action, number, aim)
                    observation = row.next_observation
                    before, after = ({**o, MISSION: goal} for o in (row.observation, observation))
                    goal_row = row._replace(observation=before, next_observation=after)
                    code = self.world.rewards[goal]
                    [found] = self.evaluator.predict_rewards(code, goal, [goal_row])
                    total += found.reward
                    if found.done or row.terminated or row.truncated or self.session.over:
                        break
            if row is not None:
                self.session.ended(total, aim=aim)

    def choose(self, observation: Any, mission: str) -> tuple[int, str]:
        """Return the next action of a plan, or a random action, and the aim.

        If a search finds no plan, it is repeated after 1, 3, 7, ... steps with 2, 4, 8, ... times
        the nodes: a plan may exist although a short search misses it.
        """
        allowed = self.task.task.allowed(self.env)
        random = self.rng.random() < self.agent.exploration
        if self.world is None or random or not self.world.is_complete(mission):
            self._plan = []
        elif not self._plan and self._steps_to_search:
            self._steps_to_search -= 1
        elif not self._plan:
            nodes = 3 * self.agent.plan_nodes * (1 + self._pause)
            self._plan = self.session.compute(
                "planning", partial(self._plan_from, observation, nodes)
            )
            self._pause = 0 if self._plan else 2 * self._pause + 1
            self._steps_to_search = self._pause
        if self._plan and (allowed is None or self._plan[0] in allowed):
            return self._plan.pop(0), "exploit"
        self._plan = []
        return int(random_action(self.env.action_space, allowed)), "explore"

    def guess_reward(self, mission: str) -> None:
        """Request a reward program for a mission; the prompt shows similar missions."""
        world = self.world or WorldProgram()
        known = {m: code for m, code in world.rewards.items() if code}
        others = {each: known[each] for each in nearest_missions(mission, known)}
        if not others or self.session.over:
            return
        question = ProgramQuestion("guess reward", self.view, mission, others=others)

        def guess() -> tuple[WorldProgram, bool]:
            codes = extract_programs(self._ask(question))
            return world.with_reward(
                mission, merge_programs(*reversed(others.values()), *codes)
            ), True

        self._update_world(guess, f"the reward of {mission!r} is guessed")

    def _step(self, observation: Any, action: int, episode: int, aim: str) -> Transition:
        before = deepcopy(observation)
        after, reward, terminated, truncated, _ = self.env.step(action)
        row = Transition(
            before,
            action,
            deepcopy(after),
            float(reward),
            bool(terminated),
            bool(truncated),
            episode,
            valid=self.task.task.allowed(self.env),
        )
        self.rows.setdefault(self.evaluator.row_key(row), row)
        mismatched = False
        if self.world is not None:
            with suppress(OutOfTime), self.session.timed("planning"):
                mismatched = not self.evaluator.predicts_all(self.world, [row])
        self.session.stepped(row, aim=aim, mismatched=mismatched)
        return row

    def _fix_world(self, mission: str, *, plans: bool) -> bool:
        """Search for a better world model if needed; return whether one was needed."""
        world, plans = self.world, plans and self.agent.optimism
        rows = [row for row in self.rows.values() if self.view.mission(row.observation) == mission]
        starts = [start for (own, _), start in self.starts.items() if own == mission]
        if not rows:
            return False
        if world and world.is_complete(mission):
            with self.session.timed("planning"):
                is_right = self.evaluator.predicts_all(world, rows)
            if is_right and (not plans or self._has_plans(world, starts)):
                return False
        failed, known = self._failed_search, FailedSearch(mission, len(starts), len(rows))
        if failed is None or failed[:2] != known[:2] or len(rows) >= failed.rows + failed.pause:
            search = partial(self._search, rows, starts if self.agent.optimism else None)
            pause = 2 * failed.pause if failed and failed[:2] == known[:2] else 1
            solved = self._update_world(search)
            self._failed_search = None if solved else known._replace(pause=pause)
        return True

    def _has_plans(self, world: WorldProgram, starts: Sequence[Any]) -> bool:
        """Return whether a world model has a plan from every start."""
        nodes = self.agent.plan_nodes
        return self.session.compute(
            "planning",
            lambda: all(plan.reached for plan in self.evaluator.find_plans(world, starts, nodes)),
        )

    def _plan_from(self, observation: Any, nodes: int) -> list[int]:
        """Return the actions of a plan, none if the search finds no plan."""
        assert self.world is not None
        [found] = self.evaluator.find_plans(self.world, [observation], nodes)
        return list(found.actions) if found.reached else []

    def _search(
        self, rows: Sequence[Transition], starts: Sequence[Any] | None
    ) -> tuple[WorldProgram | None, bool]:
        """Search for a world model that fits the rows, and then for one with plans as well.

        Returns:
            The best world model, and whether it is a solution.
        """
        stages = [None, starts] if self.agent.two_stages and starts is not None else [starts]
        world, solved = self.world, False
        for number, stage in enumerate(stages):
            search = WorldSearch(
                self.evaluator,
                self._ask,
                rows,
                list(self.rows.values()),
                stage,
                np.random.default_rng([self.session.seed, len(self.session.rows), number]),
                budget=self.agent.plan_nodes,
                bandit=self.agent.bandit,
                prior_weight=self.agent.prior_weight,
            )
            found = search.search(world, self.agent.pulls)
            world = found.world if found is not None else world
            solved = found is not None and found.is_solution
            if not solved or self.session.over:
                break
        return world, solved

    def _update_world(
        self, write: Callable[[], tuple[WorldProgram | None, bool]], reason: str = ""
    ) -> bool:
        """Adopt the programs that a function returns; return whether they are a solution."""
        first = len(self._requests)

        def compute() -> dict[str, Any]:
            world, solved = write()
            facts = None if world is None else asdict(world)
            return {"world": facts, "solved": solved, "requests": self._requests[first:]}

        found = self.session.compute("writing", compute)
        self._requests[first:] = found["requests"]
        self._reset_plan()
        if found["world"] is not None:
            self.world = WorldProgram(**found["world"])
            reason = reason or (
                "it fits the recorded rows" if found["solved"] else "the best program so far"
            )
            if (program := self.world.source(self.view)) != self.session.program:
                self.session.wrote(program, reason)
        return bool(found["solved"])

    def _reset_plan(self) -> None:
        self._plan, self._pause, self._steps_to_search = [], 0, 0

    def _ask(self, question: ProgramQuestion) -> str:
        """Return the answer of the model or of the offline rules, "" if the session is over."""
        if self.session.over:
            return ""
        step, backend = len(self._requests), self.session.backend
        messages = question.messages() if backend else ()  # the offline rules read no prompt
        request = Request(messages, self.session.seed, Move(GENERATE), question, step)
        key = request.key if backend else ""
        self._requests.append(key)
        if backend is None:
            return self._offline.complete(request).text
        return self.session.complete(
            request._replace(occurrence=self._requests[:-1].count(key))
        ).text

    def close(self) -> None:
        """Close the environment and the processes of programs."""
        self.env.close()
        self.evaluator.close()
