"""The docstring of an environment without what does not concern its dynamics."""

import re
from collections.abc import Iterator
from typing import NamedTuple

SKIPPED = (
    "version history",
    "changelog",
    "reference",
    "credit",
    "citation",
    "render",
    "vector",
    "information",
    "truncation",
    "episode truncation",
)
"""Beginnings of the titles of sections that are left out."""

ASIDE = {
    "render_mode",
    "gymnasium.make",
    "gym.make",
    "options",
    "info",
    "xml_file",
    "default_camera_config",
    "camera_id",
    "camera_name",
    "width",
    "height",
}
"""A line or table row about nothing but these names is left out."""

UNCHANGED = {"mujoco", "env.observation_structure", "frame_skip", "xml_file"} | ASIDE
"""A change that is about one of these names first of all changes no dynamics."""

DEEPEST = 6
HEADING = re.compile(r"^[ \t]*(#{1,6})[ \t]+(.+?)[ \t]*$", re.MULTILINE)
VERSION = re.compile(r"^\s*[*-]\s*v(\d+)\b:?(.*)")
REMARKS = re.compile(r"\s*\(related [^()]*\)|\s*The `info\b[^.]*\.")
FENCE = re.compile(r"[ \t]*(?:```|''')(.*?)(?:```|'''|\Z)\n?", re.DOTALL)
FOREIGN = re.compile(r"\s*(?:\{|@|python\b)|.*\bgym\b", re.DOTALL)
MARKUP = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),
    (re.compile(r"\s?\[<a [^>]*>\d+</a>\]"), ""),
    (re.compile(r"</?(?:a|br|center|div|em|font|i|img|p|strong)\b[^>\n]*>"), ""),
    (re.compile(r"\[([^\]]+)\]\((?:https?:|/|#)[^)]*\)"), r"\1"),
    (re.compile(r"<sup>(.*?)</sup>"), r"^\1"),
    (re.compile(r"<sub>(.*?)</sub>"), r"_{\1}"),
    (re.compile(r"(?<=\S)[ \t]{2,}(?=\|)|(?<=\|)[ \t]{2,}"), " "),
    (re.compile(r"-{4,}(?=\s*\|)"), "---"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


class Section(NamedTuple):
    """A heading, its level, and the text below it."""

    level: int
    title: str
    body: str


def clean(docstring: str) -> str:
    """Keep what says how the environment behaves; tables stay tables."""
    text = FENCE.sub(lambda fence: "" if FOREIGN.match(fence[1]) else fence[0], docstring)
    kept: list[str] = []
    below = 0
    for level, title, body in reversed(list(_relevant(text))):
        if body or level < below:
            heading = f"{'#' * level} {title}\n" if title else ""
            kept.append(f"{heading}{body}".strip())
            below = level
    return "\n\n".join(part for part in reversed(kept) if part)


def changes(docstring: str, after: int) -> list[str]:
    """Return what the version history says of the dynamics since a version."""
    history = (part for part in _sections(docstring) if part.title.lower() == "version history")
    found, version = [], after
    for line in (line for section in history for line in section.body.splitlines()):
        entry = VERSION.match(line)
        version = int(entry[1]) if entry else version
        change = (entry[2] if entry else line).strip().removeprefix("- ")
        if version > after and change and not _changes_nothing(change):
            found.append(REMARKS.sub("", _cleaned(change)))
    return found


def _changes_nothing(change: str) -> bool:
    """Whether a change is one of packaging, rendering or `info`."""
    first = re.search(r"`([^`]+)`", change)
    return first is not None and (first[1] in UNCHANGED or first[1].startswith("info["))


def _relevant(docstring: str) -> Iterator[Section]:
    """Yield the sections that are not left out, their text cleaned."""
    outer = DEEPEST
    for level, title, body in _sections(docstring):
        if level > outer:
            continue
        left_out = title.lower().startswith(SKIPPED)
        outer = level if left_out else DEEPEST
        if not left_out:
            yield Section(level, title, _cleaned(body))


def _sections(docstring: str) -> Iterator[Section]:
    """Yield what stands before the first heading, then every heading with its text."""
    before, *rest = HEADING.split(docstring)
    yield Section(0, "", before)
    for marks, title, body in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        yield Section(len(marks), title, body)


def _cleaned(text: str) -> str:
    """Remove pictures, links, padding and lines about rendering."""
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    text = "\n".join(line for line in text.splitlines() if not _aside(line))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _aside(line: str) -> bool:
    """Whether a line is about making, rendering or `info` only."""
    subject = line.split("|")[1] if line.lstrip().startswith("|") else line
    names = re.findall(r"`([^`]+)`", subject)
    return bool(names) and set(names) <= ASIDE
