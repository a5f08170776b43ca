"""The declarations of commands: panels, help texts, examples and the size of the functions."""

import inspect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from cwm_cli.cli import COMMAND_PANELS, command_line
from cwm_cli.cli.declarations import PANELS

MAX_LINES = 60

MAX_SUMMARY = 60
"""Characters of a summary that fit beside the longest name at 80 columns."""

SEVERAL_MEANINGS = {
    "--yes",
    "--backend",
    "--from",
    "--budget",
    "--dataset",
    "--env",
    "--episodes",
    "--executor",
    "--force",
    "--max-steps",
    "--model",
    "--new",
    "--out",
    "--parallel",
    "--policy",
    "--reward",
    "--run",
    "--statistician",
    "--steps",
    "--strategy",
    "--to",
    "--workers",
    "--planner",
    "--idx",
    "--shift",  # `benchmark` has no --env-arg
}
"""Options whose meaning depends on the command."""


class Command(NamedTuple):
    """A command: its words, the function, and Typer's object."""

    name: str
    function: Any
    parsed: Any

    def options(self) -> Iterator[Any]:
        return (each for each in self.parsed.params if each.param_type_name == "option")


def walk(parsed: Any, words: tuple[str, ...] = ()) -> Iterator[Command]:
    """Yield every command below a group."""
    for name, each in parsed.commands.items():
        path = (*words, name)
        if each.callback is not None:
            yield Command(" ".join(path), inspect.unwrap(each.callback), each)
        if hasattr(each, "commands"):
            yield from walk(each, path)


TREE = get_command(command_line())
COMMANDS = list(walk(TREE))
each_command = pytest.mark.parametrize("command", COMMANDS, ids=[each.name for each in COMMANDS])


@each_command
def test_options_have_a_help_text_and_a_panel(command):
    for option in command.options():
        assert option.help and option.help.endswith("."), option.opts
        assert option.rich_help_panel in PANELS, option.opts


@each_command
def test_panels_are_in_order_and_basics_come_first(command):
    panels = [option.rich_help_panel for option in command.options()]
    assert panels == sorted(panels, key=PANELS.index)


@each_command
def test_commands_have_a_summary_that_fits_and_an_example(command):
    summary, *_, last = command.parsed.help.split("\n\n")
    assert len(summary) <= MAX_SUMMARY and summary.endswith(".")
    assert last.startswith(f"Example: cwm {command.name}")


@each_command
def test_examples_name_options_that_exist(command):
    known = {
        name for option in command.options() for name in (*option.opts, *option.secondary_opts)
    }
    words = command.parsed.help.rpartition("Example: ")[2].split()
    assert {word for word in words if word.startswith("-")} <= known


@each_command
def test_functions_of_commands_are_short(command):
    lines, _ = inspect.getsourcelines(command.function)
    assert len(lines) <= MAX_LINES


def test_an_option_has_one_help_text():
    texts = defaultdict(set)
    for command in COMMANDS:
        for option in command.options():
            texts[option.opts[0]].add(option.help)
    several = {name for name, found in texts.items() if len(found) > 1}
    assert several == SEVERAL_MEANINGS


def test_all_commands_are_listed_in_panels_in_order_of_use(cwm):
    ctx = TREE.make_context("cwm", ["--help"], resilient_parsing=True)
    assert TREE.list_commands(ctx) == [n for names in COMMAND_PANELS.values() for n in names]
    shown = cwm.inside("--help").stdout
    places = [shown.index(f"─ {panel} ─") for panel in COMMAND_PANELS]
    assert places == sorted(places)


def test_options_that_commands_share_expand_into_each(cwm):
    shown = cwm.inside("benchmark", "--help").stdout
    assert [shown.index(f"─ {panel} ─") for panel in PANELS] == sorted(
        shown.index(f"─ {panel} ─") for panel in PANELS
    )
    assert shown.index("--suite") < shown.index("--shift") < shown.index("--help")
