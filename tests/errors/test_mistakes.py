"""A mistake is reported in one line before any work: no recording, no new folder."""

import re
import subprocess
import sys
from importlib.metadata import metadata

import pytest

from cwm_cli.commands.installation import EXTRAS
from cwm_litellm.models import BY_SIZE, COMMON, KEYS, check_model, check_price, prices, providers

LAKE = ("--env", "FrozenLake-v1", "--env-arg", "is_slippery=False")
SEARCH = ("synthesize", *LAKE, "--data-seed", "77")  # whose data neither ship nor are cached
FILE = ("--program", "good.py")
MANY = ("benchmark", "--env", "CartPole-v1")
MISTAKES = {
    ("synthesize",): "name one environment: --env CartPole-v1, --idx 3 or --dataset FILE",
    ("synthesize", "--env", "Cartpole-v1"): "did you mean CartPole-v1?",
    (*SEARCH, "--model", "openai/gpt-5"): "no key for openai: set OPENAI_API_KEY",
    (*SEARCH, "--model", "gpt-5"): "no key for openai: set OPENAI_API_KEY",
    (*SEARCH, "--model", "opneai/gpt-5"): "did you mean openai/gpt-5?",
    (*SEARCH, "--model", "gpt-99"): "unknown model 'gpt-99': write PROVIDER/NAME",
    (*SEARCH, "--model", "openai/"): "unknown model 'openai/'",
    (*SEARCH, "--backend", "litellm"): "needs a model: add --model PROVIDER/NAME",
    (*SEARCH, "--backend", "litelm"): "unknown backend 'litelm': did you mean litellm?",
    (*SEARCH, "--backend", "replay", "--model", "nowhere"): "'nowhere' contains no",
    (*SEARCH, "--strategy", "gifmcts"): "unknown strategy 'gifmcts': did you mean gif-mcts?",
    (*SEARCH, "--metric", "acuracy"): "unknown metric 'acuracy': did you mean accuracy?",
    (*SEARCH, "-o", "explore=1"): "unknown option 'explore'",
    (*SEARCH, "-o", "exploration=high"): "it takes a number",
    (*SEARCH, "-o", "seconds=-1"): "it must be more than 0",
    (*SEARCH, "-o", "memory_mb=0"): "memory_mb is 0",
    (*SEARCH, "--temperature", "1"): "has no option --temperature",
    (*SEARCH, "--tool", "mujocco"): "the tool 'mujocco' is not installed",
    (*SEARCH, "--tool", "gymnasium"): "which would let a program look up the true answers",
    (*SEARCH, "--allow-gap", "netwrk"): "unknown gap 'netwrk': did you mean network?",
    (*SEARCH, "--dataset", "nothing.npz"): "there is no dataset nothing.npz",
    (*SEARCH, "--env-arg", "slippery=True"): "unknown argument of FrozenLake-v1 'slippery'",
    (*SEARCH, "--env-arg", "map_name=8x8"): "--env-arg 'map_name=\"8x8\"'",
    (*SEARCH, "--run", "good.py"): "good.py contains other files",
    (*SEARCH, "--run", "."): ". contains other files",
    ("evaluate", "good.py"): "add --env ID",
    ("evaluate", "good.py", *LAKE, "--metric", "papr"): "did you mean paper?",
    ("evaluate", "good.py", *LAKE, "--tool", "nope"): "the tool 'nope' is not installed",
    ("evaluate", "good.py", *LAKE, "--allow-gap", "netwrk"): "did you mean network?",
    ("plan",): "choose one world model: a run, --program FILE, or --real-env",
    ("plan", "good.py"): "good.py is a file, not a run folder: use --program good.py --env ID",
    ("plan", *FILE, *LAKE, "--planner", "mtcs"): "did you mean mcts?",
    ("plan", *FILE, *LAKE, "--tool", "nope"): "the tool 'nope' is not installed",
    ("bench-speed", *FILE, *LAKE, "--model", "openai/gpt-5"): "set OPENAI_API_KEY",
    ("bench-speed", *FILE, *LAKE, "--tool", "nope"): "the tool 'nope' is not installed",
    (*MANY, "--env", "Cartpole-v1"): "did you mean CartPole-v1?",
    (*MANY, "--model", "openai/gpt-5"): "set OPENAI_API_KEY",
    (*MANY, "--model", "opneai/gpt-5"): "did you mean openai/gpt-5?",
    (*MANY, "--strategy", "foo"): "unknown strategy 'foo'",
    (*MANY, "--executor", "rya"): "unknown executor 'rya'",
    (*MANY, "--tool", "nope"): "the tool 'nope' is not installed",
    (*MANY, "--run", "good.py"): "contains other files",
    ("apps", "--model", "openai/gpt-5"): "set OPENAI_API_KEY",
    ("apps", "--model", "opneai/gpt-5"): "did you mean openai/gpt-5?",
    ("collect", *LAKE, "--policy", "rndom"): "did you mean random?",
    ("collect", *LAKE, "--out", "good.py"): "good.py already exists",
    ("runs", "show", "good.py"): "good.py is not a run folder",
}
PRICES = {
    (*SEARCH, "--model", "openai/gpt-99", "--max-cost", "1"): "known price",
    (*MANY, "--model", "openai/gpt-99", "--max-cost", "1"): "known price",
    ("apps", "--model", "openai/gpt-99", "--max-cost", "1"): "known price",
    ("bench-speed", *FILE, *LAKE, "--model", "openai/gpt-99", "--max-cost", "1"): "known price",
}


@pytest.fixture
def novice(cwm, monkeypatch):
    for name in {name for names in KEYS.values() for name in names}:
        monkeypatch.delenv(name, raising=False)
    (cwm.folder / "good.py").write_text("class Environment: ...\n")
    return cwm


def told(shell, mistakes):
    """Make mistakes; return those with any output other than one line on stderr."""
    wrong = {}
    for arguments, words in mistakes.items():
        done = shell.inside(*arguments)
        lines, left = done.stderr.splitlines(), sorted(path.name for path in shell.folder.iterdir())
        is_told = len(lines) == 1 and lines[0].startswith("Error: ") and words in lines[0]
        if (done.returncode, done.stdout, is_told, left) != (1, "", True, ["good.py"]):
            wrong[arguments] = (done, left)
    return wrong


@pytest.mark.slow
def test_mistakes_are_told_in_one_line_before_anything_is_recorded_or_begun(novice):
    assert told(novice, MISTAKES) == {}


def test_a_price_that_nobody_knows_is_told_before_anything_is_recorded_or_begun(novice):
    novice.environment["OPENAI_API_KEY"] = "a-key"
    assert told(novice, PRICES) == {}


@pytest.mark.slow
def test_a_missing_key_is_told_without_the_seconds_that_litellm_takes(novice):
    code = """
import sys
sys.argv = ["cwm", *sys.argv[1:]]
from cwm_cli.cli import main
try:
    main()
finally:
    print(sorted({"litellm", "openai"} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *SEARCH, "--model", "gemini/gemini-2.5-pro"],
        env=novice.variables(),
        capture_output=True,
        text=True,
        cwd=novice.folder,
    )
    assert done.stderr.startswith("Error: no key for gemini: set GEMINI_API_KEY")
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_what_is_known_of_models_without_litellm_is_what_litellm_knows(monkeypatch):
    from cwm_cli.errors import CwmError
    from cwm_litellm.library import load

    litellm = load()
    assert set(COMMON) <= providers()
    for names in KEYS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for provider, names in KEYS.items():
        missing = set(litellm.validate_environment(f"{provider}/some-model")["missing_keys"])
        assert not missing or missing & set(names), (provider, missing)
        with pytest.raises(CwmError, match=f"no key for {provider}: set {names[0]}"):
            check_model(f"{provider}/some-model")
        monkeypatch.setenv(names[-1], "a-key")
        check_model(f"{provider}/some-model")
        if provider in BY_SIZE:
            continue
        with pytest.raises(CwmError, match="known price"):
            check_price(f"{provider}/some-model")
        with pytest.raises(Exception, match="some-model"):
            litellm.cost_per_token(f"{provider}/some-model", prompt_tokens=1, completion_tokens=1)
    for name in prices():
        check_price(name)


def test_help_is_there_for_whoever_writes_h(cwm):
    for command in (
        (),
        ("synthesize",),
        ("runs",),
        ("runs", "list"),
        ("data", "import"),
        ("apps",),
    ):
        short, long = cwm.inside(*command, "-h"), cwm.inside(*command, "--help")
        assert (short.returncode, short.stdout) == (0, long.stdout)
        assert "--help" in long.stdout
        assert "bool" not in long.stdout.lower(), "flags have no type"


def test_wrong_usage_is_told_in_no_library_s_words(cwm):
    cases = {
        ("--budget", "0"): "it must be at least 1",
        ("--budget", "ten"): "it takes a whole number",
        ("--max-cost", "lots"): "it takes a number",
    }
    for arguments, words in cases.items():
        done = cwm.inside("synthesize", "--env", "CartPole-v1", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Input" not in done.stderr


def test_doctor_names_every_extra(cwm):
    offered = set(metadata("cwm-cli").get_all("Provides-Extra") or ()) - {"test", "dev"}
    assert offered <= EXTRAS.keys()
    out = cwm.inside("doctor").stdout
    assert all(
        re.search(rf"^  {name} +(installed|missing: )", out, re.MULTILINE) for name in EXTRAS
    )
