"""The commands in the tables of published commands and ours."""

import re
import shlex

import pytest
from typer.main import get_command

from benchmarks.documentation.pages import DOCS
from cwm_cli.cli import command_line

PAGE = (DOCS / "reference" / "published.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Published commands and ours")[2].partition("\n## ")[0]
ROWS = "\n".join(line for line in SECTION.splitlines() if line.startswith("| "))
COMMANDS = sorted(set(re.findall(r"`cwm ([^`]+)`", ROWS)))
TREE = get_command(command_line())


def parse(text):
    """Parse a command line without running it."""
    command, words = TREE, shlex.split(text)
    if words[0] == "--config":  # the file has the required option
        words = [*words[2:], "--env", "CartPole-v1"]
    while words and words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    assert command is not TREE, text
    command.make_context(command.name, words)


@pytest.mark.parametrize("text", COMMANDS)
def test_every_command_in_the_tables_parses(text):
    parse(text)


def test_tables_have_many_commands():
    assert len([text for text in COMMANDS if text.startswith("synthesize --")]) >= 10
    assert len([text for text in COMMANDS if text.startswith("learn --")]) >= 6


@pytest.mark.parametrize(
    "text",
    ["learn", "synthesize --enw CartPole-v1", "plan --episodes x", "--config FILE train --enw X"],
)
def test_wrong_commands_do_not_parse(text):
    with pytest.raises(Exception, match=r"[Mm]issing|[Nn]o such option|valid integer"):
        parse(text)


def test_unknown_commands_do_not_parse():
    with pytest.raises(AssertionError):
        parse("synthesise --env CartPole-v1")
