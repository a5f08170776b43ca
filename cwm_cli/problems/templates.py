"""The texts that prompts are made of."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template

from cwm_cli.problems.feedback.examples import EXAMPLES
from cwm_cli.search.contracts import FIX, GENERATE, Message, Move

OPENINGS = {GENERATE: "```python\n$prefix", FIX: "1. **Explanation**:"}
"""How an answer is begun for the model where it is to go on with that, as published."""


@cache
def template(name: str, package: str = __package__) -> Template:
    """Read a prompt template of a package, such as `world_model/generate`."""
    file = files(package) / "prompts" / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))


ALIKE = re.compile(r"\$(?:interface|description|question)\b")
"""What templates hold of the problem itself, which is the same in each prompt of a search and so
comes before all that is not: providers read it once, and sell it for less when it comes again."""

LEAST_FIRST = (
    ("examples", 0),
    ("feedback", 1200),
    ("evidence", 2400),
    ("description", 1000),
    ("question", 1000),
    ("evidence", 0),
    ("feedback", 300),
    ("error", 300),
    ("description", 0),
)
"""What is left out of a prompt that is too long, in this order, and the characters that stay: the
first sentences of a description name the task, those of a report what is wrong, and the first of
what was recorded are facts and steps in a row."""

LEFT_OUT = "[...]"

MOST_FINDINGS = 1500
"""Characters of what was found about a program without asking: about a tenth of a prompt."""


def messages(
    kind: str,
    move: Move,
    *,
    package: str = __package__,
    name: str = "",
    prefill: bool = False,
    room: int | None = None,
    **about: str,
) -> tuple[Message, ...]:
    """Fill the template that a kind of problem, or of a package, has for the action of a move.

    Another `name` takes another template. With `prefill` the answer is begun in a turn of the
    assistant, and so are the lines that a program has to begin with. Where that takes more than
    `room` characters, what matters least is left out; a program is never shortened.
    """
    failure = move.verdict.failure if move.verdict else None
    findings = _findings_section(move.verdict.findings if move.verdict else "")
    fields = about | {
        "prefix": "" if prefill else _prefix_section(move.prefix),
        "program": move.program.rstrip() or "# the last answer held no program",
        "feedback": (failure.message if failure else "Nothing is known to be wrong with it.")
        + findings,
        "error": (failure.message if failure else "") + findings,
    }
    asking = template(f"{kind}/{name or move.action}", package)
    system = template(f"{kind}/system", package).substitute().strip()
    if room is not None:
        fields = fitted(asking, fields, room - len(system))
    said = asking.substitute(fields).strip()
    asked = (
        Message(role="system", content=system),
        Message(role="user", content=said, stable=_stable(asking, fields, said)),
    )
    if not prefill or move.action not in OPENINGS:
        return asked
    begun = Template(OPENINGS[move.action]).substitute(prefix=move.prefix.rstrip("\n"))
    return (*asked, Message(role="assistant", content=begun.rstrip()))


def _stable(asking: Template, fields: Mapping[str, str], said: str) -> int:
    """Return how many characters of a prompt are what all prompts of a search begin with."""
    ends = [found.end() for found in ALIKE.finditer(asking.template)]
    begins = Template(asking.template[: max(ends, default=0)].lstrip()).substitute(fields)
    return len(begins) if said.startswith(begins) else 0


def fitted(asking: Template, fields: Mapping[str, str], room: int) -> dict[str, str]:
    """Shorten what fills a template until all of it has so many characters, if that can be."""
    shorter = dict(fields)
    used = asking.get_identifiers()
    for name, least in LEAST_FIRST:
        over = len(asking.substitute(shorter)) - room
        if over > 0 and name in used and len(shorter[name]) > least:
            shorter[name] = shortened(shorter[name], max(least, len(shorter[name]) - over))
    return shorter


def shortened(text: str, room: int) -> str:
    """Leave lines out: first those of a report's examples, then from the end."""
    parts = text.split("\n\n")
    examples = [place for place, part in enumerate(parts) if part.startswith(EXAMPLES)]
    for place in [*examples, *reversed(range(len(parts)))]:
        over = len("\n\n".join(filter(None, [*parts, LEFT_OUT]))) - room
        if over <= 0:
            break
        unit = "\n" if "\n" in parts[place] else " "
        parts[place] = parts[place][: max(0, len(parts[place]) - over)].rpartition(unit)[0]
    above = text[: len(text) - len(text.lstrip("\n"))]
    return above + "\n\n".join(filter(str.strip, [*parts, LEFT_OUT])) if room > 0 else ""


def _findings_section(findings: str) -> str:
    """Say what was found about a program without asking, if there is anything."""
    if not findings.strip():
        return ""
    told = findings if len(findings) <= MOST_FINDINGS else shortened(findings, MOST_FINDINGS)
    return f"\n\nWhat is known of this program besides: {told}"


def _prefix_section(prefix: str) -> str:
    """Ask for a program that begins with these lines, if there are any."""
    if not prefix.strip():
        return ""
    return "\n\n" + template("prefix").substitute(prefix=prefix.rstrip("\n")).strip()
