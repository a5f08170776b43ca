"""Examples of the parts of the core that cannot be made without arguments."""

from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.testing.conftest import Material
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.program import ProgramModel

STILL = """
class Environment:
    def set_state(self, observation):
        self.observation = observation
    def step(self, action):
        return self.observation, 1.0, False
"""
"""A program that predicts that nothing changes."""


def program_model(material: Material) -> ProgramModel:
    """Return a program that predicts that nothing changes."""
    return ProgramModel(STILL, material.sandbox)


def environment_model(material: Material) -> EnvironmentModel:
    """Return the recorded environment as a model of itself."""
    return EnvironmentModel(material.spec)


def world_model_problem(material: Material) -> WorldModelProblem:
    """Return the problem of the recorded train rows."""
    train = material.dataset.train
    metric = AccuracyMetric.of(train)
    return WorldModelProblem("A cart with a pole.", train, material.sandbox, metric)
