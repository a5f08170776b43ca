"""Describe an environment to a language model by its documentation and its spaces.

Parts of the docstring that do not concern the dynamics are left out: how to make the environment,
references and version history.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import isinf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_gymnasium.making import load
from cwm_gymnasium.shifts import is_shifted

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec


def describe_space(space: Space, indent: str = "") -> str:
    """Return a description of a space; a nested space has a line for every part."""
    if space.kind == "discrete":
        return f"an integer, {_range(space, 0)}"
    if space.kind == "text":
        return f"a text of at most {space.max_length} characters"
    if space.kind == "tuple":
        return "a tuple of" + _parts(range(len(space.children)), space.children, indent)
    if space.kind == "dict":
        return "a dict of" + _parts(space.keys, space.children, indent)
    return _array(space, indent)


def _parts(names: Sequence[object], children: Sequence[Space], indent: str) -> str:
    inner = indent + "  "
    pairs = zip(names, children, strict=True)
    return "".join(
        f"\n{inner}- [{name!r}]: {describe_space(child, inner)}" for name, child in pairs
    )


def _array(space: Space, indent: str) -> str:
    """Describe an array: shape, type, and bounds for all components or by component."""
    shape = f"an array of shape {space.shape}, {space.dtype}"
    runs = []
    for bounds, group in groupby(range(space.size), lambda place: _range(space, place)):
        first, *others = group  # neighbouring components with equal bounds
        runs.append((f"{first} to {others[-1]}" if others else f"{first}", bounds))
    if len(runs) == 1:
        return f"{shape}, {bounds if bounds == 'unbounded' else f'each {bounds}'}"
    order = "" if len(space.shape) == 1 else " (numbered in C order)"
    max_lines = 40  # the bounds of an array are listed in at most this many lines
    lines = [f"\n{indent}  - {place}: {bounds}" for place, bounds in runs[:max_lines]]
    more = f"\n{indent}  - and so on" if len(runs) > max_lines else ""
    return f"{shape}, by component{order}:{''.join(lines)}{more}"


def _range(space: Space, place: int) -> str:
    low, high = space.low[place], space.high[place]
    if isinf(low) and isinf(high):
        return "unbounded"
    if isinf(low) or isinf(high):
        return (
            f"at most {_number(space, high)}" if isinf(low) else f"at least {_number(space, low)}"
        )
    return f"from {_number(space, low)} to {_number(space, high)}"


def _number(space: Space, bound: float) -> str:
    """Return a bound in the shortest form that its type allows."""
    return f"{np.dtype(space.dtype).type(bound)!s}".removesuffix(".0")


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
"""Sections whose titles begin with these words are left out."""

IRRELEVANT_NAMES = {
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
"""Lines and table rows that mention only these names are left out."""

UNCHANGED = {"mujoco", "env.observation_structure", "frame_skip", "xml_file"} | IRRELEVANT_NAMES
"""An entry of the version history does not change the dynamics if its first name is in this set."""

MAX_HEADING_LEVEL = 6
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


class DocumentedSection(NamedTuple):
    """A heading, its level, and the text below it."""

    level: int
    title: str
    body: str


def clean(docstring: str) -> str:
    """Return the parts of a docstring that describe the behaviour, with their tables."""
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
    """Return the changes of the dynamics after a version, from the version history."""
    history = (part for part in _sections(docstring) if part.title.lower() == "version history")
    found, version = [], after
    for line in (line for section in history for line in section.body.splitlines()):
        entry = VERSION.match(line)
        version = int(entry[1]) if entry else version
        change = (entry[2] if entry else line).strip().removeprefix("- ")
        if version > after and change and not _is_irrelevant_change(change):
            found.append(REMARKS.sub("", _remove_markup(change)))
    return found


def _is_irrelevant_change(change: str) -> bool:
    """Return whether a change concerns packaging, rendering or `info`."""
    first = re.search(r"`([^`]+)`", change)
    return first is not None and (first[1] in UNCHANGED or first[1].startswith("info["))


def _relevant(docstring: str) -> Iterator[DocumentedSection]:
    """Yield the sections about the behaviour, without markup."""
    outer = MAX_HEADING_LEVEL
    for level, title, body in _sections(docstring):
        if level > outer:
            continue
        left_out = title.lower().startswith(SKIPPED)
        outer = level if left_out else MAX_HEADING_LEVEL
        if not left_out:
            yield DocumentedSection(level, title, _remove_markup(body))


def _sections(docstring: str) -> Iterator[DocumentedSection]:
    """Yield the text before the first heading, then every heading with its text."""
    before, *rest = HEADING.split(docstring)
    yield DocumentedSection(0, "", before)
    for marks, title, body in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        yield DocumentedSection(len(marks), title, body)


def _remove_markup(text: str) -> str:
    """Remove images, links, padding and lines about rendering."""
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    text = "\n".join(line for line in text.splitlines() if not _is_irrelevant_line(line))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _is_irrelevant_line(line: str) -> bool:
    """Return whether a line mentions only names about making, rendering or `info`."""
    subject = line.split("|")[1] if line.lstrip().startswith("|") else line
    names = re.findall(r"`([^`]+)`", subject)
    return bool(names) and set(names) <= IRRELEVANT_NAMES


SHIFT_NOTICE = (
    "This is a variant of the environment documented below: constants, time step, integrator, "
    "thresholds, weights of rewards, maps and rules may differ, and only the data shows how. "
    "Numbers and maps of the documentation are replaced by a ?."
)
"""The first paragraph of the description of a shifted environment."""

NUMBER = re.compile(
    r"(?P<kept>\w\[-?\d+:?\]|\(\d+,\)|\^\{?\d+|\d+ elements?|`\d+`:)"
    r"|(?<!\w)(?<!\w\.)[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:e[-+]?\d+)?(?!\w|\.\d)"
    r'|"[A-Z]{3,}"'
)
"""A number, or a line of a map; indices, shapes and exponents match as `kept`."""

COUNT = re.compile(r"\s*(?:\|[^|]*\||[-*]?\s*`?-?\d+`?(?:[.:](?=\s)|\s+-))")
"""The number of a table row, of an item or of an action."""

TEXT_MAP = re.compile(r"(?:^[ \t]*(?:\+-+\+|\|[ :|A-Z]+\|)[ \t]*\n)+", re.MULTILINE)
"""A map drawn with characters."""


def without_numbers(text: str) -> str:
    """Replace maps, and numbers that a shift may have changed, by question marks."""
    lines = []
    for line in TEXT_MAP.sub("    ?\n", FENCE.sub("?\n", text)).splitlines():
        count = COUNT.match(line)
        kept = count[0] if count else ""
        lines.append(kept + NUMBER.sub(lambda found: found["kept"] or "?", line[len(kept) :]))
    return "\n".join(lines)


def describe(env: gym.Env[Any, Any]) -> str:
    """Return the documentation, the spaces, the arguments and the time limit of an environment."""
    documented = clean(_docstring(type(env.unwrapped)))
    if is_shifted(env):
        documented = f"{SHIFT_NOTICE}\n\n{without_numbers(documented)}"
    spaces = (
        "## Spaces\n"
        f"Observation: {describe_space(space_of(env.observation_space))}\n"
        f"Action: {describe_space(space_of(env.action_space, 'actions'))}"
    )
    about = [documented] if documented else ["\n".join(_title(env)), *_borrowed(env)]
    return "\n\n".join([*about, spaces, *_arguments(env), *_time_limit(env)])


def _docstring(environment: type) -> str:
    """Return the docstring of a class, or of the base class whose `step` it inherits.

    Classes of this package, which replace a class for a shift, are skipped.
    """
    for cls in inspect.getmro(environment):
        if cls.__module__.startswith(__package__ or "?"):
            continue
        if cls.__doc__ or "step" in vars(cls):
            return inspect.cleandoc(cls.__doc__ or "")
    return ""


def _borrowed(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield the documentation of the next documented version, and the changes up to it."""
    for newer in _newer(env.spec) if env.spec else ():
        docstring = _documentation_of(newer)
        if env.spec and docstring:
            name, changed = env.spec.id, changes(docstring, env.spec.version or 0)
            yield (
                f"It has no documentation of its own. This is the documentation of {newer.id}, "
                f"followed by the differences of {name}:"
            )
            yield clean(docstring)
            lines = [f"No documented change from {name} to {newer.id} concerns the dynamics."]
            if changed:
                lines = [f"This is {name}: it behaves as before these changes of {newer.id}."]
                lines += [f"- {change}" for change in changed]
                lines.append(f"The spaces below are the spaces of {name}.")
            yield "\n".join(["## Differences", *lines])
            return


def _newer(spec: EnvSpec) -> list[EnvSpec]:
    """Return the later versions of an environment, the next one first."""
    named = (spec.namespace, spec.name)
    others = [other for other in load().registry.values() if (other.namespace, other.name) == named]
    later = [other for other in others if (other.version or 0) > (spec.version or 0)]
    return sorted(later, key=lambda other: other.version or 0)


def _documentation_of(spec: EnvSpec) -> str:
    """Return the docstring of the class of an environment; empty if it cannot be imported."""
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        try:
            creator = load().envs.registration.load_env_creator(creator)
        except Exception:  # noqa: BLE001  # third-party modules can raise anything
            return ""
    return _docstring(creator) if inspect.isclass(creator) else ""


def _title(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield the known facts about an environment without documentation."""
    spec = env.spec
    name = type(env.unwrapped).__name__
    yield f"The environment {spec.id} ({name})." if spec else f"The environment {name}."
    if spec and spec.reward_threshold is not None:
        yield f"It counts as solved at a return of {spec.reward_threshold:g}."
    if spec and spec.nondeterministic:
        yield "It is not deterministic."


def _arguments(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield a sentence about the arguments that differ from the defaults of the class."""
    parameters = inspect.signature(type(env.unwrapped)).parameters
    given = [
        f"`{name}={value!r}`"
        for name, value in (env.spec.kwargs if env.spec else {}).items()
        if name != "render_mode"
        if name not in parameters
        or (type(value), repr(value))
        != (type(parameters[name].default), repr(parameters[name].default))
    ]
    if given:
        yield f"The environment was made with {', '.join(given)}."


def _time_limit(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield a sentence about the time limit, which is not part of the dynamics."""
    if env.spec and env.spec.max_episode_steps:
        yield (
            f"Episodes are cut after {env.spec.max_episode_steps} steps by a time limit that is "
            "not part of `terminated` and that the observation does not show."
        )
