"""Measure a world model and the environment that it predicts, in turn and on the same rows."""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from cwm_cli.bench.speed.comparison import Measured
from cwm_cli.bench.speed.environment import walks_of
from cwm_cli.bench.speed.pace import paces
from cwm_cli.bench.speed.world_model import Stepped, step_program
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.tasks import Setting, step_limit
from cwm_cli.evaluation import Metric, evaluate
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds import EnvironmentModel, ProgramModel


@dataclass(frozen=True)
class World:
    """An environment with its arguments, and how answers about it are scored."""

    spec: EnvironmentSpec
    env_args: dict[str, Any]
    metric: Metric
    seed: int = 0

    def measure(
        self, program: str, sandbox: Sandbox, *, asked: Dataset, timed: Dataset
    ) -> Measured:
        """Score program and environment on the rows `asked`, and time both on those `timed`.

        A program that fails scores 0, and has a failure instead of paces.
        """
        found = evaluate(ProgramModel(program, sandbox), asked, self.metric, seed=self.seed)
        with closing(self.spec.make(**self.env_args)) as env:
            setting = Setting(self.spec.id, self.env_args, self.seed, step_limit(env))
            walks = walks_of(self.spec, env, setting.task(self.spec), timed)
            if found.failure:
                stepped = Stepped(len(timed), paces(walks), {}, found.failure)
            else:
                stepped = step_program(program, timed, sandbox, walks, seed=self.seed)
        truth = EnvironmentModel(self.spec, self.env_args)
        reached = self.metric.ceiling(truth, asked, seed=self.seed)
        return Measured(found.score, reached, stepped)

    def description(self) -> str:
        """Return what a language model is told about the environment."""
        with closing(self.spec.make(**self.env_args)) as env:
            return self.spec.describe(env)
