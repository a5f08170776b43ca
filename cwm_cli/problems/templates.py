"""The texts that prompts are made of."""

from functools import cache
from importlib.resources import files
from string import Template


@cache
def template(name: str) -> Template:
    """Read a prompt template, such as `world_model/generate`."""
    file = files("cwm_cli.problems") / "prompts" / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))


def prefix_section(prefix: str) -> str:
    """Ask for a program that begins with these lines, if there are any."""
    if not prefix.strip():
        return ""
    return "\n\n" + template("prefix").substitute(prefix=prefix.rstrip("\n")).strip()
