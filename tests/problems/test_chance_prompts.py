"""Prompts and reports for stochastic programs and programs with memory."""

import json

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.finding import find_contract
from cwm_cli.evaluation.skill import SkillMetric
from cwm_cli.problems.feedback import on_chance, uncertain_report
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import find
from cwm_cli.search.contracts import GENERATE, Node, Usage, Verdict
from cwm_cli.worlds import ProgramModel
from openai_server import OpenAIServer, answer
from random_steps import poles
from recordings import record
from worlds import HIDDEN, PHYSICS, SLIPPERY

NOISY = (
    PHYSICS
    + """
class Environment:
    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        force = 10.0 + self.rng.normal()
        self.state = moved(self.state, force if action == 1 else -force)
        return np.array(self.state), 1.0, ended(self.state)
"""
)


def save_dataset(rows: Dataset, path, env: str, **arguments) -> str:
    """Write a recorded dataset to a file; every fifth episode is held out."""
    rows.columns["split"][:] = rows.columns["episodes"] % 5 == 4
    rows.metadata.update({"env": env, "env_args": arguments})
    rows.save(path)
    return str(path)


@pytest.fixture(scope="module")
def ice() -> Dataset:
    """Random steps on slippery ice."""
    return record("FrozenLake-v1", episodes=80)[0]


def ask(cwm, program, env, arguments, rows, *more):
    """Synthesize from a dataset with a language model that answers with a program."""
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    data = save_dataset(rows, cwm.folder / "rows.npz", env, **arguments)
    fixed = [
        "--model",
        "openai/gpt-4o-mini",
        "--start",
        "none",
        "-o",
        "refine=none",
        "-o",
        "simplify=0",
        "--json",
    ]
    with OpenAIServer([answer(f"Here.\n```python\n{program}```\n")]) as server:
        run = cwm.inside(
            *("synthesize", "--env", env, "--dataset", data, "--api-base", server.url),
            *fixed,
            *("--run", "r", "--budget", "1"),
            *more,
        )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), server.requests[0].prompt, run.stderr


@pytest.mark.slow
def test_a_program_of_outcomes_reaches_the_ceiling_of_slippery_ice(cwm, ice):
    result, prompt, heard = ask(cwm, SLIPPERY, "FrozenLake-v1", {"is_slippery": True}, ice)
    found = find_contract(ice.train)
    assert (result["contract"], result["finished"], result["settled"]) == ("chance", True, False)
    assert result["train"]["reached"] and result["test"]["reached"]
    assert (result["solved"], result["unverified"]) == (False, ["the reward 1 was seen once"])
    assert result["finding"]["conflicts"] == found.conflicts > 20
    assert "def outcomes(self, action)" in prompt and "Chance decides some results" in prompt
    assert f"{found.conflicts} of {found.repeated} pairs of observation and action" in prompt
    assert "Predict the outcome with the most weight" not in prompt
    assert f"Model type: chance: {found.words()}" in heard.replace("\n", " ")
    header = json.loads((cwm.folder / "r" / "run.json").read_text())
    assert (header["config"]["contract"], header["config"]["metric"]) == ("chance", "skill")
    assert header["finding"]["contract"] == "chance"
    shown = cwm.inside("runs", "show", "r")
    assert "chance" in shown.stdout and found.words()[:30] in shown.stdout


@pytest.mark.long
def test_a_program_that_samples_solves_a_noisy_pole(cwm):
    noise = {"noise": {"force_mag": 1.0}}
    result, prompt, _ = ask(cwm, NOISY, "CartPole-v1", noise, poles(**noise))
    assert (result["contract"], result["solved"]) == ("chance", True)
    assert "self.rng" in prompt and "almost equal observation and action" in prompt
    assert result["train"]["skill"] > 0.9


@pytest.mark.slow
def test_a_search_for_memory_settles_without_a_known_ceiling(cwm):
    hidden = {"hide": "velocities"}
    result, prompt, _ = ask(
        cwm, HIDDEN, "CartPole-v1", hidden, poles(**hidden), "-o", "patience=2", "--budget", "4"
    )
    assert (result["contract"], result["solved"], result["settled"]) == ("memory", False, True)
    assert result["completions"] == 3
    assert "def correct(self, observation, reward)" in prompt
    assert "earlier explains" in prompt
    assert result["train"]["exact"] > 0.9


@pytest.mark.slow
def test_a_chosen_contract_overrides_the_finding(cwm, ice):
    plain = (
        "class Environment:\n    def set_state(self, observation):\n        self.at = observation\n"
    )
    plain += "    def step(self, action):\n        return self.at, 0.0, False\n"
    arguments = {"is_slippery": True}
    result, prompt, heard = ask(cwm, plain, "FrozenLake-v1", arguments, ice, "--contract", "plain")
    assert (result["contract"], result["finding"]["contract"]) == ("plain", "chance")
    assert "plain (chosen; the data suggest chance)" in " ".join(heard.split())
    assert "def outcomes" not in prompt and "skill" not in result["train"]


@pytest.fixture(scope="module")
def metric(ice) -> SkillMetric:
    """Return the skill metric: 0 is the baseline, 1 a program that is certain and right."""
    return SkillMetric.of(ice)


def problem_of(rows, sandbox, metric, **options) -> WorldModelProblem:
    """Return a problem with the contract for chance."""
    found = find_contract(rows)
    return WorldModelProblem(
        "Ice.", rows, sandbox, metric, contract=found.contract, finding=found, **options
    )


def test_a_report_names_wrong_probabilities_and_impossible_outcomes(ice, sandbox, metric):
    problem = problem_of(ice, sandbox, metric)
    sure = SLIPPERY.replace("for turn in (-1, 0, 1)", "for turn in (0,)").replace("1 / 3", "1.0")
    sure = sure.replace("integers(3)", "integers(1)")
    skewed = SLIPPERY.replace("1 / 3, cell", "0.1 + 0.8 * (turn == 0), cell")
    skewed = skewed.replace(
        "self.rng.integers(3)", "self.rng.choice(3, p=[0.1, 0.9, 0.1] / np.float64(1.1))"
    )
    skewed = "import numpy as np\n" + skewed
    reports = {}
    for name, program in {"sure": sure, "skewed": skewed}.items():
        verdict = problem.judge(program)
        assert verdict.failure.kind == "mismatch", verdict.failure.message
        reports[name] = verdict.failure.message
    assert "transitions have probability 0" in reports["sure"]
    assert "have probability 0" not in reports["skewed"]
    for report in reports.values():
        assert "Largest errors of probabilities" in report and "; predicted" in report
        assert (
            "The score is" in report and "1 is a program that is always certain and right" in report
        )
        assert "shown to you is predicted correctly" not in report
    assert problem.judge(SLIPPERY).score > max(problem.judge(each).score for each in (sure, skewed))


def test_the_report_on_a_plain_program_states_that_outcomes_are_random(ice, sandbox, metric):
    stays = "class Environment:\n    def set_state(self, o):\n        self.o = o\n"
    stays += "    def step(self, action):\n        return self.o, 0.0, False\n"
    assert (
        "some results are random" in problem_of(ice, sandbox, metric).judge(stays).failure.message
    )


def test_a_search_without_a_ceiling_settles_after_no_improvement(ice, sandbox, metric):
    problem = problem_of(ice, sandbox, metric, patience=3)

    def tell(score: float, reached: bool | None = None) -> bool:
        place = len(problem._history.nodes)
        verdict = Verdict(score=score, reached=reached, stderr=0.05)
        problem.update(Node(place, place, -1, GENERATE, "", verdict, "", Usage()))
        return problem.settled

    assert [tell(score) for score in (0.0, 0.5, 0.52, 0.54, 0.53)] == [False] * 4 + [True]
    assert not tell(0.7)
    assert [tell(0.7) for _ in range(3)] == [False, False, True]
    assert not tell(0.9, reached=False)


def test_the_prompt_of_each_contract_names_its_methods(ice):
    spaces = ice.observation_space, ice.action_space
    for name in ("plain", "chance", "memory"):
        contract = find("contract", name)()
        words = contract.words(*spaces, tools=["mujoco"], names_actions=True, fitted=True)
        assert contract.name == name and "$" not in words
        assert all(f"def {method}(self" in words for method in contract.methods)
        assert "numpy, mujoco" in words and "PARAMETERS" in words and "valid_actions" in words
    assert on_chance(None, "plain") == ""


def test_a_report_on_memory_counts_mistakes_by_the_step_of_the_episode(sandbox):
    rows = poles(hide="velocities")
    model = ProgramModel(
        HIDDEN.replace("self.state = [x, after[1]", "self.state = [x, 0.0"), sandbox
    )
    answers = model.predict(rows)
    assert answers.failure is None
    report = uncertain_report(rows, answers, SkillMetric.of(rows), contract="memory")
    assert "by the step of the episode" in report and "- steps 11 to" in report
    right = ProgramModel(HIDDEN, sandbox).predict(rows)
    told = uncertain_report(rows, right, SkillMetric.of(rows), contract="memory")
    episodes = len(np.unique(rows.columns["episodes"]))
    assert f"- step 1: {episodes} of {episodes} wrong" in told
    assert "- step 2: 0 of" in told
