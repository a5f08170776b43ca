"""`cwm.toml`: defaults of options from a file, and messages on invalid files."""

import json

import pytest

WRONG = {
    "unknown key": (
        "[synthesize]\nbudgt = 3",
        "unknown key 'budgt' in [synthesize]: did you mean budget?",
    ),
    "unknown key with a line": (
        "[plan]\nmax_stps = 3",
        "unknown key 'max_stps' in [plan]: did you mean max_steps?",
    ),
    "unknown common key": ('modl = "x"', "unknown key 'modl': did you mean model?"),
    "nothing near": ("[plan]\nzzzzzz = 1", "`cwm plan --help` lists the options"),
    "unknown table": (
        "[synthesise]\nbudget = 3",
        "unknown table 'synthesise': did you mean synthesize?",
    ),
    "unknown table of a group": (
        "[runs.lst]\njson = true",
        "unknown table 'runs.lst': did you mean runs.list?",
    ),
    "no table in a group": ("[runs]\njson = true", "unknown table 'runs.json'"),
    "text for a number": (
        '[synthesize]\nbudget = "many"',
        'budget takes a whole number, not "many"',
    ),
    "long text for a number": (f'seed = "{"a" * 9999}"', 'seed takes a whole number, not "aaaa'),
    "deep lists": ("seed = " + "[" * 900, "is not TOML"),
    "a number for text": ("model = 3", "model takes text in quotes, not 3"),
    "a number for a choice": ("[synthesize]\nnew = 1", "new takes true or false, not 1"),
    "true for a number": ("seed = true", "seed takes a whole number, not true"),
    "below a bound": ("[synthesize]\nbudget = 0", "budget has to be at least 1"),
    "broken": ("a = \n", "is not TOML (invalid value (at line 1, column 5))"),
    "a number too long": (f"seed = {'9' * 5000}", "is not TOML (exceeds the limit (4300 digits)"),
    "digits of a large number": ("model = 0x" + "f" * 5000, "not a number with thousands of"),
    "no text": (b"\xff\xfe", "is no text in UTF-8"),
    "a gap": ('allow_gap = "network"', "allow_gap cannot be set in a file"),
    "a server": ('api_base = "http://x"', "api_base is only read from a file that you name"),
}


@pytest.fixture
def write(cwm):
    def write(text: str | bytes, name: str = "cwm.toml") -> None:
        data = text if isinstance(text, bytes) else text.encode()
        (cwm.folder / name).write_bytes(data)

    return write


def test_what_is_wrong_is_said_in_one_line_with_the_nearest(cwm, write):
    failed = {}
    for name, (text, words) in WRONG.items():
        write(text)
        done = cwm.inside("runs", "list")
        lines = done.stderr.strip().splitlines()
        if (
            done.returncode != 1
            or len(lines) != 1
            or words not in lines[0]
            or len(lines[0]) > 400
            or not lines[0].startswith("Error: cwm.toml")
        ):
            failed[name] = done.stderr
    assert not failed


def test_a_file_that_cannot_be_read_is_named(cwm):
    (cwm.folder / "folder").mkdir()
    failed = {}
    for name, words in {"missing.toml": "there is no file", "folder": "is a folder"}.items():
        for given in (("--config", name, "runs", "list"), ("runs", "list")):
            cwm.environment = {} if len(given) > 2 else {"CWM_CONFIG": name}
            done = cwm.inside(*given)
            if done.returncode != 1 or words not in done.stderr:
                failed[name, given] = done.stderr
    assert not failed


@pytest.mark.slow
def test_options_come_from_the_file_and_what_is_typed_counts_more(cwm, write):
    write(
        "seed = 5\n[collect]\nenv = 'CartPole-v1'\nepisodes = 2\ntest_episodes = 1\nout = 'a.npz'"
    )
    first = json.loads(cwm.inside("collect", "--json").stdout)
    second = json.loads(cwm.inside("collect", "--json", "--force", "--episodes", "4").stdout)
    assert first["file"] == "a.npz"
    assert second["episodes"] - first["episodes"] == 2


def test_tables_are_pairs_and_lists_are_repeated(cwm, write):
    write(
        "[collect]\nenv = 'FrozenLake-v1'\nepisodes = 1\ntest_episodes = 1\nout = 'a.npz'\n"
        "env_arg = {is_slippery = false, map_name = '8x8'}\noption = {planner.horizon = 3}\n"
    )
    told = cwm.inside("collect", "--json")
    assert "unknown option" in told.stderr and "planner.horizon" in told.stderr
    write(
        "[collect]\nenv = 'FrozenLake-v1'\nepisodes = 1\ntest_episodes = 1\nout = 'a.npz'\n"
        "env_arg = {is_slippery = false, map_name = '8x8'}\n"
    )
    assert cwm.inside("collect", "--json").returncode == 0
    shown = json.loads(cwm.inside("data", "show", "a.npz", "--json").stdout)
    assert shown["env_args"] == {"is_slippery": False, "map_name": "8x8"}


def test_a_group_of_commands_has_tables_of_its_own(cwm, write):
    write("[runs.list]\njson = true")
    assert json.loads(cwm.inside("runs", "list").stdout) == {"runs": []}


def test_the_file_counts_more_than_the_variable_of_the_model(cwm, write):
    cwm.environment = {"CWM_MODEL": "openai/of-the-variable"}
    write('model = "nowhere/of-the-file"')
    done = cwm.inside("synthesize", "--env", "CartPole-v1")
    assert done.returncode == 1 and "of-the-file" in done.stderr
    assert (
        "of-the-variable"
        in cwm.inside(
            "synthesize", "--env", "CartPole-v1", "--model", "nowhere/of-the-variable"
        ).stderr
    )


def test_a_named_file_may_say_where_the_server_is(cwm, write):
    write('[synthesize]\napi_base = "http://127.0.0.1:9"', "mine.toml")
    done = cwm.inside("--config", "mine.toml", "synthesize", "--env", "CartPole-v1")
    assert "only read" not in done.stderr and "api_base" in done.stderr.replace("-", "_")


@pytest.mark.slow
def test_the_doctor_shows_the_file_and_its_values(cwm, write):
    write("seed = 7\n[plan]\nepisodes = 3\n[runs.list]\njson = true", "mine.toml")
    done = cwm("--config", "mine.toml", "doctor", "--json")
    facts = json.loads(done.stdout)["configuration"]
    assert facts["file"] == "mine.toml"
    assert facts["given"] == {"seed": 7, "plan": {"episodes": 3}, "runs": {"list": {"json": True}}}
    shown = cwm("--config", "mine.toml", "doctor").stdout
    assert "plan.episodes" in shown and "runs.list.json" in shown
