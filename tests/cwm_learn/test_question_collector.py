"""Open questions about the predictions of several programs."""

from types import SimpleNamespace

import gymnasium as gym

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_learn.actors.base import Knowledge
from cwm_learn.question_collector import QuestionCollector
from cwm_learn.writing import ProgramWriter

CORRIDOR, MOVES = Space("discrete", "int64", (), (0,), (3,)), Space("discrete", low=(0,), high=(1,))

PROGRAM = """
class Environment:
    def set_state(self, observation):
        self.place = int(observation)

    def step(self, action):
        self.place = min(3, self.place + {stride} * int(action))
        return self.place, 0.0, self.place == 3, False, {{}}
"""


def test_programs_are_not_compared_where_episodes_ended(sandbox):
    rows = [Transition(0, 0, 1, 0.0, False), Transition(1, 0, 2, 0.0, False)]
    rows += [Transition(2, 0, 3, 0.0, True)]
    known = Knowledge(CORRIDOR, MOVES, 10, rows=rows, program=PROGRAM.format(stride=1))
    writer = ProgramWriter(sandbox)
    writer.rival = lambda *_: PROGRAM.format(stride=-1)

    def dataset_of(rows):
        return Dataset.of(rows, observation_space=CORRIDOR, action_space=MOVES)

    journal = SimpleNamespace(
        run=SimpleNamespace(dataset_of=dataset_of),
        recorded=lambda kind: None,
        append=lambda record: record,
        report=lambda record: None,
    )
    collector = QuestionCollector(known, writer, journal, gym.spaces.Discrete(2), None)
    collector.find_disputes(dataset_of(rows), 1, 3)
    assert sorted(known.disputed) == [(1, 1), (2, 1)]
    collector.ask_about_disputes(3)
    assert len(collector.questions.open) == 2
