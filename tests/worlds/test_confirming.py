"""Confirmation that plans were made by the planner, not by the program."""

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import cwm_cli
from cwm_cli.commands.episodes import Episode, play
from cwm_cli.commands.plays import PlayRun
from cwm_cli.data.spaces import Space
from cwm_cli.envs.tasks import Setting
from cwm_cli.registry import environment
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.views.planning import plan_report
from cwm_cli.worlds import confirming
from cwm_cli.worlds.confirming import Confirmer
from cwm_cli.worlds.model import Planning
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.remote import TamperingError
from folders import WORLD_MODELS
from forgers import HANDLER
from worlds import CARTPOLE, PENDULUM

LIMITS = Limits(wall_seconds=30, cpu_seconds=20, stall_seconds=1, sleep_seconds=1)
QUICK = {"simulations": 20, "rollout": 20, "budget": 100}


NOTHING = """
class Environment:
    def __init__(self):
        prepare(self)

    def set_state(self, observation):
        self.state = list(observation)

    def step(self, action):
        return list(self.state), 1.0, False
"""

PREPARED = "    def __init__(self):\n        prepare(self)\n\n    def set_state"
RIGHT = CARTPOLE.replace("    def set_state", PREPARED)

DESCRIPTORS = (
    HANDLER
    + """
import os, struct

def read(size):
    data = b""
    while len(data) < size:
        piece = os.read(4, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data

def prepare(environment):
    if handler() != "PlanningHandler":
        return
    while True:
        [size] = struct.unpack("<I", read(4))
        question = read(size)
        [count] = struct.unpack_from("<I", question)
        places = [4 + 28 * count + 32 * n for n in range(count)]
        states = [struct.unpack_from("<4d", question, place) for place in places]
        reply = struct.pack("<BBH400s", 0, 1, 0, b"") + struct.pack("<I", 1) * count
        reply += struct.pack("<Q", 999) * count
        reply += b"".join(struct.pack("<q", balance(state)) for state in states)
        os.write(5, struct.pack("<I", len(reply)) + reply)
"""
    + NOTHING
)
"""Takes over the file descriptors and replies in place of the planner."""

PATCHED = (
    HANDLER
    + """
def prepare(environment):
    if handler() != "PlanningHandler":
        return
    decider = sys.modules["cwm_cli.planning.planner"].Decider

    def plan(self, moments):
        self.steps = [999 for _ in moments]
        return [[balance(moment.state)] for moment in moments]

    decider.plan = plan
"""
    + NOTHING
)
"""Patches the decider, but not the file descriptors."""

CODED = (
    HANDLER
    + """
def prepare(environment):
    if handler() != "PlanningHandler":
        return
    choose = sys.modules["cwm_cli.planning.mcts"].choose

    def always(found, temperature, number):
        return found.actions[0]

    choose.__code__ = always.__code__
"""
    + RIGHT
)
"""Replaces the code of a planner function; the model is right."""

COUNTING = (
    HANDLER
    + """
def prepare(environment):
    if handler() != "PlanningHandler":
        return
    decider = sys.modules["cwm_cli.planning.planner"].Decider
    plan = decider.plan

    def counting(self, moments):
        plans = plan(self, moments)
        self.steps = [3_900_000_000 for _ in plans]
        return plans

    decider.plan = counting
"""
    + RIGHT
)
"""Plans honestly, but reports 3.9e9 steps."""

LATE = (
    PATCHED.replace(
        "        self.steps = [999",
        "        if moments[0].decision < 25:\n"
        "            return real(self, moments)\n"
        "        self.steps = [999",
    )
    .replace("    def plan(self", "    real = decider.plan\n\n    def plan(self")
    .replace(NOTHING, RIGHT)
)
"""Replies in place of the planner only from decision 25 on."""

SELDOM = LATE.replace("decision < 25", "decision % 5")
"""Replies in place of the planner in every fifth decision."""

LURING = (
    HANDLER
    + """
def prepare(environment):
    environment.lures = handler() in ("PlanningHandler", "SteppingHandler")
"""
    + NOTHING.replace(
        "return list(self.state), 1.0, False",
        "return list(self.state), 1.0 + 9 * (self.lures and action == balance(self.state)), False",
    )
)
"""Reports higher rewards to planners than in predictions."""

FAILING = (
    HANDLER
    + """
def prepare(environment):
    if handler() == "SteppingHandler":
        raise ValueError("when steps are repeated")
"""
    + NOTHING
)
"""Fails if its decisions are repeated."""

SILENT = (
    HANDLER
    + """
import time

def prepare(environment):
    if handler() == "SteppingHandler":
        time.sleep(99)
"""
    + NOTHING
)
"""Does not reply if its decisions are repeated."""

SLOW = """
import time

def wait(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
"""

STALLING = (
    HANDLER
    + SLOW
    + """
def prepare(environment):
    global stepping
    stepping = handler() == "SteppingHandler"
    if handler() != "PlanningHandler":
        return
    decider = sys.modules["cwm_cli.planning.planner"].Decider
    real = decider.plan

    def plan(self, moments):
        pairs = zip(moments, real(self, moments))
        return [[balance(each.state)] if each.episode > 0 else plan for each, plan in pairs]

    decider.plan = plan
"""
    + RIGHT.replace("step(self, action):", "step(self, action):\n        wait(0.05 * stepping)")
)
"""Plans honestly in the first episode, then answers by a policy; slow if it is confirmed."""

STALLING_ONCE = STALLING.replace("0.05 * stepping", "9 * (stepping and self.state[0] > 0.02)")
"""The same, but slow, beyond all limits, in one situation only."""

EPISODE = STALLING.replace("episode > 0", "episode == 3").replace("0.05", "0")
"""Answers by a policy in one episode only, without being slow."""

FEW = SELDOM.replace("decision % 5", "decision % 10 != 7")
"""Answers by a policy in every tenth decision."""

LAST = SELDOM.replace("decision % 5", "decision < 18")
"""Answers by a policy in the last tenth of an episode of 20 decisions."""

PATIENT = SLOW + CARTPOLE.replace("step(self, action):", "step(self, action):\n        wait(0.02)")
"""An honest program that needs 20 ms for a step."""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS, 3) as sandbox:
        yield sandbox


def played(
    sandbox, text, env="CartPole-v1", *, share=1000.0, count=1, limit=60, **how
) -> list[Episode]:
    """Play episodes by planning; with the default `share` all decisions are confirmed."""
    planner = how.pop("planner", Planning("mcts", QUICK))
    task = Setting(env, how.pop("env_args", {}), 3, limit).task(environment(env))
    with ProgramModel(text, sandbox, share=share).open([planner], task) as session:
        return [each.episode for p in play(task, range(count), session) for each in p.finished]


ATTACKS = {
    "descriptors": (DESCRIPTORS, "instead of the planner's action"),
    "what decides": (PATCHED, "instead of the planner's action"),
    "code of the planner": (CODED, "instead of the planner's action"),
    "steps": (COUNTING, "report"),
    "later decisions": (LATE, "instead of the planner's action"),
    "rewards": (LURING, "differently when repeated"),
    "rewards, of one that may draw": (LURING + "# random", "differently when repeated"),
    "one decision in five": (SELDOM, "instead of the planner's action"),
    "one decision in ten": (FEW, "instead of the planner's action"),
    "a failure": (FAILING, "when steps are repeated"),
}


@pytest.mark.slow
def test_every_forgery_ends_planning_with_a_message_of_one_line(sandbox) -> None:
    wrong = {}
    for name, (text, words) in ATTACKS.items():
        try:
            wrong[name] = played(sandbox, text)
        except TamperingError as error:
            if words not in str(error) or "\n" in str(error):
                wrong[name] = str(error)
    assert wrong == {}


@pytest.mark.slow
def test_a_program_that_blocks_repeated_decisions_is_rejected_in_time(sandbox) -> None:
    with pytest.raises(TamperingError, match="failed when it was repeated"):
        played(sandbox, SILENT, limit=9)


def test_without_confirmation_forged_plans_count(sandbox) -> None:
    for text in (DESCRIPTORS, PATCHED, LURING):
        [episode] = played(sandbox, text, share=0.0)
        assert (episode.returned, episode.confirmed) == (60.0, 0)
    [episode] = played(sandbox, COUNTING, share=0.0, limit=5)
    assert episode.model_steps == 5 * 3_900_000_000


def test_one_forged_episode_among_five_is_found(sandbox) -> None:
    with pytest.raises(TamperingError, match="episode 3 the program returned"):
        played(sandbox, EPISODE, count=5, limit=20)


@pytest.mark.slow
@pytest.mark.parametrize("text", [STALLING, STALLING_ONCE], ids=["every step", "one situation"])
def test_episodes_of_a_program_that_stalls_their_confirmation_are_not_verified(
    sandbox, text, monkeypatch
) -> None:
    monkeypatch.setattr(confirming, "SECONDS", 0.5)
    try:
        found = played(sandbox, text, share=confirming.SHARE, count=5, limit=60)
    except TamperingError:  # decisions that were confirmed in time can already prove the forgery
        return
    assert not any(episode.verified for episode in found)


@pytest.mark.slow
def test_a_slow_honest_program_is_verified_in_time_and_otherwise_not(sandbox, monkeypatch) -> None:
    quick = Planning("mcts", {"simulations": 2, "rollout": 2, "budget": 4})
    [episode] = played(sandbox, PATIENT, planner=quick, limit=3)
    assert (episode.verified, episode.confirmed) == (True, 3)
    monkeypatch.setattr(confirming, "SECONDS", 0.1)
    monkeypatch.setattr(confirming, "TIMES", 0.1)
    [episode] = played(sandbox, PATIENT, planner=quick, limit=3)
    assert (episode.verified, episode.confirmed, episode.returned) == (False, 0, 3.0)


@pytest.mark.slow
def test_the_number_of_confirmed_decisions_does_not_depend_on_program_speed(
    sandbox, monkeypatch
) -> None:
    quick = Planning("mcts", {"simulations": 2, "rollout": 2, "budget": 4})
    for text in (CARTPOLE, PATIENT.replace("0.02", "0.002")):
        monkeypatch.setattr(confirming, "confirmed_length", lambda count, share: count // 2)
        found = played(sandbox, text, planner=quick, share=1e-9, count=2, limit=6)
        assert [episode.confirmed for episode in found] == [3, 3]


@pytest.mark.parametrize("first", [0.05, 0.25, 0.5, 0.9])
def test_ends_of_windows_are_confirmed_with_the_documented_probability(first: float) -> None:
    lengths = [confirming.confirmed_length(500) for _ in range(20_000)]
    caught = np.mean([length > first * 500 for length in lengths])
    documented = 1 - (1 - confirming.SHARE) * first ** (1 / confirming.EXPONENT)
    assert caught == pytest.approx(documented, abs=0.02)
    assert min(lengths) >= 1
    assert np.mean(lengths) < 0.27 * 500


@pytest.mark.slow
def test_forgeries_of_the_last_tenth_are_found_often_enough(sandbox) -> None:
    found = 0
    for _ in range(20):
        try:
            played(sandbox, LAST, share=confirming.SHARE, count=5, limit=20)
        except TamperingError:
            found += 1
    assert found >= 3  # 9 are expected; fewer than 3 have a probability of 0.001


@pytest.mark.slow
def test_unverified_episodes_count_neither_in_the_mean_nor_in_R(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(confirming, "SECONDS", 0.1)
    monkeypatch.setattr(confirming, "TIMES", 0.1)
    how = {"simulations": 2, "rollout": 2, "budget": 4}
    result = cwm_cli.plan(
        env="CartPole-v1",
        program=PATIENT,
        options=how,
        oracle=True,
        episodes=2,
        max_steps=3,
        folder=tmp_path,
    )
    found = result.as_json()
    assert found["unverified"] == [0, 1]
    assert (found["returns"], found["mean"], found["R"]) == ([3.0, 3.0], None, None)
    [line] = [str(part) for part in plan_report(result) if str(part).startswith("Unverified")]
    assert line.startswith("Unverified: 2 of 2 episodes (#0, #1)")
    assert "mcts.budget" in line
    kept = [json.loads(line) for line in result.journal.open()]
    assert [x["episode"]["verified"] for x in kept if x["side"] == "model"] == [False, False]
    sections = PlayRun.sections([PlayRun.load(result.journal.parent)])
    assert "no episode of the world model is verified" in sections[0].about


HONEST = {
    "CartPole-v1": CARTPOLE,
    "Pendulum-v1": PENDULUM,
    "Taxi-v3": "taxi_map",
    "Acrobot-v1": "acrobot_lists",
    "MountainCarContinuous-v0": "mountain_car_continuous",
    "Blackjack-v1": "blackjack_random",
    "HalfCheetah-v5": "cheetah_vectors",
}
"""Programs that are tables, arithmetic, arrays, and one that draws random numbers."""


@pytest.mark.parametrize(
    "env", [*list(HONEST)[:2], *(pytest.param(e, marks=pytest.mark.slow) for e in list(HONEST)[2:])]
)
def test_all_decisions_of_an_honest_program_are_confirmed(sandbox, env) -> None:
    text = HONEST[env]
    if "\n" not in text:
        text = (WORLD_MODELS / f"{text}.py").read_text()
    planners = {"Pendulum-v1": "icem", "MountainCarContinuous-v0": "cem", "HalfCheetah-v5": "icem"}
    planner = Planning(planners.get(env, "mcts"), {} if env in planners else QUICK)
    if env == "Taxi-v3":
        planner = Planning("tabular", {})
    found = played(sandbox, text, env, planner=planner, count=2, limit=30)
    first, second = found
    assert first.decisions == first.confirmed or first.confirmed >= 25
    assert second.confirmed > 0
    assert first.failures == second.failures == 0


@pytest.mark.slow
def test_plan_reports_rechecked_decisions_and_discards_forged_episodes(
    cwm,
) -> None:
    (cwm.folder / "good.py").write_text(CARTPOLE)
    (cwm.folder / "bad.py").write_text(DESCRIPTORS)
    how = ("--env", "CartPole-v1", "--episodes", "2", "--max-steps", "30", "-o", "simulations=9")
    good = cwm.inside("plan", *how, "--program", "good.py")
    assert good.returncode == 0, good.stderr
    [line] = [line for line in good.stdout.splitlines() if "rechecked" in line]
    assert re.fullmatch(r"[1-9]\d* of (59|60) decisions rechecked outside the sandbox\.", line)
    bad = cwm.inside("plan", *how, "--program", "bad.py")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.splitlines()[-1].startswith("Error: in decision ")
    journals = [path for path in cwm.folder.glob("runs/plans/*/*.jsonl")]
    sides = [{json.loads(line)["side"] for line in path.open()} for path in journals]
    assert sorted(map(sorted, sides)) == [["idle", "model", "random"], ["idle", "random"]]


SLIPPERY = """
import random

class Environment:
    def set_state(self, observation):
        self.at = int(observation)

    def step(self, action):
        row, column = divmod(self.at, 4)
        turned = (int(action) + random.choice([-1, 0, 1])) % 4
        rows, columns = ((0, -1), (1, 0), (0, 1), (-1, 0))[turned]
        self.at = 4 * min(max(row + rows, 0), 3) + min(max(column + columns, 0), 3)
        return self.at, float(self.at == 15), self.at in (5, 7, 11, 12, 15)
"""


@pytest.mark.slow
def test_plans_with_a_random_program_are_confirmed(sandbox) -> None:
    published = Planning("mcts", {"preset": "paper"})
    found = played(sandbox, SLIPPERY, "FrozenLake-v1", planner=published, count=3, limit=20)
    assert sum(episode.confirmed for episode in found) > 0


LOOPING = """
class Environment:
    def set_state(self, observation):
        pass

    def step(self, action):
        while True:
            pass
"""


@pytest.mark.slow
def test_three_timeouts_in_a_row_end_planning_with_a_report(cwm) -> None:
    (cwm.folder / "loop.py").write_text(LOOPING)
    how = ("--env", "CartPole-v1", "--episodes", "2", "--max-steps", "9", "--program", "loop.py")
    done = cwm.inside("plan", *how, "-o", "stall_seconds=0.1", "--json")
    assert done.returncode == 1
    words = "planning ended after 0 of 2 episodes: 3 decisions in a row exceeded their"
    assert words in done.stderr.splitlines()[-1]
    assert any(line.split()[:1] == ["random"] for line in done.stderr.splitlines())
    found = json.loads(done.stdout)
    assert words in found["stopped"]
    assert (found["returns"], found["mean"]) == ([], None)


def test_repeated_actions_may_differ_by_rounding_only() -> None:
    job: Any = SimpleNamespace(action_space=Space("box", "float64", (1,), (-2.0,), (2.0,)))
    confirmer = Confirmer(cast("Sandbox", None), job)
    planned = [np.array([0.5])]
    assert confirmer._is_equal(planned, [np.array([0.5 + 1e-6])])
    assert not confirmer._is_equal(planned, [np.array([0.5 + 1e-5])])
    assert not confirmer._is_equal(planned, planned * 2)
