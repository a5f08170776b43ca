"""Programs that coordinate the draws of a row are refused, or score no more than honest ones."""

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import Evaluation, evaluate
from cwm_cli.evaluation.skill import SkillMetric
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.prediction import draw_starts, random_permutations
from cwm_cli.worlds import Predictions, ProgramModel
from cwm_cli.worlds.model import WorldModel
from recordings import MOVES

LINE = Space("box", "float64", (1,), (-np.inf,), (np.inf,))
PULL = -0.7
"""The next place is the place times this, plus normal noise."""


def noisy(episodes: int = 24, length: int = 10) -> Dataset:
    rng, rows = np.random.default_rng(1), []
    for episode in range(episodes):
        place = rng.normal(size=1)
        for _ in range(length):
            after = PULL * place + rng.normal(size=1)
            rows.append(Transition(place, 0, after, 0.0, False, False, episode))
            place = after
    return Dataset.of(rows, observation_space=LINE, action_space=MOVES)


ROWS = noisy()


class Noisy(WorldModel):
    """The true environment."""

    kind = "noisy"

    def predict(self, rows, *, seed=0, draws=1):
        noise = np.random.default_rng(seed).normal(size=(len(rows), draws, 1))
        after = PULL * rows.columns["observations"][:, None] + noise
        columns = {"next_observations": after, "rewards": np.zeros((len(rows), draws))}
        columns["terminations"] = np.zeros((len(rows), draws), bool)
        return Predictions(columns, shape="draws")


METRIC = SkillMetric.of(ROWS).with_environment(Noisy())

PLAIN = """
    def set_state(self, observation):
        self.place = observation
"""
MEMORY = """
    def reset(self, observation):
        self.place = observation
    def correct(self, observation, reward):
        self.place = observation
"""
PROGRAM = """
import sys
from hashlib import sha256, shake_128
from statistics import NormalDist
import numpy as np

DRAWS = 64

def start(rng):
    return rng.bit_generator.state["state"]["state"].to_bytes(16, "little")

def stratified(number, rng):
    return NormalDist().inv_cdf((number + rng.random()) / DRAWS)

class Environment:
{methods}
    def step(self, action):
        self.place = {pull} * self.place + noise(self, action)
        return self.place, 0.0, False

def noise(self, action):
    return self.rng.normal()

{trick}
"""

FORGED = {
    "the number of the call": """
calls = []

def noise(self, action):
    calls.append(0)
    return stratified((len(calls) - 1) % DRAWS, self.rng)
""",
    "pairs of opposite draws": """
first = []

def noise(self, action):
    if first:
        return -first.pop()
    first.append(self.rng.normal())
    return first[0]
""",
    "the rank of its start among those in the frames": """
def noise(self, action):
    frame, own = sys._getframe(), start(self.rng)
    while (starts := frame.f_locals.get("starts")) is None:
        frame = frame.f_back
    ranked = sorted(each if isinstance(each, bytes) else each.tobytes() for each in starts)
    return stratified(ranked.index(own), self.rng)
""",
    "draws that balance earlier ones": """
drawn = []

def noise(self, action):
    if len(drawn) == DRAWS:
        drawn.clear()
    drawn.append(self.rng.normal() if len(drawn) < DRAWS // 2 else -drawn[len(drawn) - DRAWS // 2])
    return drawn[-1]
""",
}
"""How a program might coordinate the draws of a row."""

DERIVED = """
def noise(self, action):
    own, asked = start(self.rng), self.place.tobytes() + bytes(1) + np.int64(action).tobytes()
    for turn in range(3):
        seed = int.from_bytes(sha256(f"0 {turn} ".encode() + asked).digest()[:7], "little")
        every = shake_128(seed.to_bytes(8, "little")).digest(16 * DRAWS)
        if every.find(own) >= 0:
            return stratified(every.find(own) // 16, self.rng)
    return self.rng.normal()
"""
"""Looks for its start among starts that are derived from the question and a number."""


def scored(sandbox: Sandbox, methods: str, trick: str = "", *, audited: bool = True) -> Evaluation:
    text = PROGRAM.format(methods=methods, trick=trick, pull=PULL)
    return evaluate(ProgramModel(text, sandbox), ROWS, METRIC, audited=audited)


each_contract = pytest.mark.parametrize("methods", [PLAIN, MEMORY], ids=["chance", "memory"])


@each_contract
@pytest.mark.parametrize(
    "trick",
    [pytest.param(n, marks=() if n == next(iter(FORGED)) else pytest.mark.slow) for n in FORGED],
)
def test_dependent_draws_are_refused(sandbox, methods, trick) -> None:
    honest, forged, audited = (
        scored(sandbox, methods),
        scored(sandbox, methods, FORGED[trick], audited=False),
        scored(sandbox, methods, FORGED[trick]),
    )
    assert honest.failure is None
    assert honest.score.skill == pytest.approx(1.0, abs=0.1)
    if "stratified" in FORGED[trick]:  # other tricks gain less than the noise
        assert forged.score.energy < honest.score.energy - 0.002
    assert audited.failure.kind == "nondeterministic"
    assert audited.score.skill == 0.0


@pytest.mark.slow
@each_contract
def test_start_does_not_reveal_the_index_of_its_draw(sandbox, methods) -> None:
    honest, forged = scored(sandbox, methods), scored(sandbox, methods, DERIVED)
    assert forged.failure is None
    assert forged.score.energy == honest.score.energy


def test_fewer_draws_are_a_prefix_of_more_draws(sandbox) -> None:
    first, again = (scored(sandbox, PLAIN).score for _ in range(2))
    assert first == again
    many, few = (draw_starts(ROWS, 3, draws) for draws in (64, 2))
    assert np.array_equal(many[:, :2], few)
    assert len(np.unique(many.reshape(-1, 2), axis=0)) == 64 * len(ROWS)
    assert not np.isin(draw_starts(ROWS, 4, 2), few).any()


def test_audit_samples_and_permutes_the_draws_of_each_row() -> None:
    numbers = random_permutations(64, 200, np.random.default_rng(0))
    assert np.array_equal(np.sort(numbers, axis=1), np.tile(np.arange(64), (200, 1)))
    assert len({tuple(row) for row in numbers[:, :8].tolist()}) == 200
    assert (numbers[:, :8].mean(axis=1).std() > 4).all()


def test_skill_is_at_most_the_ceiling_plus_its_error(sandbox) -> None:
    forged = scored(sandbox, PLAIN, FORGED["pairs of opposite draws"], audited=False).score
    assert forged.skill <= 1 + 2 * forged.skill_stderr
