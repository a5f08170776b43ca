"""Fill the templates of prompts, and shorten prompts that are too long."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template

from cwm_cli.problems.feedback.choices import RIGHT_STEPS
from cwm_cli.problems.feedback.examples import EXAMPLES
from cwm_cli.search.contracts import FIX, GENERATE, Message, Move

OPENINGS = {GENERATE: "```python\n$prefix", FIX: "1. **Explanation**:"}
"""The beginning of the answer in a turn of the assistant, as published."""


@cache
def template(name: str, package: str = __package__) -> Template:
    """Read a prompt template of a package, such as `world_model/generate`."""
    file = files(package) / "prompts" / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))


STABLE_FIELDS = re.compile(r"\$(?:interface|description|question)\b")
"""Fields that are equal in all prompts of a search. They come first, so that providers can cache
the beginning of the prompts."""

LEAST_FIRST = (
    ("others", 0),
    ("examples", 0),
    ("feedback", 600),
    ("evidence", 2400),
    ("description", 1000),
    ("question", 1000),
    ("evidence", 0),
    ("feedback", 300),
    ("error", 300),
    ("description", 0),
)
"""Fields that are shortened in a prompt that is too long, in this order, and the characters that
stay. The most important sentences of each field come first."""

ELLIPSIS = "[...]"


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
    """Fill the template of a kind of problem for the action of a move.

    Args:
        kind: The kind of problem: the folder of its templates.
        move: The move. Its failure and program fill the template.
        package: The package that contains the templates.
        name: The name of the template, by default the action of the move.
        prefill: Whether to begin the answer, with the prefix of the program, in a turn of the
            assistant.
        room: Most characters of the prompt. The least important fields are shortened first; a
            program is never shortened.
        about: More fields of the template.
    """
    failure = move.verdict.failure if move.verdict else None
    findings = move.verdict.findings if move.verdict else ""
    if findings.strip():
        # 1,500 characters are about a tenth of a prompt.
        findings = findings if len(findings) <= 1500 else shorten(findings, 1500)
        findings = f"\n\nFurther findings about this program: {findings}"
    else:
        findings = ""
    prefix = ""
    if move.prefix.strip() and not prefill:
        prefix = template("prefix").substitute(prefix=move.prefix.rstrip("\n")).strip()
        prefix = f"\n\n{prefix}"
    fields = about | {
        "prefix": prefix,
        "program": move.program.rstrip() or "# the last answer contained no program",
        "feedback": (failure.message if failure else "No mistake of this program is known.")
        + findings,
        "error": (failure.message if failure else "") + findings,
    }
    asking = template(f"{kind}/{name or move.action}", package)
    system = template(f"{kind}/system", package).substitute().strip()
    if room is not None:
        fields = shorten_fields(asking, fields, room - len(system))
    text = asking.substitute(fields).strip()
    # The fields that all prompts of a search share come first; a shortened one may break that.
    ends = [found.end() for found in STABLE_FIELDS.finditer(asking.template)]
    beginning = Template(asking.template[: max(ends, default=0)].lstrip()).substitute(fields)
    stable = len(beginning) if text.startswith(beginning) else 0
    prompt = (
        Message(role="system", content=system),
        Message(role="user", content=text, stable=stable),
    )
    if not prefill or move.action not in OPENINGS:
        return prompt
    opening = Template(OPENINGS[move.action]).substitute(prefix=move.prefix.rstrip("\n"))
    return (*prompt, Message(role="assistant", content=opening.rstrip()))


def shorten_fields(asking: Template, fields: Mapping[str, str], room: int) -> dict[str, str]:
    """Shorten fields until the filled template has at most `room` characters, if possible."""
    shorter = dict(fields)
    used = asking.get_identifiers()
    for name, least in LEAST_FIRST:
        over = len(asking.substitute(shorter)) - room
        if over > 0 and name in used and len(shorter[name]) > least:
            shorter[name] = shorten(shorter[name], max(least, len(shorter[name]) - over))
    return shorter


def shorten(text: str, room: int) -> str:
    """Leave out lines: rightly predicted steps first, then examples, then from the end."""
    parts = text.split("\n\n")
    examples = [
        place
        for head in (RIGHT_STEPS, EXAMPLES)
        for place, part in enumerate(parts)
        if part.startswith(head)
    ]
    for place in [*examples, *reversed(range(len(parts)))]:
        over = len("\n\n".join(filter(None, [*parts, ELLIPSIS]))) - room
        if over <= 0:
            break
        unit = "\n" if "\n" in parts[place] else " "
        parts[place] = parts[place][: max(0, len(parts[place]) - over)].rpartition(unit)[0]
    above = text[: len(text) - len(text.lstrip("\n"))]
    return above + "\n\n".join(filter(str.strip, [*parts, ELLIPSIS])) if room > 0 else ""
