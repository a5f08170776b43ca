"""A search changes the contract if an answer asks for it or the errors suggest it."""

import json

import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.problems.world_model import request_words, requested_contract
from cwm_cli.runs.searches import SearchRun
from cwm_cli.search.contracts import Switch

LIGHT = '''
import gymnasium as gym
import numpy as np


class Light(gym.Env):
    """A light that every third press of the button turns on or off, beside a running clock."""

    observation_space = gym.spaces.Box(0, 2_000_000, (2,), np.int64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock, self.lit, self.presses = int(self.np_random.integers(1_000_000)), 0, 0
        return np.array([self.clock, self.lit]), {}

    def step(self, action):
        self.clock += 1
        self.presses += action
        if action and self.presses % 3 == 0:
            self.lit = 1 - self.lit
        return np.array([self.clock, self.lit]), float(self.lit), False, False, {}


gym.register("Light-v0", entry_point=Light, max_episode_steps=20)
'''

PLAIN = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        clock, lit = self.state
        self.state = np.array([clock + 1, lit])
        return self.state, float(lit), False
"""

MEMORY = """
class Environment:
    def reset(self, observation):
        self.state, self.presses = observation, 0

    def step(self, action):
        clock, lit = self.state
        self.presses += action
        if action and self.presses % 3 == 0:
            lit = 1 - lit
        self.state = np.array([clock + 1, lit])
        return self.state, float(lit), False

    def correct(self, observation, reward):
        self.state = observation
"""


def answer(program: str, *lines: str) -> str:
    """Return a completion with a program."""
    return "\n".join([*lines, "", f"```python\nimport numpy as np\n{program}```"])


@pytest.fixture
def light(cwm):
    """Record an environment with a hidden counter, in too few rows to detect it."""
    cwm.install("light_world", LIGHT)
    about = ("--env", "light_world:Light-v0", "--out", "rows.npz")
    cwm.inside("collect", *about, "--episodes", "2", "--test-episodes", "2")
    return cwm


def search(cwm, texts, *arguments, run="run", budget=None, data="rows.npz"):
    """Search with answers from files."""
    folder = cwm.folder / "answers"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.md").write_text(text)
    words = ("--backend", "replay", "--model", "answers", "--strategy", "worldcoder")
    about = ("--env", "light_world:Light-v0", "--dataset", data, "--run", run, *words)
    limit = ("--budget", str(budget or len(texts)))
    return cwm.inside("synthesize", *about, *limit, *arguments, "--json")


def events(cwm, run="run"):
    """Return the journal without times."""
    lines = [json.loads(line) for line in (cwm.folder / run / "nodes.jsonl").open()]
    for line in lines:
        if "node" in line:
            line["node"]["usage"]["seconds"] = 0
    return lines


@pytest.mark.slow
def test_a_request_for_memory_changes_the_next_prompt(light):
    texts = [answer(PLAIN, "Some presses differ.", "CONTRACT: memory"), answer(MEMORY)]
    done = search(light, texts)
    result = json.loads(done.stdout)
    assert result["contract"] == "memory"
    assert (result["solved"], result["completions"]) == (True, 2)
    assert "contract changed from plain to memory: node #0 asks for it" in done.stderr
    run = SearchRun.load(light.folder / "run")
    first, switch, second = run.learned()
    assert first.requested == "memory"
    assert isinstance(switch, Switch)
    assert 0 < switch.verdicts[0].score < 1, "the plain program still applies"
    assert [node.verdict.score for node in run.nodes()] == [switch.verdicts[0].score, 1.0]
    shown = " ".join(light.inside("runs", "show", "run").stdout.split())
    assert "contract changed to memory: node #0 asks for it" in shown
    prompts = run.prompts.read()
    assert "`CONTRACT: memory`" in prompts[first.prompt][-1].content
    assert "def correct(self, observation, reward)" in prompts[second.prompt][-1].content
    assert (light.folder / "run" / "best.py").read_text().endswith(MEMORY)


@pytest.mark.slow
def test_a_search_that_stops_at_a_switch_resumes_unchanged(light):
    texts = [answer(PLAIN, "CONTRACT: memory"), answer(PLAIN), answer(MEMORY)]
    search(light, texts, run="whole")
    for budget in (1, 2, 3):
        search(light, texts, run="parts", budget=budget)
    assert events(light, "parts") == events(light, "whole")
    about = ("--env", "light_world:Light-v0", "--dataset", "rows.npz", "--strategy", "worldcoder")
    again = ("--backend", "replay", "--model", "whole", "--run", "again", "--budget", "3")
    light.inside("synthesize", *about, *again)
    assert events(light, "again") == events(light, "whole")


CHANCE = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def outcomes(self, action):
        clock, lit = self.state
        dark, light = np.array([clock + 1, 0]), np.array([clock + 1, 1])
        return [(0.5, dark, 0.0, False), (0.5, light, 1.0, False)]

    def step(self, action):
        chances, states, rewards, ends = zip(*self.outcomes(action))
        chosen = self.rng.choice(2, p=chances)
        self.state = states[chosen]
        return self.state, rewards[chosen], ends[chosen]
"""


@pytest.mark.slow
def test_a_stuck_search_for_chance_shows_episodes_in_order(light):
    texts = [answer(PLAIN, "CONTRACT: chance"), answer(CHANCE), *[answer(CHANCE)] * 3]
    search(light, texts)
    run = SearchRun.load(light.folder / "run")
    prompts = run.prompts.read()
    asked = [prompts[node.prompt][-1].content for node in run.nodes()]
    in_order = ["Check in these episodes whether earlier steps" in text for text in asked]
    assert in_order[:2] == [False, False]
    assert in_order[-1]


@pytest.mark.slow
def test_a_chosen_contract_stays(light):
    texts = [answer(PLAIN, "CONTRACT: memory"), answer(PLAIN)]
    done = search(light, texts, "--contract", "plain")
    assert json.loads(done.stdout)["contract"] == "plain"
    assert "contract changed" not in done.stderr


def test_the_last_line_outside_thoughts_and_program_names_the_contract():
    assert requested_contract("I think so.\n**CONTRACT: `chance`**\n") == "chance"
    assert requested_contract("CONTRACT: chance\nCONTRACT: memory") == "memory"
    assert requested_contract("<think>\nCONTRACT: chance\n</think>\nno") == ""
    assert requested_contract("the CONTRACT: memory is asked for like this") == ""
    assert requested_contract("CONTRACT: other") == ""


def test_prompts_offer_only_contracts_that_were_not_tried():
    assert "memory" not in request_words("plain", ("memory",))
    assert "`CONTRACT: chance`" in request_words("plain", ("memory",))
    assert request_words("plain", ("memory", "chance")) == ""


@pytest.mark.slow
def test_a_dead_end_of_a_program_with_memory_discloses_an_episode(light):
    about = ("--env", "light_world:Light-v0", "--out", "more.npz")
    light.inside("collect", *about, "--episodes", "12", "--test-episodes", "2")
    rows = Dataset.load(light.folder / "more.npz").train
    shown = {int(clock) for clock in rows.columns["observations"][rows.fitted][:, 0]}
    learned = MEMORY.replace(
        "if action and self.presses % 3 == 0:",
        f"if action and self.presses % 3 == 0 and int(clock) in {sorted(shown)}:",
    )
    texts = [answer(learned), answer(learned), answer(MEMORY)]
    options = ("--contract", "memory", "-o", "sequential=True")
    done = search(light, texts, *options, data="more.npz")
    assert json.loads(done.stdout)["solved"]
    run = SearchRun.load(light.folder / "run")
    prompts = run.prompts.read()
    nodes = list(run.nodes())
    assert nodes[0].verdict.dead_end is not None
    assert nodes[1].disclosed == nodes[0].verdict.dead_end
    assert "is predicted correctly, but" in prompts[nodes[1].prompt][-1].content
