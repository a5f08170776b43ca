"""The learning strategy `ensemble` of `cwm learn`: act with a trained model, and refit it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, fields
from math import isinf
from typing import Annotated

from pydantic import Field

from cwm_cli.data.dataset import ALL_FITTED, Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.worlds.model import PlanningSession
from cwm_learn.strategy import LearningSession, LearningStrategy, LearningTask
from cwm_neural.training.acting import Collector
from cwm_neural.training.trainer import Agent, Training, TrainingTask


@dataclass
class TrainedLearning(LearningStrategy):
    """Acts with a world model that is trained on all rows so far."""

    model: str = "ensemble"
    """Kind of model, as for `cwm train --model`."""
    profile: str = ""
    """Preset of the ensemble. Default: its own default."""
    every: Annotated[int, Field(ge=1)] = 200
    """Number of steps after which the ensemble is fitted again."""
    warm: Annotated[int, Field(ge=1)] = 200
    """Number of random steps at the start."""
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Probability of a random action after that."""

    def learn(self, session: LearningSession) -> None:
        """Learn each environment from scratch, in order; save the model of the last one."""
        for task in session.tasks:
            training, agent = self._begin(session, task)
            with closing(Collector(task.task, self.epsilon)) as collector:
                self._collect_and_fit(session, training, agent, task, collector)
            if session.over:
                break
        options = {"preset": self.profile} if self.profile else {}
        session.trained(self.model, options, training)

    def _begin(self, session: LearningSession, task: LearningTask) -> tuple[Training, Agent]:
        """Return an untrained model and its agent."""
        factory = find("trainer", self.model)
        factory.check()
        if self.profile and "preset" not in {field.name for field in fields(factory)}:
            raise CwmError(f"{self.model} has no profiles: leave out -o strategy.profile=")
        with closing(task.task.make()) as env:
            spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
        wanted = TrainingTask(*spaces, seed=session.seed, schema=task.schema, env=task.name)
        training = factory(**({"preset": self.profile} if self.profile else {})).begin(wanted)
        agent = training.agent
        if agent is None:
            agent_factory = find("agent", factory.agent)
            agent_factory.check()
            agent = agent_factory().begin(wanted)
        return training, agent

    def _collect_and_fit(
        self,
        session: LearningSession,
        training: Training,
        agent: Agent,
        task: LearningTask,
        collector: Collector,
    ) -> None:
        """Alternate between collecting steps and fitting to all rows, until a budget is used up."""
        with closing(task.task.make()) as env:
            spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
        rows: list[Transition] = []
        acting: PlanningSession | None = None
        while not session.over:
            left = session.steps - len(session.rows)
            wanted = self.every if acting else self.warm
            count = wanted if isinf(left) else min(wanted, int(left))
            fresh = 0
            for row in collector.collect(acting, count):
                rows.append(row)
                fresh += 1
                aim = "exploit" if acting else "explore"
                session.stepped(row, aim=aim)
                if row.terminated or row.truncated:
                    own = (each.reward for each in rows if each.episode == row.episode)
                    session.ended(sum(own), aim=aim)
                if session.over:
                    break
            seen = Dataset.of(
                rows, observation_space=spaces[0], action_space=spaces[1], metadata=ALL_FITTED
            )
            training.fit(seen, fresh)
            agent.fit(training.model, seen, fresh)
            if acting is not None:
                acting.close()
            acting = agent.open(task.task, seed=session.seed)
