"""The texts that prompts are made of."""

from functools import cache
from importlib.resources import files
from string import Template

from cwm_cli.search.contracts import Message, Move


@cache
def template(name: str) -> Template:
    """Read a prompt template, such as `world_model/generate`."""
    file = files("cwm_cli.problems") / "prompts" / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))


def messages(kind: str, move: Move, **about: str) -> tuple[Message, ...]:
    """Fill the template that a kind of problem has for the action of a move."""
    failure = move.verdict.failure if move.verdict else None
    content = template(f"{kind}/{move.action}").substitute(
        prefix=_prefix_section(move.prefix),
        program=move.program.rstrip() or "# the last answer held no program",
        feedback=failure.message if failure else "Nothing is known to be wrong with it.",
        error=failure.message if failure else "",
        **about,
    )
    system = template(f"{kind}/system").substitute().strip()
    return (
        Message(role="system", content=system),
        Message(role="user", content=content.strip()),
    )


def _prefix_section(prefix: str) -> str:
    """Ask for a program that begins with these lines, if there are any."""
    if not prefix.strip():
        return ""
    return "\n\n" + template("prefix").substitute(prefix=prefix.rstrip("\n")).strip()
