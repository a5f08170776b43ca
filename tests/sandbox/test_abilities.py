"""Abilities of a program are read from its source text."""

import numpy as np
import pytest

from cwm_cli.sandbox.failures import find_unrepeatable_line
from cwm_cli.sandbox.job import Abilities, abilities_of
from cwm_cli.worlds import Predictions

PLAIN = """
class Environment:
    def set_state(self, observation): ...
    def step(self, action):
        correct = self.rules(action)  # a word is no method
"""
INHERITED = """
class Base:
    def outcomes(self, action): ...

class Lake(Base):
    def step(self, action):
        return self.rng.integers(3), 0.0, False

Environment = Lake
"""
REMEMBERS = """
def outcomes(): ...

class Environment:
    def reset(self, observation): ...
    def step(self, action): ...
    def put_right(self, observation, reward): ...
    correct = put_right
"""


def test_abilities_are_read_from_the_source_text() -> None:
    texts = {PLAIN: Abilities(), INHERITED: Abilities(tells=True, draws=True)}
    texts |= {REMEMBERS: Abilities(remembers=True), "class Environment(:  # outcomes": Abilities()}
    wrong = {
        text: abilities_of(text) for text, meant in texts.items() if abilities_of(text) != meant
    }
    assert wrong == {}
    assert [abilities_of(text).contract for text in texts] == ["plain", "chance", "memory", "plain"]


def test_likeliest_returns_one_answer_per_row() -> None:
    columns = {"next_observations": np.array([[1, 2], [3, 4]]), "rewards": np.zeros((2, 2))}
    columns["terminations"] = np.array([[False, True], [True, False]])
    told = Predictions(columns, shape="outcomes", probabilities=np.array([[0.2, 0.8], [0.6, 0.4]]))
    assert told.likeliest()["next_observations"].tolist() == [2, 3]
    assert told.likeliest()["terminations"].tolist() == [True, True]
    drawn = {"next_observations": np.array([[5, 7, 7]]), "rewards": np.array([[0.0, 1.0, 2.0]])}
    drawn["terminations"] = np.array([[False, False, True]])
    middle = Predictions(drawn, shape="draws").likeliest()
    assert [middle[name].tolist() for name in drawn] == [[7], [1.0], [False]]


UNREPEATABLE = {
    "x = 1": 0,
    "def f(": 0,
    "seen = {}": 1,
    "\nclass A:\n    seen = list()": 3,
    "seen = {1: 2}\nseen = defaultdict(int)": 2,
    "import time\nt = time.time()": 2,
    "seen = {}\nt = monotonic()": 2,
}


@pytest.mark.parametrize("text", UNREPEATABLE)
def test_unrepeatable_line_is_an_unseeded_call_or_else_an_empty_container(text: str) -> None:
    assert find_unrepeatable_line(text) == UNREPEATABLE[text]
