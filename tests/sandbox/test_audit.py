"""Scores count only after an audit, in processes without rows to look answers up in."""

import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from candidates import BOX, LIMITS, dataset_of, predicting, program
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import AccuracyMetric, Evaluation, evaluate, rollouts
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.prediction import APART, MAX_AUDITED_ROWS
from cwm_cli.search.contracts import Backend, Completion, Node, Verdict
from cwm_cli.search.loop import Search
from cwm_cli.worlds import ProgramModel, WorldModel
from cwm_cli.worlds.model import Predictions
from cwm_zero_shot.strategy import ZeroShot
from forgers import CAR, CARTPOLE, FORGERS, forger
from recordings import cartpole, problem, record


@pytest.fixture(scope="module")
def car() -> Dataset:
    return record("MountainCar-v0", episodes=2)[0]


def scored(sandbox: Sandbox, text: str, rows: Dataset, *, audited: bool) -> Evaluation:
    """Score a program, with or without an audit."""
    metric = AccuracyMetric.of(rows)
    return evaluate(ProgramModel(text, sandbox), rows, metric, audited=audited)


class Outcome(NamedTuple):
    """The gain of a trick without audits, and its ending with audits."""

    gain: float
    ending: str | None


def outcomes(sandbox: Sandbox, rows: Dataset, body: str) -> dict[str, Outcome]:
    """Try every trick, beside the same program without one."""
    plain = scored(sandbox, forger("", body), rows, audited=True)
    assert plain.failure is None
    assert plain.score == scored(sandbox, forger("", body), rows, audited=False).score
    found = {}
    for name, trick in FORGERS.items():
        forged, audited = (
            scored(sandbox, forger(trick, body), rows, audited=how) for how in (False, True)
        )
        gain = forged.score.accuracy - plain.score.accuracy
        found[name] = Outcome(gain, audited.failure and audited.failure.kind)
        assert audited.score.accuracy <= plain.score.accuracy, name
    return found


@pytest.mark.slow
def test_audit_refuses_answers_looked_up_in_other_rows(sandbox, poles):
    found = outcomes(sandbox, poles[0], CARTPOLE)
    assert not {name: each for name, each in found.items() if each.ending != "nondeterministic"}
    assert not {name: each for name, each in found.items() if not each.gain > 0.01}
    assert sum(each.gain > 0.07 for each in found.values()) > len(found) * 0.8


@pytest.mark.slow
def test_audit_refuses_answers_derived_from_other_positions(sandbox, car):
    found = outcomes(sandbox, car, CAR)
    useless = "a fit to its questions"  # it knows carts with poles only
    assert found.pop(useless) == Outcome(0.0, None)
    assert not {name: each for name, each in found.items() if each.ending != "nondeterministic"}
    assert not {name: each for name, each in found.items() if not each.gain > 0.005}


def test_audit_failure_contains_advice(sandbox, poles):
    forged = forger(FORGERS["a list of earlier questions"])
    failure = scored(sandbox, forged, poles[0], audited=True).failure
    assert failure.message.startswith("two calls of set_state([")
    assert "not on earlier calls, other rows" in failure.message
    assert "other processes return the same predictions" in failure.message


def test_job_contains_only_observations_and_actions_of_its_rows(sandbox, poles, monkeypatch):
    jobs = []
    ask = Sandbox.run_apart

    def listen(self, sides, limits):
        jobs.extend(job for side in sides for job in side)
        return ask(self, sides, limits)

    monkeypatch.setattr(Sandbox, "run_apart", listen)
    drawing = "# random\n" + cartpole()
    assert scored(sandbox, drawing, poles[0], audited=True).failure is None
    assert len(jobs) == 2 + APART
    told = {"program", "seed", "observation_space", "action_space", "columns", "valid", "starts"}
    told |= {"turn"}  # the entry with the player to move in a game, from the observation space
    starts = {}
    for job in jobs:
        assert vars(job).keys() == told
        assert job.columns.keys() == {"observations", "actions"}
        for row, start in zip(job.columns["observations"], job.starts.tolist(), strict=True):
            assert starts.setdefault(row.tobytes(), start) == start, "an audit draws other numbers"
    assert len({tuple(start) for [start] in starts.values()}) == len(poles[0])
    first, second = (job.columns["observations"].tolist() for job in jobs[:2])
    assert not any(row in second for row in first)


def test_equal_rows_draw_independent_numbers(sandbox):
    alike = dataset_of(spaces.Discrete(2), 40)
    drawing = program("return self.state, random.random(), False")
    columns, _ = sandbox.predict(drawing, alike, seed=3)
    assert len(set(columns["rewards"])) == 40
    assert sandbox.audit(drawing, alike, columns, seed=3) is None
    assert sandbox.audit(drawing, alike, columns, seed=4).kind == "nondeterministic"


@pytest.mark.slow
def test_audit_samples_rows_of_a_large_dataset(sandbox):
    many = dataset_of(spaces.Discrete(1000), MAX_AUDITED_ROWS + 2000)
    forging = program(
        "self.n += 1; return self.state + (self.n > 3000), 1.0, False", init="self.n = 0"
    )
    columns, failure = sandbox.predict(forging, many)
    assert failure is None
    assert sandbox.audit(forging, many, columns).kind == "nondeterministic"
    columns, _ = sandbox.predict(program(), many)
    assert sandbox.audit(program(), many, columns) is None


@pytest.mark.slow
def test_processes_of_an_audit_share_the_time():
    with Sandbox(replace(LIMITS, cpu_seconds=0.6, stall_seconds=0.3)) as sandbox:
        drips = program("return self.state, 1.0, False", init=SPIN)
        job = predicting(drips, BOX[np.arange(2)])
        [replies] = sandbox.run_apart([[job] * 9], [sandbox.limits])
        assert 2 <= len(replies) <= 4
        assert [reply.failure is None for reply in replies] == [True] * (len(replies) - 1) + [False]
        assert replies[-1].failure.kind == "timeout_cpu"
        assert "more than 0.6 s of CPU time" in replies[-1].failure.message
        assert sum(reply.used for reply in replies) < 1.2


SPIN = "\n        end = time.process_time() + 0.2\n        while time.process_time() < end: pass"


def test_program_that_forges_progress_is_asked_only_once(tmp_path, monkeypatch):
    import cwm_cli

    asked = []
    ask = Sandbox.ask
    monkeypatch.setattr(Sandbox, "ask", lambda self, *a, **k: asked.append(a) or ask(self, *a, **k))
    columns = BOX.columns | {"split": np.arange(20) % 2, "episodes": np.arange(20) % 2}
    feigning = program(
        "slots = sys._getframe(1).f_locals['slots']\n"
        "        while True: slots['progress'][...] += 1"
    )
    limits = {"cpu_seconds": 0.5, "stall_seconds": 0.3}
    result = cwm_cli.evaluate(
        feigning, env="CartPole-v1", dataset=replace(BOX, columns=columns), options=limits
    )
    assert result.failure.kind == "timeout_cpu"
    assert len(asked) == 1
    assert result.scores.train.accuracy == result.scores.test.accuracy == 0.0


def test_every_process_has_some_time():
    assert Limits().part(0.25).cpu_seconds == Limits().cpu_seconds / 4
    assert Limits().less(used=99, slept=99, passed=99).cpu_seconds > 0


class Listening(WorldModel):
    """A model that counts up and stores the rows of each question."""

    kind = "listening"

    def __init__(self):
        self.asked = []

    def predict(self, rows, *, seed=0, draws=1):
        self.asked.append((rows.columns["episodes"], rows.columns["observations"]))
        columns = {"next_observations": rows.columns["observations"] + 1}
        columns["rewards"] = np.zeros(len(rows))
        columns["terminations"] = np.zeros(len(rows), bool)
        return Predictions(columns)


def test_rollouts_with_close_starts_run_in_different_processes():
    counted = np.tile(np.arange(60), 2)
    data = dataset_of(spaces.Discrete(100), 120)
    columns = {"observations": counted, "next_observations": counted + 1}
    data = replace(data, columns=data.columns | columns | {"episodes": np.repeat([0, 1], 60)})
    model = Listening()
    assert rollouts(model, data, 40, [1, 5]) == [(1, 0.0), (5, 0.0)]
    for episodes, places in model.asked:
        for episode in (0, 1):
            assert (np.diff(np.sort(places[episodes == episode])) >= APART).all()


def test_rollouts_of_a_program_share_the_time(monkeypatch):
    data = dataset_of(spaces.Discrete(100), 50)
    columns = {"observations": np.arange(50), "next_observations": np.arange(1, 51)}
    columns["episodes"] = np.zeros(50, int)
    data, model = replace(data, columns=data.columns | columns), Listening()
    clock = SimpleNamespace(monotonic=lambda: float(len(model.asked)))
    monkeypatch.setattr(sys.modules["cwm_cli.evaluation.rollouts"], "time", clock)
    assert rollouts(model, data, 1, [1, 5, 20], seconds=10) == [(1, 0.0), (5, 0.0), (20, None)]
    assert len(model.asked) == 11


@dataclass
class Answers(Backend):
    """Gives one program after the other."""

    programs: list[str] = field(default_factory=list)

    def complete(self, request):
        return Completion(f"```python\n{self.programs[request.step]}\n```")


class TestSearches:
    forged = forger(FORGERS["a fit to its questions"])

    def search(self, poles, sandbox, *programs):
        task = problem(poles, sandbox)
        return Search(task, ZeroShot(), Answers(list(programs)))

    @pytest.mark.slow
    def test_forged_program_is_not_best_and_does_not_end_the_search(self, poles, sandbox):
        search = self.search(poles, sandbox, self.forged, cartpole(gravity=5), cartpole())
        list(search.run(3))
        forged, wrong, right = (node.verdict for node in search.nodes)
        assert (forged.score, forged.failure.kind) == (0.0, "nondeterministic")
        assert 0 < wrong.score < 1
        assert wrong.confirmed
        assert right.score == 1.0
        assert search.solved
        assert search.best.program.strip() == cartpole().strip()
        assert search.problem.judge(self.forged).score == 1.0, (
            "without an audit it would be the best"
        )

    def test_only_the_best_program_is_audited(self, poles, sandbox, monkeypatch):
        audited = []
        audit = Sandbox.audit
        monkeypatch.setattr(
            Sandbox, "audit", lambda self, *a, **k: audited.append(a[0]) or audit(self, *a, **k)
        )
        programs = [cartpole(gravity=g) for g in (9, 5, 4, 9.5)]
        search = self.search(poles, sandbox, *programs)
        list(search.run(4))
        ranks = [node.verdict.rank for node in search.nodes]
        better = [rank > max(ranks[:place], default=(0, 0)) for place, rank in enumerate(ranks)]
        assert [node.verdict.confirmed for node in search.nodes] == better
        assert len(audited) == sum(better) < 4

    def test_journal_without_audits_is_audited_when_read(self, poles, sandbox):
        search = self.search(poles, sandbox)
        nodes = [
            self.node(search, number, text)
            for number, text in enumerate([cartpole(gravity=5), self.forged, cartpole(gravity=9)])
        ]
        assert nodes[1].verdict.solved
        search.resume(nodes)
        assert not search.solved
        assert search.best.program == max(nodes[::2], key=lambda node: node.verdict.rank).program
        assert search.best.verdict.confirmed

    def node(self, search, number, text):
        """Return a node in the format without audits."""
        verdict = search.problem.judge(text)
        assert not verdict.confirmed
        return Node(number, number, -1, "generate", text, verdict, "", Completion("").usage)

    def test_default_problem_confirms_every_verdict(self):
        from cwm_cli.search.contracts import Problem

        verdict = Verdict(score=0.5)
        assert Problem().confirm("", verdict) == replace(verdict, confirmed=True)
