"""The numbers of a mechanism that a program holds as a text of XML, as MuJoCo reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MARK = "<mujoco"
"""What a text holds that describes a mechanism."""

PICTURES = frozenset(
    [
        "asset",
        "camera",
        "compiler",
        "custom",
        "keyframe",
        "light",
        "sensor",
        "size",
        "statistic",
        "visual",
    ]
)
"""Elements, with all that is in them, that do not move anything."""

FLAGS = frozenset(
    [
        "axis",
        "class",
        "conaffinity",
        "condim",
        "contype",
        "ctrlrange",
        "group",
        "iterations",
        "ls_iterations",
        "noslip_iterations",
        "priority",
        "quat",
        "ref",
        "rgba",
        "tolerance",
        "user",
        "xyaxes",
        "zaxis",
    ]
)
"""Attributes that are flags, directions, bounds of actions, or where counting begins.

Any other that holds numbers is a matter of size; what it does not do shows in the data.
"""

NAMES = ("name", "joint", "tendon", "site", "class")
"""Attributes that say what an element is, the likeliest first."""

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"<(/?)(\w+)((?:[^<>\"']|\"[^\"]*\"|'[^']*')*?)(/?)>")
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*\\?([\"'])(.*?)\\?\2", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class TextNumber(NamedTuple):
    """A number of a mechanism: `torso.geom.size[0]`, its value, and where in the text it is."""

    name: str
    value: float
    start: int
    stop: int


def mechanism_numbers(text: str) -> Iterator[TextNumber]:
    """Yield the numbers of a mechanism that may be otherwise: sizes, masses, dampings, gears.

    A number is called by its element, whose name comes first where it has one, or that of the
    body that it belongs to, and by its attribute. Zeros stay, as what is not there. So do flags,
    directions, and what is only to be looked at.
    """
    text = _COMMENT.sub(lambda found: " " * len(found[0]), text)
    within: list[str] = []
    bodies: list[str] = []
    seen: dict[str, int] = {}
    for tag in _TAG.finditer(text):
        closes, element, inside, is_alone = tag.groups()
        if closes:
            del within[-1:]
            if element == "body":
                del bodies[-1:]
            continue
        values = {found[1]: found[3] for found in _ATTRIBUTE.finditer(inside)}
        name = next((values[key] for key in NAMES if key in values), "")
        if not is_alone:
            within.append(element)
            if element == "body":
                bodies.append(name or "body")
        if PICTURES & {element, *within}:
            continue
        whose = name or ("default" if "default" in within else "".join(bodies[-1:]))
        called = f"{whose}.{element}" if whose else element
        seen[called] = seen.get(called, 0) + 1
        if seen[called] > 1:
            called = f"{called} {seen[called]}"
        yield from _attributes(called, inside, tag.start(3))


def _attributes(called: str, inside: str, start: int) -> Iterator[TextNumber]:
    """Yield the numbers in the attributes of an element."""
    for attribute in _ATTRIBUTE.finditer(inside):
        if attribute[1] in FLAGS:
            continue
        words = list(re.finditer(r"\S+", attribute[3]))
        for place, word in enumerate(words):
            is_direction = attribute[1] == "axisangle" and place < len(words) - 1
            if is_direction or not _NUMBER.fullmatch(word[0]) or float(word[0]) == 0:
                continue
            index = f"[{place}]" if len(words) > 1 else ""
            begins = start + attribute.start(3) + word.start()
            ends = begins + len(word[0])
            yield TextNumber(f"{called}.{attribute[1]}{index}", float(word[0]), begins, ends)
