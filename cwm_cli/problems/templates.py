"""The texts that prompts are made of."""

from functools import cache
from importlib.resources import files
from string import Template

from cwm_cli.search.contracts import FIX, GENERATE, Message, Move

OPENINGS = {GENERATE: "```python\n$prefix", FIX: "1. **Explanation**:"}
"""How an answer is begun for the model where it is to go on with that, as published."""


@cache
def template(name: str, package: str = __package__) -> Template:
    """Read a prompt template of a package, such as `world_model/generate`."""
    file = files(package) / "prompts" / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))


def messages(
    kind: str,
    move: Move,
    *,
    package: str = __package__,
    name: str = "",
    prefill: bool = False,
    **about: str,
) -> tuple[Message, ...]:
    """Fill the template that a kind of problem, or of a package, has for the action of a move.

    Another `name` takes another template. With `prefill` the answer is begun in a turn of the
    assistant, and so are the lines that a program has to begin with.
    """
    failure = move.verdict.failure if move.verdict else None
    content = template(f"{kind}/{name or move.action}", package).substitute(
        prefix="" if prefill else _prefix_section(move.prefix),
        program=move.program.rstrip() or "# the last answer held no program",
        feedback=failure.message if failure else "Nothing is known to be wrong with it.",
        error=failure.message if failure else "",
        **about,
    )
    system = template(f"{kind}/system", package).substitute().strip()
    asked = (
        Message(role="system", content=system),
        Message(role="user", content=content.strip()),
    )
    if not prefill or move.action not in OPENINGS:
        return asked
    begun = Template(OPENINGS[move.action]).substitute(prefix=move.prefix.rstrip("\n"))
    return (*asked, Message(role="assistant", content=begun.rstrip()))


def _prefix_section(prefix: str) -> str:
    """Ask for a program that begins with these lines, if there are any."""
    if not prefix.strip():
        return ""
    return "\n\n" + template("prefix").substitute(prefix=prefix.rstrip("\n")).strip()
