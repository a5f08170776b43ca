"""Learning while acting: the loop, its run, certificates and questions."""

import ast
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from candidates import STILL_ANSWER
from cwm_cli import CwmError, Observer, evaluate, learn, plan
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import ObjectField, ObjectSchema
from cwm_cli.data.spaces import Space
from cwm_cli.runs.listing import load, summary_of
from cwm_learn.actors.base import OpenQuestion
from cwm_learn.certificate import EpisodeRecord, Verification
from cwm_learn.learn import with_docstring
from cwm_learn.learner import Learner, PlayedEpisode
from cwm_learn.outcomes import OutcomeCounts
from cwm_learn.questions import Questions
from cwm_learn.records import StepsTaken
from cwm_learn.runs import (
    LearnConfig,
    LearnHeader,
    LearningResult,
    LearnRun,
)
from openai_server import OpenAIServer
from shell import Shell

SPACES = {
    "observation_space": Space("box", "float32", (2,), (-1.0, -1.0), (1.0, 1.0)),
    "action_space": Space("discrete", low=(0,), high=(1,)),
}


class Backward(gym.ActionWrapper):
    """A dry lake on which every action moves in the opposite direction."""

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium 1.3 reads it from the class

    def __init__(self) -> None:
        super().__init__(gym.make("FrozenLake-v1", is_slippery=False))

    def action(self, action: int) -> int:
        return (action + 2) % 4


gym.register("Backward-v0", entry_point=Backward)


def episode(number: int, length: int = 100, **told: object) -> EpisodeRecord:
    facts = {"returned": 1.0, "promised": 1.0, "aims": {"exploit": length}} | told
    return EpisodeRecord(number=number, steps=(number + 1) * length, length=length, **facts)


def test_a_certificate_needs_clean_play_and_says_how_far_it_goes() -> None:
    watched = Verification()
    assert watched.certify() is None
    for number in range(14):
        watched.add(episode(number))
    found = watched.certify(["action 3"])
    assert watched.is_sufficient
    assert found.steps == 1400
    assert found.episodes == 14
    assert 1 - 0.025 ** (1 / 1400) <= found.bound < 0.004
    assert found.untried == ("action 3",)
    watched.add(episode(14, mismatched=1))
    assert not watched.is_sufficient
    assert (watched.attempt, watched.changed) == (2, 1500)


@pytest.mark.parametrize(
    "told", [{"returned": 0.5}, {"promised": None}, {"mismatched": 2}], ids=str
)
def test_play_below_its_promise_certifies_nothing(told: dict[str, object]) -> None:
    watched = Verification()
    for number in range(40):
        watched.add(episode(number))
    watched.add(episode(40, **told))
    assert not watched.is_sufficient


def test_episodes_for_the_unknown_are_no_play() -> None:
    watched = Verification()
    for number in range(40):
        watched.add(episode(number, aims={"explore": 1, "exploit": 99}))
    assert watched.episodes == 0


@pytest.mark.parametrize("bad", ["any step", "a start"])
def test_few_bounds_are_exceeded_whether_steps_or_starts_go_wrong(bad: str) -> None:
    """Worlds of any share of mismatches: those certified at all keep their bound in 95 of 100."""
    rng, told, broken = np.random.default_rng(0), 0, 0
    for _ in range(300):
        share = 10 ** rng.uniform(-4, -0.3)

        def play(share: float = share) -> tuple[int, bool]:
            if bad == "a start":
                wrong = rng.random() < share
                return (1 if wrong else 50), wrong
            first = int(rng.geometric(share))
            return min(first, 50), first <= 50

        watched, steps = Verification(), 0
        while steps < 5000 and not watched.is_sufficient:
            length, wrong = play()
            steps += length
            watched.add(episode(0, length, mismatched=int(wrong)))
        if not watched.is_sufficient:
            continue
        further = [play() for _ in range(400)]
        met = sum(wrong for _, wrong in further)
        told += 1
        broken += not watched.certify().holds(met, sum(length for length, _ in further))
    assert told > 60
    assert broken <= 0.05 * told


def test_what_came_out_otherwise_again_is_chance_and_the_usual_outcome_the_rule() -> None:
    seen, chance = OutcomeCounts(), set()
    rows = [Transition(0, 1, after, 0.0, False) for after in (1, 2, 2, 1, 2)]
    assert [seen.add(n, row, chance) for n, row in enumerate(rows)] == [False, *[True] * 4]
    assert chance == {0, 3}
    assert seen.contradicted == 1


def test_questions_are_answered_when_nobody_asks_them_any_more() -> None:
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


def test_rows_come_back_from_a_journal_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(21, 2)).astype(np.float32)
    points[3] = np.nan, np.inf
    rows = [Transition(points[i], i % 2, points[i + 1], rng.normal(), i == 9) for i in range(20)]
    whole = Dataset.of(rows, **SPACES)
    header = LearnHeader(config=LearnConfig(env="Any-v0"), description="")
    with LearnRun.start(tmp_path / "r", header, {"dataset.npz": whole[np.arange(0)]}) as run:
        run.append(StepsTaken.of(whole[np.arange(8)]))
        run.append(StepsTaken.of(whole[np.arange(8, 20)]))
        run.append(episode(0, 20))
    again = load(tmp_path / "r")
    assert again.dataset().digest == whole.digest
    assert summary_of(again).done == "20 steps"
    assert "exploit" in str(again.grids())


def test_what_a_program_is_worth_is_said_at_its_head() -> None:
    text = with_docstring("class Environment:\n    pass\n", ['It has """quotes""".', "- and\\more"])
    exec(compile(text, "best.py", "exec"), space := {})
    assert space["Environment"]
    assert text.startswith('"""It has')


# --- environments


def lake(**told: object) -> LearningResult:
    return learn("FrozenLake-v1", **{"env_args": {"is_slippery": False}, "seed": 0} | told)


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> LearningResult:
    return lake(run=tmp_path_factory.mktemp("dry") / "r")


def test_a_dry_lake_is_learned_certified_and_played(dry: LearningResult) -> None:
    found = dry.certificate
    assert dry.stopped == "certified"
    assert dry.changed <= 90
    assert found.steps >= 300
    assert found.bound < 0.03
    assert found.untried
    assert {each["return"] for each in dry.returns[-14:]} == {1.0}
    head = ast.get_docstring(ast.parse(dry.program.read_text()))
    assert "It predicts all" in head
    assert "Certified: " in head
    assert "Not covered by the data:" in head
    assert plan(dry.run, episodes=2).mean == 1.0
    assert evaluate(dry.run, dataset=LearnRun.load(dry.run).dataset()).scores.train.exact == 1.0


@pytest.mark.long
def test_another_run_goes_on_from_what_one_has_learned(dry: LearningResult, tmp_path: Path) -> None:
    again = lake(start=dry.run, run=tmp_path / "r")
    assert again.stopped == "certified"
    assert again.changed == 0
    assert again.refits == 1
    rows = LearnRun.load(dry.run).dataset()
    rows.save(tmp_path / "rows.npz")
    assert lake(start=tmp_path / "rows.npz", run=tmp_path / "s", steps=20).steps == 20


def test_a_run_of_other_choices_is_refused_and_an_end_is_an_end(
    dry: LearningResult,
) -> None:
    with pytest.raises(CwmError, match="seed"):
        lake(seed=1, run=dry.run)
    same = lake(run=dry.run)
    assert (same.steps, same.stopped) == (dry.steps, "certified")


@pytest.mark.slow
def test_its_play_is_measured_without_learning_from_it(dry: LearningResult, tmp_path: Path) -> None:
    measured = []

    class Measuring(Observer):
        def begins(self, work: Learner) -> None:
            self.learner = work

        def advanced(self, event: object) -> None:
            if isinstance(event, EpisodeRecord):
                rows = len(self.learner.known.rows)
                measured.extend(self.learner.play([7, 8]))
                assert len(self.learner.known.rows) == rows

    done = lake(start=dry.run, run=tmp_path / "r", steps=12, observer=Measuring())
    assert done.steps == 12
    assert set(measured) == {PlayedEpisode(1.0, 6, None)}


def test_objects_of_one_schema_are_written_as_those_of_another() -> None:
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
def test_a_curriculum_carries_rows_and_program_to_a_larger_table(tmp_path: Path) -> None:
    told = {"curriculum": ["Sokoban-v0"], "seed": 1, "run": tmp_path / "r"}
    assert learn("Sokoban-Teleport-v0", steps=14, **told).steps == 14
    run = LearnRun.load(tmp_path / "r")
    before = LearnRun.load(tmp_path / "r-1-Sokoban-v0").dataset()
    earlier = run.earlier()
    assert len(earlier) == len(before) == len(run.dataset()) == 14
    assert earlier.observation_space != before.observation_space
    assert np.array_equal(earlier.columns["rewards"], before.columns["rewards"])
    assert learn("Sokoban-Teleport-v0", steps=16, **told).steps == 16


@pytest.mark.long
def test_rows_of_another_environment_are_left_out_once_they_contradict_it(
    dry: LearningResult, tmp_path: Path
) -> None:
    notes: list[str] = []
    told = {"run": tmp_path / "r", "steps": 30, "observer": Telling(notes)}
    done = learn("Backward-v0", start=dry.run, **told)
    assert done.steps == 30
    assert [note for note in notes if "contradict this one" in note]
    rows = LearnRun.load(done.run).dataset()
    assert evaluate(done.run, dataset=rows).scores.train.exact == 1.0
    with pytest.raises(CwmError, match="rows are none of CartPole-v1"):
        learn("CartPole-v1", start=rows, run=tmp_path / "s")


@pytest.mark.slow
def test_budgets_end_it(dry: LearningResult, tmp_path: Path) -> None:
    for number, (told, why, most) in enumerate(
        [
            ({"steps": 7}, "steps", 7),
            ({"seconds": 0.0}, "seconds", 0),
            ({"stop": "return=1.0", "start": dry.run}, "return", 200),
        ]
    ):
        done = lake(run=tmp_path / str(number), **told)
        assert (done.stopped, done.certificate) == (why, None)
        assert done.steps <= most
    with pytest.raises(CwmError, match="unknown --stop sometime"):
        lake(stop="sometime")


@pytest.mark.slow
def test_what_chance_decides_is_said_and_not_written_anew_for_ever(tmp_path: Path) -> None:
    notes: list[str] = []
    done = learn("FrozenLake-v1", steps=60, seed=0, run=tmp_path / "r", observer=Telling(notes))
    assert done.stopped == "steps"
    assert sum("outcomes are random" in note for note in notes) == 1
    assert "gives a positive probability to" in done.program.read_text()
    assert any("had more than one outcome" in each.text for each in done.questions)
    assert done.refits < 40


class Telling(Observer):
    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def note(self, words: str, kind: str = "Note") -> None:
        self.notes.append(words)


SCRIPT = """
import cwm_cli, os, signal, sys
from cwm_learn.outcomes import StepEvent
class Killing(cwm_cli.Observer):
    def advanced(self, event):
        if isinstance(event, StepEvent) and event.steps == 34:
            os.kill(os.getpid(), signal.SIGKILL)
cwm_cli.learn("FrozenLake-v1", env_args={"is_slippery": False}, run=sys.argv[1], observer=Killing())
"""


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_and_loses_few_steps(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "r")], check=False)
    assert killed.returncode == -signal.SIGKILL
    kept = LearnRun.load(tmp_path / "r")
    rows = len(kept.dataset())
    assert 24 <= rows <= 34
    programs = len(list((kept.folder / "programs").iterdir()))
    assert programs
    notes: list[str] = []
    done = lake(run=kept.folder, observer=Telling(notes))
    assert any(f"continues after {rows} steps" in note for note in notes)
    assert done.stopped == "certified"
    whole = LearnRun.load(kept.folder).dataset()
    assert len(whole) == done.steps
    assert (np.diff(whole.columns["episodes"]) >= 0).all()


@pytest.mark.slow
def test_another_goal_is_played_at_once_with_what_was_learned(
    dry: LearningResult, tmp_path: Path
) -> None:
    done = lake(start=dry.run, goal="observation == 9", run=tmp_path / "r", stop="return=1.0")
    assert (done.stopped, done.changed) == ("return", 0)
    assert {each["aim"] for each in done.returns} <= {"exploit", "probe", "verify"}  # no "explore"
    with pytest.raises(CwmError, match="not a Python condition"):
        lake(start=dry.run, goal="go west", run=tmp_path / "s")


@pytest.mark.long
def test_language_models_are_asked_in_turn_where_rules_leave_rows_over(
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


WANDERER = """
from contextlib import closing
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_learn.strategy import LearningStrategy
from cwm_cli.data.dataset import Transition

@dataclass
class Wanderer(LearningStrategy):
    way: int = 2

    def learn(self, session):
        while not session.over:
            for each in session.tasks:
                with closing(each.task.make()) as env:
                    here, _ = env.reset(seed=session.seed)
                    there, reward, terminated, truncated, _ = env.step(self.way)
                    row = Transition(here, self.way, there, reward, terminated, truncated)
                    session.stepped(row, aim="explore")
                    session.ended(float(reward), aim="explore")
        session.wrote("class Environment:\\n    pass\\n", "it wandered")

@hookimpl
def cwm_learning_strategies():
    return {"wander": Wanderer}
"""


def test_another_loop_learns_in_its_own_way_and_its_run_is_like_any(cwm: Shell) -> None:
    cwm.install("wandering", WANDERER)
    told = ["--strategy", "wander", "-o", "way=1", "--steps", "4", "--curriculum", "FrozenLake-v1"]
    made = ["learn", "--env", "FrozenLake-v1", "--env-arg", "is_slippery=false", "--json"]
    done = cwm.inside(*made, *told, "--run", "r")
    found = json.loads(done.stdout)
    assert (found["steps"], found["episodes"], found["stopped"]) == (4, 4, "steps")
    run = LearnRun.load(cwm.folder / "r")
    assert run.config.options["strategy"] == {"way": 1}
    assert run.best_program() == "class Environment:\n    pass\n"
    assert set(run.dataset().columns["actions"].tolist()) == {1}
    assert "4 steps" in cwm.inside("runs", "list", "r").stdout


@pytest.mark.slow
def test_without_a_folder_the_newest_run_goes_on_that_is_not_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = lake(steps=3)
    assert lake(steps=3).run != first.run  # a finished run is not continued
    newest = lake(steps=3, new=True).run
    further = lake(steps=6)
    assert (further.run, further.steps) == (newest, 6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "returned", "within"),
    [("CartPole-v1", 500.0, 1500), ("CliffWalking-v1", -13.0, 250), ("Taxi-v4", 7.0, 700)],
)
def test_known_worlds_are_mastered_and_certified(
    env: str, returned: float, within: int, tmp_path: Path
) -> None:
    done = learn(env, seed=3, run=tmp_path / "r")
    assert done.stopped == "certified"
    assert done.changed <= within
    assert done.certificate.mean >= returned
    assert done.certificate.bound < 0.03


def test_play_that_a_budget_cuts_off_is_no_return_of_its_play():
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


def test_an_observation_that_is_no_number_ends_learning_in_one_line(cwm: Shell) -> None:
    cwm.install("broken", BROKEN)
    done = cwm.inside("learn", "--env", "broken:Broken-v0", "--steps", "5", "--run", "r")
    assert done.returncode == 1
    [line] = [each for each in done.stderr.splitlines() if each.startswith("Error")]
    assert "all numbers of an observation must be finite" in line
    assert "Traceback" not in done.stderr
