"""Tests of the strategy."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from abmcts.strategy import AbMcts
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, read_options
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Node, Usage, Verdict

LAKE = '''class Environment:
    """A frozen lake of 4 x 4 cells without slipping."""

    def set_state(self, observation):
        self.row, self.column = divmod(int(observation), 4)

    def step(self, action):
        down, right = ((0, -1), (1, 0), (0, 1), (-1, 0))[action]
        self.row = min(max(self.row + down, 0), 3)
        self.column = min(max(self.column + right, 0), 3)
        place = 4 * self.row + self.column
        return place, float(place == 15), place in (5, 7, 11, 12, 15)
'''
COMMAND = [
    *("synthesize", "--env", "FrozenLake-v1", "--env-arg", "is_slippery=false"),
    *("--backend", "simulated", "-o", "backend.program=lake.py", "-o", "backend.errors=9"),
    *("--strategy", "ab-mcts", "--seed", "3", "--json", "--budget"),
]


def judged(number, parent, score, program="x = 1", failure=None):
    """Return a node with a score."""
    action = GENERATE if parent == ROOT else IMPROVE
    verdict = Verdict(score=score, failure=failure)
    return Node(number, number, parent, action, program, verdict, "", Usage())


def moves(strategy, count=200, seed=0):
    """Return the moves that a strategy would select with different random numbers."""
    return [strategy.select(np.random.default_rng([seed, n]), []) for n in range(count)]


def parents(strategy, **options):
    """Return how often each parent is selected."""
    chosen = [move.parent for move in moves(strategy, **options)]
    return {parent: chosen.count(parent) for parent in set(chosen)}


@pytest.mark.parametrize(
    ("option", "message"),
    [("distribution=normal", "distribution"), ("prior=1", "unknown option 'prior'")],
)
def test_invalid_options_are_errors(option, message):
    with pytest.raises(CwmError, match=message):
        read_options([option], [Owner("strategy", AbMcts)])


def test_first_program_is_written_from_scratch():
    assert {move.action for move in moves(AbMcts())} == {GENERATE}


@pytest.mark.parametrize("distribution", ["gaussian", "beta"])
def test_search_goes_wider_and_deeper_and_prefers_high_scores(distribution):
    strategy = AbMcts(distribution=distribution)
    for number, score in enumerate((0.1, 0.9, 0.2)):
        strategy.update(judged(number, ROOT, score))
    counts = parents(strategy)
    assert set(counts) == {ROOT, 0, 1, 2}
    assert counts[1] > counts[0] + counts[2]
    strategy.update(judged(3, 1, 0.95))
    assert parents(strategy)[3] > 10
    assert strategy.state(1) == "depth 1, 1 children"
    assert strategy.state(3) == "depth 2, 0 children"
    assert strategy.state(99) == ""


def test_selection_depends_on_the_given_random_numbers_only():
    one, other = AbMcts(), AbMcts()
    for number, score in enumerate((0.3, 0.6)):
        one.update(judged(number, ROOT, score))
        moves(one, count=5)  # moves that a stopped search forgot
        other.update(judged(number, ROOT, score))
    np.random.seed(5)
    expected = np.random.random(3).tolist()
    np.random.seed(5)
    assert moves(one) == moves(other)
    assert np.random.random(3).tolist() == expected, "global random numbers are restored"


def test_failing_program_is_fixed_and_an_empty_one_has_no_children():
    strategy = AbMcts()
    strategy.update(judged(0, ROOT, 0.4))
    crash = Failure(kind="crash", message="a bug", line=1)
    strategy.update(judged(1, 0, 0.0, failure=crash))
    strategy.update(judged(2, 0, 0.0, program=""))
    chosen = moves(strategy, count=400)
    assert {move.action for move in chosen if move.parent == 1} == {FIX}
    assert {move.action for move in chosen if move.parent == 0} == {IMPROVE}
    assert {move.parent for move in chosen} == {ROOT, 0, 1}


@pytest.fixture
def cwm(tmp_path):
    """Return a function that starts `cwm` in a folder with a correct program."""
    (tmp_path / "lake.py").write_text(LAKE)

    def start(*arguments):
        command = [sys.executable, "-m", "cwm_cli", *arguments]
        return subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1, text=True)

    return start


def finish(process):
    """Return the result of a command."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode in (0, 1) and output, errors
    return json.loads(output)


def nodes(folder):
    """Return the origin, program and score of all nodes of a run."""
    lines = (folder / "nodes.jsonl").read_text().splitlines()
    found = [json.loads(line)["node"] for line in lines]
    kept = ("id", "parent", "action", "program", "prompt")
    return [[node[key] for key in kept] + [node["verdict"]["score"]] for node in found]


def test_killed_search_continues_as_if_it_had_not_been_stopped(cwm, tmp_path):
    finish(cwm(*COMMAND, "12", "--run", "whole"))
    assert 6 <= len(nodes(tmp_path / "whole")) <= 12
    stopped = cwm(*COMMAND, "12", "--run", "parts")
    file, end = tmp_path / "parts" / "nodes.jsonl", time.monotonic() + 120
    while not file.exists() or file.read_text().count("\n") < 3:
        assert stopped.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    os.kill(stopped.pid, signal.SIGKILL)
    stopped.communicate()
    assert len(nodes(tmp_path / "parts")) < len(nodes(tmp_path / "whole"))
    finish(cwm(*COMMAND, "12", "--run", "parts"))
    assert nodes(tmp_path / "parts") == nodes(tmp_path / "whole")


def test_budget_ends_the_search_also_with_completions_in_flight(cwm, tmp_path):
    finish(cwm(*COMMAND, "3", "--run", "short"))
    assert len(nodes(tmp_path / "short")) == 3
    finish(cwm(*COMMAND, "5", "--run", "wide", "--parallel", "2"))
    assert len(nodes(tmp_path / "wide")) == 5
