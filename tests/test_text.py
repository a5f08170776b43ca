"""Parsing of typed values, formatting of numbers, and outputs of commands that use both."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field

from cwm_cli.cli.shared import parse_env_args
from cwm_cli.commands.collect import default_dataset
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import Owner, environment, read_options
from cwm_cli.search.contracts import GENERATE, IMPROVE, Move
from cwm_cli.text import UNKNOWN, percent, read_value, share
from recordings import cartpole

SPELLINGS = {
    "false": False,
    "False": False,
    "True": True,
    "null": None,
    "None": None,
    "3": 3,
    "-0.5": -0.5,
    ".5": 0.5,
    "1_000": 1000,
    "1e-3": 0.001,
    "[1, 2]": [1, 2],
    "(1, 2)": [1, 2],
    '"8x8"': "8x8",
    "'8x8'": "8x8",
    "['SF', 'HG']": ["SF", "HG"],
    "{'a': (1, None)}": {"a": [1, None]},
    '"False"': "False",
}
NEITHER = ("8x8", "yes", "", "is true", "NaN", "1e999", "{1: 2}", "{1, 2}", "b'x'", "1j", "...")


def test_environment_arguments_accept_json_and_python_literals():
    read = {text: parse_env_args([f"k={text}"])["k"] for text in SPELLINGS}
    assert {k: (type(v), v) for k, v in read.items()} == {
        k: (type(v), v) for k, v in SPELLINGS.items()
    }


def test_invalid_argument_reports_how_to_quote_it():
    for text in (*NEITHER, "it's", 'say "hi"', "[" * 10_000):
        with pytest.raises(CwmError) as caught:
            parse_env_args([f"name={text}"])
        words, _, shown = str(caught.value).partition("write text in quotes, ")
        assert "is neither JSON nor a Python literal" in words
        flag, quoted = shlex.split(shown)
        assert (flag, parse_env_args([quoted])) == ("--env-arg", {"name": text})


def test_both_spellings_of_false_record_equal_files(cwm):
    lake = ("collect", "--env", "FrozenLake-v1", "--policy", "random", "--episodes", "2")
    for spelling in ("false", "False"):
        words = ("--env-arg", f"is_slippery={spelling}", "--out", f"{spelling}.npz")
        done = cwm.inside(*lake, *words)
        assert done.returncode == 0, done.stderr
    files = [cwm.folder / f"{spelling}.npz" for spelling in ("false", "False")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert Dataset.load(files[1]).metadata["env_args"] == {"is_slippery": False}


@dataclass
class Knobs:
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    count: int = 1
    on: bool = True
    most: int | None = None
    name: str | None = None
    kind: Literal["full", "paper"] = "full"
    sizes: tuple[int, ...] = ()
    anything: Any = None
    file: Path = Path()


def read(pair):
    return read_options([pair], [Owner("it", Knobs)])["it"]


def test_options_are_parsed_as_their_type_or_as_literals():
    cases = {
        "share=.25": 0.25,
        "count=1_000": 1000,
        "on=False": False,
        "on=no": False,
        "most=None": None,
        "most=3": 3,
        "name=None": None,
        "name=False": "False",
        "kind=paper": "paper",
        "sizes=(1, 2)": (1, 2),
        "anything=False": False,
        "anything='False'": "False",
        "file=1": Path("1"),
    }
    assert {pair: read(pair)[pair.partition("=")[0]] for pair in cases} == cases


def test_invalid_option_value_reports_the_accepted_values():
    cases = {
        "share=much": "it takes a number",
        "share=2": "it must be at most 1",
        "count=True": "it takes a whole number",
        "count=1.5": "it takes a whole number",
        "on=2": "it takes true or false",
        "most=x": "it takes a whole number or none",
        "kind=slow": "it takes full or paper",
        "anything=x": "write text in quotes, -o 'anything=\"x\"'",
    }
    for pair, words in cases.items():
        with pytest.raises(CwmError) as caught:
            read(pair)
        assert str(caught.value).endswith(words)
        assert "nput should" not in str(caught.value)


@given(st.floats(min_value=0, max_value=1))
@example(0.9996)
@example(1 - 2**-53)
@example(0.0004)
@example(5e-324)
def test_only_exact_bounds_are_formatted_as_0_and_1(value):
    written = share(value)
    assert (written == "1.000") == (value == 1)
    assert (written == "0.000") == (value <= 1e-12)
    assert abs(float(written) - value) <= 0.001
    assert (percent(value) == "100 %") == (value == 1)
    assert (float(percent(value)[:-1]) == 0) == (value <= 1e-12)


def test_share_formats_values_outside_0_to_1_and_unknown_values():
    written = {-0.0: "0.000", -0.0004: "-0.001", 1.0004: "1.001", 1.9996: "2.000", None: UNKNOWN}
    written[1 + 2**-52] = "1.000"  # a mean of exact results, rounded
    assert {value: share(value) for value in written} == written


def test_read_value_inverts_json():
    for value in SPELLINGS.values():
        assert read_value(json.dumps(value)) == value


@pytest.fixture
def poles_npz(cwm, poles):
    poles[0].save(cwm.folder / "p.npz")
    return cwm


LAZY = """
class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, {reward}, False
"""


def printed_sums(table):
    """Return the sum of the products in each column of a printed score table."""
    rows = {line.split("  ")[0].strip(): line for line in table.splitlines()}
    terms = {
        name: re.findall("([\\d.]+) \N{MULTIPLICATION SIGN} ([\\d.]+)", line)
        for name, line in rows.items()
    }
    summed = [found for name, found in terms.items() if name[:1] in ("=", "+") and found]
    return [sum(float(a) * float(b) for a, b in column) for column in zip(*summed, strict=True)]


@pytest.mark.slow
def test_accuracy_is_the_weighted_sum_of_the_parts_in_table_and_json(cwm):
    for env, reward in (("CliffWalking-v1", -1), ("Taxi-v4", -1), ("Pendulum-v1", 0)):
        (cwm.folder / "lazy.py").write_text(LAZY.format(reward=reward))
        done = cwm.inside("--verbose", "evaluate", "lazy.py", "--env", env, "--json")
        scores = [json.loads(done.stdout)[part] for part in ("train", "test")]
        for score, printed in zip(scores, printed_sums(done.stderr), strict=True):
            parts = score["weighed"].values()
            assert sum(part["weight"] for part in parts) == pytest.approx(1)
            exact = sum(part["right"] * part["weight"] for part in parts)
            assert score["accuracy"] == pytest.approx(exact)
            assert score["accuracy"] == pytest.approx(printed, abs=0.003)


def test_prompt_states_row_weights_except_with_published_feedback(sandbox):
    data = Dataset.load(default_dataset(environment("CliffWalking-v1"))[0])
    metric = AccuracyMetric.of(data.train)
    rewards = data.train.columns["rewards"]
    common, rare = (int((rewards == value).sum()) for value in (-1.0, -100.0))
    weights = f"by its reward: -100: {common / rare:.3g}, -1: 1."
    for feedback, times in (("full", 1), ("paper", 0)):
        problem = WorldModelProblem("A cliff.", data.train, sandbox, metric, feedback=feedback)
        for action in (GENERATE, IMPROVE):
            text = "".join(m.content for m in problem.messages(Move(action, program="pass")))
            assert text.count(weights) == times
    even = AccuracyMetric.of(Dataset.load(default_dataset(environment("Pendulum-v1"))[0]).train)
    assert even.words(data.train).endswith("All transitions weigh the same.")


@pytest.mark.slow
def test_program_below_the_baseline_gets_no_suggestion_to_plan(cwm):
    (cwm.folder / "answers").mkdir()
    (cwm.folder / "answers" / "0.md").write_text(f"```python\n{LAZY.format(reward=7)}```")
    words = ("synthesize", "--env", "CliffWalking-v1", "--backend", "replay", "--model", "answers")
    done = cwm.inside(*words, "--budget", "1", "--run", "r")
    assert done.returncode == 0, done.stderr
    assert "cwm plan" not in done.stdout
    assert "repeat with --run r --budget 2 (no better than the baseline)" in done.stdout


def test_evaluate_reports_a_program_that_does_not_load(poles_npz):
    (poles_npz.folder / "broken.py").write_text("import nothing_of_that_name")
    words = ("evaluate", "broken.py", "--env", "CartPole-v1", "--dataset", "p.npz")
    as_json, plain = poles_npz.inside(*words, "--json"), poles_npz.inside(*words)
    assert (as_json.returncode, plain.returncode) == (1, 1)
    assert json.loads(as_json.stdout)["failure"]["line"] == 1
    assert "the program failed: load error, line 1" in plain.stdout
    assert "all parts    0.000" in plain.stdout


@pytest.mark.slow
def test_plan_exits_with_1_only_if_every_decision_failed(cwm):
    half = cartpole().replace(
        "def step(self, action):", "def step(self, action):\n        1 / {}", 1
    )
    for text, code in ((half.format(0), 1), (half.format(1), 0)):
        (cwm.folder / "half.py").write_text(text)
        words = ("--program", "half.py", "--env", "CartPole-v1", "--max-steps", "3")
        done = cwm.inside("plan", *words, "--episodes", "1", "--json")
        assert done.returncode == code, done.stderr
        assert json.loads(done.stdout)["failures"] == (3 if code else 0)
