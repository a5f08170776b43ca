"""The description of an environment, without the passages that a program does not need.

A docstring also explains how to create the environment, how episodes start and which options are
off. A program needs only the rules.
"""

import re
from itertools import groupby
from math import prod
from typing import Literal, NamedTuple

from cwm_cli.worlds.contract import MOST_BOUNDS

Subject = Literal[
    "task", "actions", "observation", "reward", "start", "ends", "options", "aside", "spaces"
]
"""The subject of a passage. `spaces` are the observation and action space and the settings below
them; `aside` are references, credits and the like."""

SUBJECTS: tuple[tuple[str, Subject], ...] = (
    ("reference|version history|changelog|credit|citation|render", "aside"),
    ("argument|parameter|option", "options"),
    ("reward", "reward"),
    ("start|initial|reset", "start"),
    ("terminat|truncat|episode|end of|^end", "ends"),
    ("^spaces?$", "spaces"),
    ("action", "actions"),
    ("observation|state space", "observation"),
)
"""Patterns of headings and the subject of the passage below; the first pattern that matches counts.
"""

HEADING = re.compile(r"^[ \t]*(#{1,6})[ \t]+(.+?)[ \t]*$", re.MULTILINE)
OPTION = re.compile(r"^[ \t]*(?:[|*-][ \t]*)?`(\w+)(?:=([^`]*))?`")
RANDOM_START = re.compile(r"random|uniform|noise|\\mathcal|sampled", re.IGNORECASE)
QUOTED_REMARK = re.compile(r"^(?:See .* note .*\n\n)?^>.*\n(?:[> ].*\n?)*", re.MULTILINE)
CHANGEABLE = re.compile(
    r"\b(?:parameter|argument)s? can be (?:changed|modified)|"
    r"\bcan be (?:changed|modified) through the unwrapped"
)
"""A sentence on how to change the environment."""
OTHER_ENVIRONMENT = re.compile(r"\n[^\n]*\bby passing `\w+=(?:.+\n?)*")
"""A line on how to create another environment, and the rest of its paragraph."""
TIME_LIMIT = re.compile(
    r"^[ \t]*(?:[-*]|\d+\.)[ \t]*Truncation\b.*\n?(?:[ \t]{4,}\S.*\n?)*"
    r"|^Episodes are cut after .* time limit .*\n?",
    re.MULTILINE,
)
"""A passage on the time limit, which programs do not predict, as every prompt states."""


class Passage(NamedTuple):
    """A heading with the text below it, and their subject."""

    subject: Subject
    level: int
    title: str
    text: str

    def __str__(self) -> str:
        heading = f"{'#' * self.level} {self.title}" if self.title else ""
        return f"{heading}\n{self.text}".strip()


def split_passages(description: str) -> list[Passage]:
    """Split a description at its headings.

    A passage whose heading matches no pattern has the subject of the heading one level above.
    """
    before, *rest = HEADING.split(description.strip())
    found = [Passage("task", 0, "", before.strip())] if before.strip() else []
    outer: list[tuple[int, Subject]] = []
    for marks, title, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        level = len(marks)
        outer = [heading for heading in outer if heading[0] < level]
        inherited = outer[-1][1] if outer else "task"
        matching = (name for pattern, name in SUBJECTS if re.search(pattern, title.lower()))
        subject = next(matching, inherited)
        outer.append((level, subject))
        found.append(Passage(subject, level, title, text.strip()))
    return found


def trim_description(description: str) -> str:
    """Return a description without the parts that a program of the rules does not need.

    It leaves out references, the distribution of initial states, options that are off or that
    another passage explains, quoted remarks, time limits, and the spaces and bounds that every
    prompt states.
    """
    passages = split_passages(description)
    settings = "\n".join(part.text for part in passages if part.subject == "spaces")
    rules = "\n".join(part.text for part in passages if part.subject not in ("options", "spaces"))
    kept: list[str] = []
    for part in passages:
        match part.subject:
            case "aside":
                continue
            case "start":
                text = _drop_sentences(RANDOM_START, part.text)
            case "options":
                text = _trim_options(part.text, rules, settings)
            case "actions" | "observation":
                text = _trim_tables(OTHER_ENVIRONMENT.sub("", part.text))
            case "spaces":
                text = _trim_spaces(part.text)
            case _:
                text = part.text
        text = TIME_LIMIT.sub("", QUOTED_REMARK.sub("", text))
        text = _drop_sentences(CHANGEABLE, text).rstrip()
        if text or not part.text:
            plain = part._replace(level=0, title="") if part.subject == "spaces" else part
            kept.append(str(plain._replace(text=text)))
    return "\n\n".join(kept)


def _drop_sentences(pattern: re.Pattern[str], text: str) -> str:
    """Leave out the sentences that contain a pattern."""
    kept = []
    for paragraph in text.split("\n\n"):
        if pattern.search(paragraph):
            sentences = re.split(r"(?<=\.)\s+", paragraph)
            paragraph = " ".join(one for one in sentences if not pattern.search(one))
        kept.append(paragraph)
    return "\n\n".join(paragraph for paragraph in kept if paragraph.strip())


def _trim_options(text: str, rules: str, settings: str) -> str:
    """Shorten options that are off to `name=False`, and drop options that the rules explain."""
    entries: list[list[str]] = [[]]
    for line in text.splitlines():
        if OPTION.match(line):
            entries.append([])
        entries[-1].append(line)
    if len(entries) == 1:
        return text
    kept, off = [], list[str]()
    for lines in entries[1:]:
        option = OPTION.match(lines[0])
        assert option is not None
        name, default, entry = option[1], option[2], "\n".join(lines).strip()
        refers = re.search(r"\(?see\b", entry, re.IGNORECASE)
        depends = any(f"{other}=True" in entry for other in off)
        if f"`{name}=" not in settings and (default == "False" or depends):
            off.append(name)
            kept.append(f"`{name}={default}`")
        elif not (refers and re.search(rf"\b{name}\b", rules)):
            kept.append(entry)
    header = [line for line in entries[0] if line.lstrip().startswith("|")]
    has_table = any(entry.startswith("|") for entry in kept)
    return "\n".join([*(header if has_table else []), *kept])


def _trim_spaces(text: str) -> str:
    """Leave out the spaces if they have few bounds, because the prompt states these elsewhere."""
    spaces, _, rest = text.partition("\n\n")
    shapes = re.findall(r"array of shape \(([\d, ]*)\)", spaces)
    sizes = [prod(map(int, re.findall(r"\d+", shape))) for shape in shapes]
    has_many = "by component" in spaces and max(sizes, default=0) > MOST_BOUNDS
    return text if has_many or not spaces.startswith("Observation:") else rest


def _trim_tables(text: str) -> str:
    """Drop the columns of a table with the same bound in all rows."""
    kept: list[str] = []
    for is_table, group in groupby(text.splitlines(), lambda line: line.lstrip().startswith("|")):
        lines = list(group)
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
        # A table has a header, a rule and at least two rows of equal length.
        if not is_table or len(lines) < 4 or len({len(row) for row in rows}) > 1:
            kept += lines
            continue
        columns = [
            column
            for column in zip(*rows, strict=True)
            if len(set(column[2:])) > 1
            or not re.fullmatch(r"(?:control )?(?:min|max)", column[0], re.IGNORECASE)
        ]
        kept += [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    return "\n".join(kept)
