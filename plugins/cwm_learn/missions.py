"""Missions in words, the states that programs and prompts show, and inventions of rules."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from string import Template
from textwrap import indent
from typing import Any

import numpy as np

from cwm_cli.data.objects import MISSION, OBJECTS, ObjectSchema, Thing
from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import close

INVENTED = "invented"
"""The entry point of inventions."""

STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "get", "go", "has", "have",
    "i", "in", "into", "is", "it", "its", "must", "of", "on", "or", "that", "the", "then", "this",
    "to", "use", "was", "with", "you", "your",
})  # fmt: skip
"""Words without meaning for a mission."""

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def content_words(mission: str) -> list[str]:
    """Return the distinct words of a mission without numbers and stop words."""
    distinct = dict.fromkeys(words(mission))
    return [word for word in distinct if word not in STOP_WORDS and not word.isdigit()]


def class_name(kind: str) -> str:
    """Return the class name of a kind of objects in programs."""
    return "".join(word[:1].upper() + word[1:] for word in kind.split())


@lru_cache(1024)
def compiles(code: str) -> bool:
    """Return whether a text is valid Python."""
    try:
        compile(code, "<code>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def merge_programs(*codes: str, entries: Sequence[str] = ()) -> str:
    """Join programs; if several define a name, the last definition is kept.

    Only definitions, imports and assignments are kept, and only from programs that compile. With
    `entries`, only these names and the names that they need are kept.
    """
    definitions: dict[str, tuple[ast.stmt, str]] = {}
    for code in codes:
        if not compiles(code):
            continue
        for node, text in _statements(code):
            for name in _defined_names(node):
                definitions.pop(name, None)
                definitions[name] = node, text
    if entries:
        needed, open_ = set[str](), list(entries)
        while open_:
            name = open_.pop()
            if name in definitions and name not in needed:
                needed.add(name)
                nodes = ast.walk(definitions[name][0])
                open_ += [node.id for node in nodes if isinstance(node, ast.Name)]
        definitions = {name: found for name, found in definitions.items() if name in needed}
    texts = dict.fromkeys(text for _, text in definitions.values())
    return "\n\n\n".join(texts) + "\n" if texts else ""


@lru_cache(256)
def _statements(code: str) -> list[tuple[ast.stmt, str]]:
    """Return the top-level statements and their text.

    Statements that share a line and those with decorators have normalised text.
    """
    body, lines = ast.parse(code).body, code.splitlines()
    starts = Counter(node.lineno for node in body)
    found = []
    for node in body:
        whole = starts[node.lineno] == 1 and not getattr(node, "decorator_list", None)
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno]) if whole else ast.unparse(node)
        found.append((node, text))
    return found


def _defined_names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [each.asname or each.name.partition(".")[0] for each in names]
        case ast.Assign(targets=targets):
            return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


@lru_cache(1024)
def entry_point(code: str, name: str) -> str:
    """Return the name of the function for an entry point, "" without one.

    If no function has this name, the last function whose name contains its first letters is used.
    """
    if not compiles(code):
        return ""
    functions = [node.name for node, _ in _statements(code) if isinstance(node, ast.FunctionDef)]
    part = name.partition("_")[0][:7]
    similar = [each for each in functions if part in each.lower()]
    return name if name in functions else next(reversed(similar), "")


@dataclass(frozen=True)
class StateView:
    """The states and actions of an environment in the form that programs and prompts use.

    With a schema, a state is a list of entities. Two states are equal if they have the same
    entities, in any order of the table. Without a schema, a state is the observation.
    """

    space: Space
    schema: ObjectSchema | None = None
    actions: tuple[str, ...] = ()
    first: int = 0
    """The number of the first action."""

    @property
    def has_mission(self) -> bool:
        """Whether observations contain a mission."""
        return self.space.kind == "dict" and MISSION in self.space.keys

    def mission(self, observation: Any) -> str:
        """Return the mission of an observation, "" without one."""
        return str(observation.get(MISSION, "")) if isinstance(observation, dict) else ""

    def action(self, number: Any) -> str:
        """Return the name of an action in programs."""
        place = number - self.first if self.actions else -1
        return self.actions[place] if 0 <= place < len(self.actions) else str(number)

    def key(self, observation: Any) -> Any:
        """Return a hashable key that is equal for equal states."""
        if self.schema is None:
            return repr(observation)
        table = np.asarray(observation[OBJECTS])
        return tuple(sorted(map(tuple, table[table[:, 0] > 0].tolist())))

    def same(self, left: Any, right: Any) -> bool:
        """Return whether two observations are the same state."""
        if self.schema is None:
            return close(left, right)
        return bool(self.key(left) == self.key(right))

    def lines(self, observation: Any) -> list[str]:
        """Write a state as text, one line per entity."""
        if self.schema is None:
            return [repr(observation)]
        things = self.schema.decode(observation[OBJECTS])
        held = next((thing for thing in things if thing.properties.get("held")), None)
        return [
            self._write(self.schema, thing, None if place else held)
            for place, thing in enumerate(each for each in things if each is not held)
        ]

    def difference(self, before: Any, after: Any) -> list[str]:
        """Return the removed lines ("- ...") and the added lines ("+ ...") of a state."""
        old, new = Counter(self.lines(before)), Counter(self.lines(after))
        removed, added = (old - new).elements(), (new - old).elements()
        return [f"- {line}" for line in removed] + [f"+ {line}" for line in added]

    def _write(self, schema: ObjectSchema, thing: Thing, held: Thing | None) -> str:
        """Write an entity as a call of its class."""
        values: dict[str, Any] = {n: v for n, v in thing.properties.items() if n != "held"}
        if schema.directions and "direction" in values:
            [column] = [each for each in schema.fields if each.name == "direction"]
            number = column.write(values["direction"])
            values["direction"] = schema.directions[number - 1] if number else "none"
        arguments = [f"{name}={value!r}" for name, value in values.items() if value != "none"]
        if held is not None:
            arguments.append(f"carrying={self._write(schema, held, None)}")
        return f"{class_name(thing.kind)}({', '.join(arguments)})"

    @cached_property
    def api(self) -> str:
        """The section of a prompt that describes states and actions."""
        actions = ", ".join(map(repr, self.actions)) or "the numbers of the environment"
        if self.schema is None:
            return f"A state is an observation. Actions are {actions}."
        fields = self.schema.fields
        names = [each.name for each in fields]
        values = [
            f"`{each.name}` is one of {list(each.values)}"
            for each in fields
            if each.values and each.name != "direction"
        ]
        if self.schema.directions:
            values.append(f"`direction` is one of the vectors {list(self.schema.directions)}")
        if "held" in names:
            values.append("`carrying` is the held entity, which is not in the list, or None")
        attributes = ", ".join(f"`{name}`" for name in names if name != "held")
        kinds = map(class_name, self.schema.classes[1:])
        return (
            f"A state is a list of entities. Every entity has the attributes {attributes}; "
            f"a missing value is None (never the text 'none'); {'; '.join(values)}.\n"
            f"Classes, called as `Kind(x, y, ...)`: {', '.join(kinds)}. The first entity of a "
            "state is the agent. x grows to the right, y downwards. Entities of the same class "
            "with the same attributes are equal.\n"
            "The functions `entities_by_name(state, name)` and `entities_by_position(state, x, y)` "
            "return lists.\n"
            f"Actions are {actions}."
        )


def program_head(view: StateView) -> str:
    """Return the action names, and with a schema the classes, `decode` and `encode`."""
    schema = view.schema
    if schema is None:
        return f"ACTIONS = {view.actions!r}\n"
    names = [each.name for each in schema.fields if each.name not in ("x", "y", "held")]
    template = (files("cwm_learn") / "world.template").read_text(encoding="utf-8")
    kinds = [class_name(kind) for kind in schema.classes[1:]]
    return Template(template).substitute(
        actions=repr(tuple(view.actions)),
        fields=repr([(each.name, each.values) for each in schema.fields]),
        directions=repr(list(schema.directions)),
        parameters="".join(f", {name}=None" for name in names),
        stored="".join(f"\n        self.{name} = {name}" for name in names),
        values="".join(f", self.{name}" for name in names),
        read="".join(f", entity.{name}" for name in names),
        classes="\n\n\n".join(f"class {kind}(Entity):\n    pass" for kind in kinds),
        kinds=", ".join(kinds),
    )


def add_invention(program: str, code: str, view: StateView) -> str:
    """Return a program that calls `invented` of the code after each step."""
    objects = f"[{OBJECTS!r}]"
    read = f"decode({{}}{objects})" if view.schema else "{}"
    written = f"{{**after, {OBJECTS!r}: encode(next_state, len(after{objects}))}}"
    tail = Template(_INVENTION_TAIL).substitute(
        head=indent(program_head(view).strip(), "    "),
        code=indent(code.strip(), "    "),
        first=view.first,
        before=read.format("before"),
        after=read.format("after"),
        written=written if view.schema else "next_state",
    )
    return f"{program.rstrip()}\n{tail}"


_INVENTION_TAIL = '''

def _invention():
$head

$code

    def says(before, action, after, reward, done):
        name = ACTIONS[action - $first] if ACTIONS else action
        next_state, reward, done = invented($before, name, $after, reward, done)
        return $written, float(reward), bool(done)

    return says


_Seen, _invented = Environment, _invention()


class Environment(_Seen):
    """Predicts recorded transitions, and assumed ones beyond them."""

    def set_state(self, observation):
        super().set_state(observation)
        self._before = observation

    def step(self, action):
        after, reward, terminated = super().step(action)
        after, reward, terminated = _invented(self._before, action, after, reward, terminated)
        self.set_state(after)
        return after, reward, terminated
'''


def identifiers(documented: Sequence[str]) -> dict[str, int]:
    """Return the names of components in conditions, each with the index of its component.

    "Cart Position" is `cart_position`, and also `position` if no other component has that word.
    """
    split = [words(each) for each in documented]
    uses = Counter(word for each in split for word in set(each))
    names: dict[str, int] = {}
    for place, each in enumerate(split):
        unique = [word for word in each if uses[word] == 1 and word not in STOP_WORDS]
        for name in ("_".join(each), *unique):
            if name.isidentifier():
                names.setdefault(name, place)
    return names
