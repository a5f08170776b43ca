"""The description of an environment, passage by passage, and what of it a program needs.

A docstring also says how an environment is made, where an episode begins and what an option
that is off would do. Whoever writes its rules as a program does without that.
"""

import re
from math import prod
from typing import Literal, NamedTuple

from cwm_cli.worlds.contract import MOST_BOUNDS

About = Literal[
    "task", "actions", "observation", "reward", "start", "ends", "options", "aside", "spaces"
]
"""What a passage is about; `spaces` are the values there are, with what follows them."""

TITLES: tuple[tuple[str, About], ...] = (
    ("reference|version history|changelog|credit|citation|render", "aside"),
    ("argument|parameter|option", "options"),
    ("reward", "reward"),
    ("start|initial|reset", "start"),
    ("terminat|truncat|episode|end of|^end", "ends"),
    ("^spaces?$", "spaces"),
    ("action", "actions"),
    ("observation|state space", "observation"),
)
"""Words in a heading that say what a passage is about, in the order in which they are tried."""

HEADING = re.compile(r"^[ \t]*(#{1,6})[ \t]+(.+?)[ \t]*$", re.MULTILINE)
OPTION = re.compile(r"^[ \t]*(?:[|*-][ \t]*)?`(\w+)(?:=([^`]*))?`")
DRAWN = re.compile(r"random|uniform|noise|\\mathcal|sampled", re.IGNORECASE)
SHAPE = re.compile(r"array of shape \(([\d, ]*)\)")
QUOTED = re.compile(r"^(?:See .* note .*\n\n)?^>.*\n(?:[> ].*\n?)*", re.MULTILINE)
SENTENCES = re.compile(r"(?<=\.)\s+")
CHANGED = re.compile(
    r"\b(?:parameter|argument)s? can be (?:changed|modified)|"
    r"\bcan be (?:changed|modified) through the unwrapped"
)
"""A sentence on how to have another environment than this."""
TIME_LIMIT = re.compile(
    r"^[ \t]*(?:[-*]|\d+\.)[ \t]*Truncation\b.*\n?(?:[ \t]{4,}\S.*\n?)*"
    r"|^Episodes are cut after .* time limit .*\n?",
    re.MULTILINE,
)
"""Where a time limit cuts an episode is no concern of a program, as every prompt says."""
REFERS = re.compile(r"\(?see\b", re.IGNORECASE)
MADE_OTHERWISE = re.compile(r"\n[^\n]*\bby passing `\w+=(?:.+\n?)*")
"""A line on how to make another environment, with the rest of its paragraph, which is on that."""
BOUND = re.compile(r"(?:control )?(?:min|max)", re.IGNORECASE)


class Passage(NamedTuple):
    """A heading with the text below it, and what they are about."""

    about: About
    level: int
    title: str
    text: str

    def __str__(self) -> str:
        heading = f"{'#' * self.level} {self.title}" if self.title else ""
        return f"{heading}\n{self.text}".strip()


def passages(description: str) -> list[Passage]:
    """Cut a description at its headings; what has no telling one is about what stands above it."""
    before, *rest = HEADING.split(description.strip())
    found = [Passage("task", 0, "", before.strip())] if before.strip() else []
    above: list[tuple[int, About]] = []
    for marks, title, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        level = len(marks)
        above = [outer for outer in above if outer[0] < level]
        about = _about(title) or (above[-1][1] if above else "task")
        above.append((level, about))
        found.append(Passage(about, level, title, text.strip()))
    return found


def needed(description: str) -> str:
    """Return a description without what no program of its rules needs.

    Left out are references, how a start is drawn, options that another passage explains or that
    are off, remarks in quotes, limits of time, and spaces and bounds, which every prompt has.
    """
    parts = passages(description)
    settings = "\n".join(part.text for part in parts if part.about == "spaces")
    rules = "\n".join(part.text for part in parts if part.about not in ("options", "spaces"))
    kept: list[str] = []
    for part in parts:
        match part.about:
            case "aside":
                continue
            case "start":
                text = _without(DRAWN, part.text)
            case "options":
                text = _needed_options(part.text, rules, settings)
            case "actions" | "observation":
                text = _without_bounds(MADE_OTHERWISE.sub("", part.text))
            case "spaces":
                text = _settings(part.text)
            case _:
                text = part.text
        text = _without(CHANGED, TIME_LIMIT.sub("", QUOTED.sub("", text))).rstrip()
        if text or not part.text:
            plain = part._replace(level=0, title="") if part.about == "spaces" else part
            kept.append(str(plain._replace(text=text)))
    return "\n\n".join(kept)


def _about(title: str) -> About | None:
    """Read from a heading what is below it."""
    words = title.lower()
    return next((about for pattern, about in TITLES if re.search(pattern, words)), None)


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Leave out the sentences in which a pattern is found."""
    kept = [
        " ".join(each for each in SENTENCES.split(part) if not pattern.search(each))
        if pattern.search(part)
        else part
        for part in text.split("\n\n")
    ]
    return "\n\n".join(part for part in kept if part.strip())


def _needed_options(text: str, rules: str, settings: str) -> str:
    """Keep the options that say something new; of one that is off keep that it is off."""
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
        explained = REFERS.search(entry) and re.search(rf"\b{name}\b", rules)
        depends = any(f"{other}=True" in entry for other in off)
        if f"`{name}=" not in settings and (default == "False" or depends):
            off.append(name)
            kept.append(f"`{name}={default}`")
        elif not explained:
            kept.append(entry)
    header = [line for line in entries[0] if line.lstrip().startswith("|")]
    table = any(entry.startswith("|") for entry in kept)
    return "\n".join([*(header if table else []), *kept])


def _settings(text: str) -> str:
    """Leave out the spaces where they have few bounds, and so are said with what is to write."""
    spaces, _, rest = text.partition("\n\n")
    sizes = [
        prod(int(each) for each in re.findall(r"\d+", shape)) for shape in SHAPE.findall(spaces)
    ]
    many = "by component" in spaces and max(sizes, default=0) > MOST_BOUNDS
    return text if many or not spaces.startswith("Observation:") else rest


def _without_bounds(text: str) -> str:
    """Drop a table's columns of bounds where all rows have the same."""
    lines = text.splitlines()
    kept: list[str] = []
    while lines:
        table = []
        while lines and lines[0].lstrip().startswith("|"):
            table.append(lines.pop(0))
        kept += _narrower(table) if len(table) > 3 else table  # a header, a rule and two rows
        if lines and not lines[0].lstrip().startswith("|"):
            kept.append(lines.pop(0))
    return "\n".join(kept)


def _narrower(table: list[str]) -> list[str]:
    """Drop the columns of equal bounds of one table."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]
    if len({len(row) for row in rows}) > 1:
        return table
    columns = list(zip(*rows, strict=True))
    same = [BOUND.fullmatch(head) and len(set(cells)) == 1 for head, _, *cells in columns]
    narrow = zip(*(c for c, drop in zip(columns, same, strict=True) if not drop), strict=True)
    return [f"| {' | '.join(row)} |" for row in narrow]
