"""The learning loop, its run, certificates and questions."""

import ast
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete

from benchmarks.learning.evaluation import PlayedEpisode, play_episodes
from candidates import STILL_ANSWER
from cwm_cli import CwmError, Observer, evaluate, learn, plan
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import ObjectField, ObjectSchema
from cwm_cli.data.spaces import Space
from cwm_cli.runs.listing import load, summary_of
from cwm_learn.actors.base import OpenQuestion
from cwm_learn.certificate import EpisodeRecord, Verification
from cwm_learn.learn import with_docstring
from cwm_learn.learner import Learner
from cwm_learn.outcomes import OutcomeCounts, PlayComparison
from cwm_learn.questions import Questions
from cwm_learn.records import StepsTaken
from cwm_learn.runs import (
    LearnConfig,
    LearnHeader,
    LearningResult,
    LearnRun,
)
from notes import Notes
from openai_server import OpenAIServer
from shell import Shell

SPACES = {
    "observation_space": Space("box", "float32", (2,), (-1.0, -1.0), (1.0, 1.0)),
    "action_space": Space("discrete", low=(0,), high=(1,)),
}


class Backward(gym.ActionWrapper):
    """A dry lake with actions that move in the opposite direction."""

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium 1.3 reads it from the class

    def __init__(self) -> None:
        super().__init__(gym.make("FrozenLake-v1", is_slippery=False))

    def action(self, action: int) -> int:
        return (action + 2) % 4


gym.register("Backward-v0", entry_point=Backward)


def episode(number: int, length: int = 100, **changes: object) -> EpisodeRecord:
    facts = {"returned": 1.0, "promised": 1.0, "aims": {"exploit": length}} | changes
    return EpisodeRecord(number=number, steps=(number + 1) * length, length=length, **facts)


def test_certificate_requires_clean_play_and_bounds_mismatches() -> None:
    verification = Verification()
    assert verification.certify() is None
    for number in range(14):
        verification.add(episode(number))
    found = verification.certify(["action 3"])
    assert verification.is_sufficient
    assert found.steps == 1400
    assert found.episodes == 14
    assert 1 - 0.025 ** (1 / 1400) <= found.bound < 0.004
    assert found.untried == ("action 3",)
    verification.add(episode(14, mismatched=1))
    assert not verification.is_sufficient
    assert (verification.attempt, verification.changed) == (2, 1500)


@pytest.mark.parametrize(
    "changes", [{"returned": 0.5}, {"promised": None}, {"mismatched": 2}], ids=str
)
def test_episode_below_its_promise_prevents_a_certificate(changes: dict[str, object]) -> None:
    verification = Verification()
    for number in range(40):
        verification.add(episode(number))
    verification.add(episode(40, **changes))
    assert not verification.is_sufficient


def test_short_play_gives_a_weaker_bound_if_it_is_useful() -> None:
    verification = Verification()
    verification.add(episode(0, 200))
    assert verification.certify_short() is None
    assert verification.certificate is None
    for number in range(1, 4):
        verification.add(episode(number, 200))
    assert not verification.is_sufficient
    found = verification.certify_short()
    assert found is not None
    assert 1 - 0.05 ** (1 / 800) < found.bound < 0.01
    assert found.episodes_bound > 0.5


def test_cut_episode_is_evidence_for_steps_but_not_for_returns() -> None:
    verification = Verification()
    verification.add(episode(0, 1000))
    assert verification.certify_short() is None
    verification.add(episode(1, 900, whole=False, returned=0.5))
    found = verification.certify_short()
    assert found is not None
    assert (found.steps, found.episodes, found.mean) == (1900, 1, 1.0)
    assert found.bound < 0.02
    assert found.episodes_bound > 0.95


def test_play_of_a_wrong_program_is_compared_with_other_episodes() -> None:
    found = PlayComparison()
    for number, (returned, aim) in enumerate(
        [(-3.0, "explore"), (-5.0, "probe"), (-20.0, "exploit")]
    ):
        found.add(episode(number, returned=returned, aims={aim: 100}, mismatched=90))
    assert not found.is_worse  # a single play
    found.add(episode(3, returned=-30.0, mismatched=40))  # most predictions were right
    found.add(episode(4, returned=-30.0, mismatched=90, whole=False))
    assert not found.is_worse
    found.add(episode(5, returned=-10.0, mismatched=90))
    assert found.is_worse
    found.add(episode(6, returned=-3.5, mismatched=90))  # above the mean of other episodes
    assert not found.is_worse


def test_episodes_with_exploration_do_not_count_as_play() -> None:
    verification = Verification()
    for number in range(40):
        verification.add(episode(number, aims={"explore": 1, "exploit": 99}))
    assert verification.episodes == 0


@pytest.mark.parametrize("bad", ["any step", "a start"])
def test_certificates_keep_their_bound_for_wrong_steps_and_wrong_starts(bad: str) -> None:
    """Certified bounds hold in 95 of 100 environments with random mismatch rates."""
    rng, certified, exceeded = np.random.default_rng(0), 0, 0
    for _ in range(300):
        rate = 10 ** rng.uniform(-4, -0.3)

        def play(rate: float = rate) -> tuple[int, bool]:
            if bad == "a start":
                wrong = rng.random() < rate
                return (1 if wrong else 50), wrong
            first = int(rng.geometric(rate))
            return min(first, 50), first <= 50

        verification, steps = Verification(), 0
        while steps < 5000 and not verification.is_sufficient:
            length, wrong = play()
            steps += length
            verification.add(episode(0, length, mismatched=int(wrong)))
        if not verification.is_sufficient:
            continue
        further = [play() for _ in range(400)]
        mismatches = sum(wrong for _, wrong in further)
        certified += 1
        exceeded += not verification.certify().holds(
            mismatches, sum(length for length, _ in further)
        )
    assert certified > 60
    assert exceeded <= 0.05 * certified


def test_most_common_of_contradicting_outcomes_is_the_rule() -> None:
    counts, chance = OutcomeCounts(), set()
    rows = [Transition(0, 1, after, 0.0, False) for after in (1, 2, 2, 1, 2)]
    assert [counts.add(n, row, chance) for n, row in enumerate(rows)] == [False, *[True] * 4]
    assert chance == {0, 3}
    assert counts.contradicted == 1


def test_question_is_answered_when_its_source_asks_it_no_more() -> None:
    known = Questions()
    limit = OpenQuestion("where is the limit?", weight=2.0)
    action = OpenQuestion("action 3 was never tried", action=np.int64(3), weight=5.0)
    assert len(known.update([limit, action], "play", 10)) == 2
    assert [each.text for each in known.open] == [action.text, limit.text]
    assert known.open[0].action == 3
    assert known.update([limit, action], "play", 20) == []
    [answered] = known.update([limit], "play", 30)
    assert (answered.state, answered.asked) == ("answered", 10)
    assert "30" in answered.answer
    known.update([OpenQuestion("12 of 64 pairs were recorded")], "gaps", 30)
    [changed] = known.update([OpenQuestion("13 of 64 pairs were recorded")], "gaps", 40)
    assert (changed.state, changed.asked) == ("open", 30)


def test_journal_stores_rows_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(21, 2)).astype(np.float32)
    points[3] = np.nan, np.inf
    rows = [Transition(points[i], i % 2, points[i + 1], rng.normal(), i == 9) for i in range(20)]
    whole = Dataset.of(rows, **SPACES)
    header = LearnHeader(config=LearnConfig(env="Any-v0"), description="")
    with LearnRun.start(tmp_path / "r", header, {"dataset.npz": whole[np.arange(0)]}) as run:
        run.append(StepsTaken(columns=whole[np.arange(8)].columns))
        run.append(StepsTaken(columns=whole[np.arange(8, 20)].columns))
        run.append(episode(0, 20))
    again = load(tmp_path / "r")
    assert again.dataset().digest == whole.digest
    assert summary_of(again).done == "20 steps"
    assert "exploit" in str(again.grids())


def test_facts_on_a_program_become_its_docstring() -> None:
    text = with_docstring("class Environment:\n    pass\n", ['It has """quotes""".', "- and\\more"])
    exec(compile(text, "best.py", "exec"), space := {})
    assert space["Environment"]
    assert text.startswith('"""It has')


# --- environments


def learn_lake(**arguments: object) -> LearningResult:
    return learn("FrozenLake-v1", **{"env_args": {"is_slippery": False}, "seed": 0} | arguments)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> LearningResult:
    return learn_lake(run=tmp_path_factory.mktemp("learned") / "r")


@pytest.mark.slow
def test_dry_lake_is_learned_certified_and_planned(learned: LearningResult) -> None:
    found = learned.certificate
    assert learned.stopped == "certified"
    assert learned.changed <= 90
    assert found.steps >= 300
    assert found.bound < 0.03
    assert found.untried
    assert {each["return"] for each in learned.returns[-14:]} == {1.0}
    head = ast.get_docstring(ast.parse(learned.program.read_text()))
    assert "It predicts all" in head
    assert "Certified: " in head
    assert "Not covered by the data:" in head
    assert plan(learned.run, episodes=2).mean == 1.0
    assert (
        evaluate(learned.run, dataset=LearnRun.load(learned.run).dataset()).scores.train.exact
        == 1.0
    )


@pytest.mark.long
def test_run_starts_from_another_run_or_its_rows(learned: LearningResult, tmp_path: Path) -> None:
    again = learn_lake(start=learned.run, run=tmp_path / "r")
    assert again.stopped == "certified"
    assert again.changed == 0
    assert again.refits == 1
    rows = LearnRun.load(learned.run).dataset()
    rows.save(tmp_path / "rows.npz")
    assert learn_lake(start=tmp_path / "rows.npz", run=tmp_path / "s", steps=20).steps == 20


def test_run_with_another_seed_is_refused_and_finished_run_stays_finished(
    learned: LearningResult,
) -> None:
    with pytest.raises(CwmError, match="seed"):
        learn_lake(seed=1, run=learned.run)
    same = learn_lake(run=learned.run)
    assert (same.steps, same.stopped) == (learned.steps, "certified")


@pytest.mark.slow
def test_play_adds_no_rows(learned: LearningResult, tmp_path: Path) -> None:
    measured: list[PlayedEpisode] = []

    class Measuring(Observer):
        def begins(self, work: Learner) -> None:
            self.learner = work

        def advanced(self, event: object) -> None:
            if isinstance(event, EpisodeRecord):
                rows = len(self.learner.known.rows)
                measured.extend(play_episodes(self.learner, [7, 8]))
                assert len(self.learner.known.rows) == rows

    done = learn_lake(start=learned.run, run=tmp_path / "r", steps=12, observer=Measuring())
    assert done.steps == 12
    assert set(measured) == {PlayedEpisode(1.0, 6, None)}


def test_objects_are_converted_to_another_schema() -> None:
    old = ObjectSchema(("free", "agent", "box"), (ObjectField("x"), ObjectField("hue", ("a", "b"))))
    fields = (ObjectField("hue", ("none", "b", "a")), ObjectField("x"))
    new = ObjectSchema(("free", "box", "agent"), fields)
    tables = np.array([[[1, 4, 0], [0, 0, 0], [2, 5, 1]]])
    assert old.convert(tables, new, 4).tolist() == [[[2, 2, 4], [0, 0, 0], [1, 1, 5], [0, 0, 0]]]
    with pytest.raises(ValueError, match="more than 2 objects"):
        old.convert(tables, new, 2)
    with pytest.raises(ValueError, match="class box is unknown"):
        old.convert(tables, replace(new, classes=("free", "agent")), 4)


@pytest.mark.long
def test_curriculum_converts_rows_to_a_larger_object_table(tmp_path: Path) -> None:
    arguments = {"curriculum": ["Sokoban-v0"], "seed": 1, "run": tmp_path / "r"}
    assert learn("Sokoban-Teleport-v0", steps=14, **arguments).steps == 14
    run = LearnRun.load(tmp_path / "r")
    before = LearnRun.load(tmp_path / "r-1-Sokoban-v0").dataset()
    earlier = run.earlier_rows()
    assert len(earlier) == len(before) == len(run.dataset()) == 14
    assert earlier.observation_space != before.observation_space
    assert np.array_equal(earlier.columns["rewards"], before.columns["rewards"])
    assert learn("Sokoban-Teleport-v0", steps=16, **arguments).steps == 16


@pytest.mark.long
def test_contradicting_rows_of_another_environment_are_dropped(
    learned: LearningResult, tmp_path: Path
) -> None:
    notes = Notes()
    done = learn("Backward-v0", start=learned.run, run=tmp_path / "r", steps=30, observer=notes)
    assert done.steps == 30
    assert [note for note in notes.words if "contradict this one" in note]
    rows = LearnRun.load(done.run).dataset()
    assert evaluate(done.run, dataset=rows).scores.train.exact == 1.0
    with pytest.raises(CwmError, match="the transitions do not fit CartPole-v1"):
        learn("CartPole-v1", start=rows, run=tmp_path / "s")


@pytest.mark.slow
def test_steps_seconds_or_return_stop_learning(learned: LearningResult, tmp_path: Path) -> None:
    for number, (arguments, reason, max_steps) in enumerate(
        [
            ({"steps": 7}, "steps", 7),
            ({"seconds": 0.0}, "seconds", 0),
            ({"stop": "return=1.0", "start": learned.run}, "return", 200),
        ]
    ):
        done = learn_lake(run=tmp_path / str(number), **arguments)
        assert (done.stopped, done.certificate) == (reason, None)
        assert done.steps <= max_steps
    with pytest.raises(CwmError, match="unknown --stop sometime"):
        learn_lake(stop="sometime")


@pytest.mark.slow
def test_randomness_is_reported_once_and_causes_few_rewrites(tmp_path: Path) -> None:
    notes = Notes()
    done = learn("FrozenLake-v1", steps=60, seed=0, run=tmp_path / "r", observer=notes)
    assert done.stopped == "steps"
    assert sum("outcomes are random" in note for note in notes.words) == 1
    assert "gives a positive probability to" in done.program.read_text()
    assert any("had more than one outcome" in each.text for each in done.questions)
    assert done.refits < 40


class Lottery(gym.Env[int, int]):
    """Every action leads from each of 30 states to an arbitrary one, for an arbitrary reward."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Discrete(30), Discrete(3)
        rng = np.random.default_rng(0)
        self.next_states = rng.permutation(90).reshape(30, 3) % 30
        self.rewards = rng.permutation(90).reshape(30, 3) / 50 - 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(30))
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(self.rewards[self.state, action])
        self.state = int(self.next_states[self.state, action])
        return self.state, reward, False, False, {}


@pytest.mark.slow
def test_program_that_mispredicts_most_rows_is_not_planned_with(tmp_path: Path) -> None:
    gym.register("Lottery-v0", entry_point=Lottery, max_episode_steps=40)
    notes = Notes()
    done = learn("Lottery-v0", steps=240, seed=0, run=tmp_path / "r", observer=notes)
    assert sum("plans use recorded transitions only" in note for note in notes.words) == 1
    explored = [each["return"] for each in done.returns if each["aim"] == "explore"]
    exploited = [each["return"] for each in done.returns if each["aim"] == "exploit"]
    assert np.mean(exploited[-2:]) > np.mean(explored[:2]) + 5


SCRIPT = """
import cwm_cli, os, signal, sys
from cwm_learn.outcomes import StepEvent
class Killing(cwm_cli.Observer):
    def advanced(self, event):
        if isinstance(event, StepEvent) and event.steps == 34:
            os.kill(os.getpid(), signal.SIGKILL)
lake = {"env": "FrozenLake-v1", "env_args": {"is_slippery": False}, "steps": 40}
cwm_cli.learn(**lake, run=sys.argv[1], observer=Killing())
"""


@pytest.mark.slow
def test_killed_run_continues_and_loses_few_steps(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "r")], check=False)
    assert killed.returncode == -signal.SIGKILL
    kept = LearnRun.load(tmp_path / "r")
    rows = len(kept.dataset())
    assert 24 <= rows <= 34
    programs = len(list((kept.folder / "programs").iterdir()))
    assert programs
    notes = Notes()
    done = learn_lake(steps=40, run=kept.folder, observer=notes)
    assert any(f"continues after {rows} steps" in note for note in notes.words)
    assert done.stopped == "steps"
    whole = LearnRun.load(kept.folder).dataset()
    assert len(whole) == done.steps
    assert (np.diff(whole.columns["episodes"]) >= 0).all()


@pytest.mark.slow
def test_run_with_a_goal_needs_no_exploration_after_another_run(
    learned: LearningResult, tmp_path: Path
) -> None:
    done = learn_lake(
        start=learned.run, goal="observation == 9", run=tmp_path / "r", stop="return=1.0"
    )
    assert (done.stopped, done.changed) == ("return", 0)
    assert {each["aim"] for each in done.returns} <= {"exploit", "probe", "verify"}  # no "explore"
    with pytest.raises(CwmError, match="not a Python condition"):
        learn_lake(start=learned.run, goal="go west", run=tmp_path / "s")


@pytest.mark.long
def test_language_models_take_turns_on_unexplained_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with OpenAIServer(lambda body: STILL_ANSWER) as server:
        done = learn(
            "FrozenLake-v1",
            steps=16,
            model=["openai/one", "openai/other"],
            api_base=server.url,
            completions=2,
            run=tmp_path / "r",
        )
        assert [each.body["model"] for each in server.requests] == ["one", "other"]
    assert (done.completions, done.cost, done.stopped) == (2, None, "steps")
    assert LearnRun.load(done.run).summary().completions == 2


STRATEGY = """
from contextlib import closing
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_learn.strategy import LearningStrategy
from cwm_cli.data.dataset import Transition

@dataclass
class OneAction(LearningStrategy):
    action: int = 2

    def learn(self, session):
        while not session.over:
            for each in session.tasks:
                with closing(each.task.make()) as env:
                    before, _ = env.reset(seed=session.seed)
                    after, reward, terminated, truncated, _ = env.step(self.action)
                    row = Transition(before, self.action, after, reward, terminated, truncated)
                    session.stepped(row, aim="explore")
                    session.ended(float(reward), aim="explore")
        session.wrote("class Environment:\\n    pass\\n", "a note")

@hookimpl
def cwm_learning_strategies():
    return {"one-action": OneAction}
"""


def test_strategy_of_a_plugin_learns_and_writes_a_run(cwm: Shell) -> None:
    cwm.install("one_action", STRATEGY)
    command = ["learn", "--env", "FrozenLake-v1", "--env-arg", "is_slippery=false", "--json"]
    options = ["--strategy", "one-action", "-o", "action=1", "--curriculum", "FrozenLake-v1"]
    done = cwm.inside(*command, *options, "--steps", "4", "--run", "r")
    found = json.loads(done.stdout)
    assert (found["steps"], found["episodes"], found["stopped"]) == (4, 4, "steps")
    run = LearnRun.load(cwm.folder / "r")
    assert run.config.options["strategy"] == {"action": 1}
    assert run.best_program() == "class Environment:\n    pass\n"
    assert set(run.dataset().columns["actions"].tolist()) == {1}
    assert "4 steps" in cwm.inside("runs", "list", "r").stdout


@pytest.mark.slow
def test_newest_unfinished_run_continues_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = learn_lake(steps=3)
    assert learn_lake(steps=3).run != first.run  # a finished run is not continued
    newest = learn_lake(steps=3, new=True).run
    further = learn_lake(steps=6)
    assert (further.run, further.steps) == (newest, 6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "returned", "within"),
    [("CartPole-v1", 500.0, 1500), ("CliffWalking-v1", -13.0, 250), ("Taxi-v4", 7.0, 700)],
)
def test_known_environments_are_solved_and_certified(
    env: str, returned: float, within: int, tmp_path: Path
) -> None:
    done = learn(env, seed=3, run=tmp_path / "r")
    assert done.stopped == "certified"
    assert done.changed <= within
    assert done.certificate.mean >= returned
    assert done.certificate.bound < 0.03


def test_play_that_a_budget_interrupts_is_cut():
    cut = EpisodeRecord(number=1, steps=9, returned=9.0, length=9, aims={"exploit": 9}, whole=False)
    assert cut.is_cut
    assert not cut.model_copy(update={"whole": True}).is_cut
    assert not cut.model_copy(update={"aims": {"explore": 9}}).is_cut


BROKEN = """
import gymnasium as gym
import numpy as np

class Broken(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.full(2, np.nan, np.float32), 0.0, False, False, {}

gym.register("Broken-v0", Broken, max_episode_steps=10)
"""


def test_nan_observation_is_an_error_in_one_line(cwm: Shell) -> None:
    cwm.install("broken", BROKEN)
    done = cwm.inside("learn", "--env", "broken:Broken-v0", "--steps", "5", "--run", "r")
    assert done.returncode == 1
    [line] = [each for each in done.stderr.splitlines() if each.startswith("Error")]
    assert "all numbers of an observation must be finite" in line
    assert "Traceback" not in done.stderr
