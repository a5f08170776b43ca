"""The texts that prompts are made of."""

from functools import cache
from importlib.resources import files
from string import Template

from cwm_cli.search.contracts import Message, Move


@cache
def template(name: str, package: str = __package__) -> Template:
    """Read a prompt template of a package, such as `world_model/generate`."""
    file = files(package) / "prompts" / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))


def messages(
    kind: str, move: Move, *, package: str = __package__, **about: str
) -> tuple[Message, ...]:
    """Fill the template that a kind of problem, or of a package, has for the action of a move."""
    failure = move.verdict.failure if move.verdict else None
    content = template(f"{kind}/{move.action}", package).substitute(
        prefix=_prefix_section(move.prefix),
        program=move.program.rstrip() or "# the last answer held no program",
        feedback=failure.message if failure else "Nothing is known to be wrong with it.",
        error=failure.message if failure else "",
        **about,
    )
    system = template(f"{kind}/system", package).substitute().strip()
    return (
        Message(role="system", content=system),
        Message(role="user", content=content.strip()),
    )


def _prefix_section(prefix: str) -> str:
    """Ask for a program that begins with these lines, if there are any."""
    if not prefix.strip():
        return ""
    return "\n\n" + template("prefix").substitute(prefix=prefix.rstrip("\n")).strip()
