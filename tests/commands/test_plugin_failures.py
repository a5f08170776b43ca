"""Exceptions in plugins end in one line that names the plugin; `--verbose` adds the traceback."""

import pytest

from cwm_cli.commands.plugin_failures import plugin_failure
from cwm_gif_mcts.strategy import GifMcts

SEARCH = ("synthesize", "--env", "CartPole-v1", "--budget", "1", "--start", "none")

BACKEND = """
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend, Completion

@hookimpl
def cwm_backends():
    {hook}
    return {{"echo": "echo_plugin:Echo"}}

@dataclass(frozen=True)
class Echo(Backend):
    {field}

    def __post_init__(self):
        {init}

    def complete(self, request):
        {complete}
"""

USUAL = {
    "hook": "pass",
    "field": 'model: str = ""',
    "init": "pass",
    "complete": 'return Completion("no program")',
}


def failing(cwm, *flags, **parts):
    """Search with a plugin with some parts replaced; return the text on stderr."""
    cwm.install("echo_plugin", BACKEND.format(**USUAL | parts))
    answer = cwm.inside(*flags, *SEARCH, "--backend", "echo")
    assert answer.returncode == 1, answer.stdout
    return answer.stderr


@pytest.mark.parametrize(
    ("part", "function"),
    [("hook", "cwm_backends"), ("init", "Echo.__post_init__"), ("complete", "Echo.complete")],
)
def test_an_exception_in_a_plugin_is_one_line_that_names_it(cwm, part, function):
    printed = failing(cwm, "--quiet", **{part: 'raise KeyError("the\\nkey")'})
    assert "Traceback" not in printed
    *_, line = printed.strip().splitlines()
    assert f"the plugin echo_plugin 1.0 failed: {function} raised KeyError: " in line
    assert "(echo_plugin.py, line " in line
    assert line.endswith("; --verbose shows the traceback")


def test_verbose_shows_the_traceback_of_a_plugin(cwm):
    printed = failing(cwm, "--verbose", init='raise KeyError("key")')
    assert "Traceback (most recent call last)" in printed
    assert "KeyError: 'key'" in printed
    assert "Error: the plugin echo_plugin 1.0 failed" in printed.splitlines()[-1]


def test_a_backend_without_the_field_model_is_refused_in_one_line(cwm):
    printed = failing(cwm, field="other: int = 1")
    assert (
        "the backend 'echo' of echo_plugin 1.0 is invalid: the class Echo needs a field 'model'"
    ) in printed
    assert len(printed.strip().splitlines()) == 1


@pytest.mark.parametrize("value", ["[1]", "None"])
def test_a_hook_that_returns_no_mapping_is_refused_in_one_line(cwm, value):
    printed = failing(cwm, "--quiet", hook=f"return {value}")
    assert "cwm_backends of echo_plugin 1.0 returned" in printed
    assert "it must return a mapping from names to classes or addresses" in printed
    assert len(printed.strip().splitlines()) == 1


def test_a_plugin_that_lacks_a_method_is_refused_in_one_line(cwm):
    code = BACKEND.format(**USUAL).partition("    def complete")[0]
    cwm.install("echo_plugin", code)
    answer = cwm.inside("--quiet", *SEARCH, "--backend", "echo")
    assert "the plugin echo_plugin 1.0 is incomplete: Echo must define complete()" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_failing_command_hook_is_one_line_with_and_without_verbose(cwm):
    code = (
        "from cwm_cli import hookimpl\n\n"
        "@hookimpl\ndef cwm_commands(app):\n    raise ValueError('no app')\n"
    )
    cwm.install("hello_plugin", code)
    answer = cwm("options", "gif-mcts")
    assert answer.returncode == 1
    assert answer.stderr.startswith(
        "Error: the plugin hello_plugin 1.0 failed: cwm_commands raised ValueError: no app"
    )
    assert len(answer.stderr.splitlines()) == 1
    process = cwm.start("options", "gif-mcts", "--verbose")
    _, printed = process.communicate()
    assert "Traceback (most recent call last)" in printed


def test_an_exception_in_our_own_plugins_is_no_failure_of_a_plugin():
    with pytest.raises(AttributeError) as raised:
        GifMcts().update(None)
    assert plugin_failure(raised.value) is None
