"""Missions and goals: a world in two programs, of which one moves and one pays for each mission.

What follows an action is the same whatever the mission is, so a transition program that is right is
kept, and a mission that was never met needs a reward program only: one guessed from those of the
nearest missions, which data then mend. A goal that a user names is either a mission in words, or a
condition on what is observed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from string import Template
from textwrap import indent
from typing import Any

import numpy as np

from cwm_cli.data.objects import MISSION, OBJECTS, ObjectSchema, Thing
from cwm_cli.data.spaces import Space
from cwm_cli.envs.documented import documented_names
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import close

TRANSITION, REWARD, INVENTED = "transition", "reward_func", "invented"
"""The entry points of the two programs, and of what is invented beyond a program."""

NEAREST = 3
"""Missions whose rewards are looked at for a new one."""

STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "for",
        "from",
        "get",
        "go",
        "has",
        "have",
        "in",
        "into",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "that",
        "the",
        "then",
        "this",
        "to",
        "use",
        "was",
        "with",
        "you",
        "your",
        "must",
        "i",
    ]
)
"""Words that say nothing of what a mission is about."""

_WORD = re.compile(r"[^\W_]+")


def words_of(mission: str) -> list[str]:
    """Return the words of a mission, in small letters, without marks."""
    return _WORD.findall(mission.lower())


def telling_words(mission: str) -> list[str]:
    """Return the words that tell what a mission is about, each once: no numbers, no fillers."""
    words = dict.fromkeys(words_of(mission))
    return [word for word in words if word not in STOP_WORDS and not word.isdigit()]


def distance(left: str, right: str) -> float:
    """Return by how many words two missions differ, as a share of the longer one."""
    a, b = words_of(left), words_of(right)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1] / max(len(a), len(b), 1)


def nearest(mission: str, known: Iterable[str], most: int = NEAREST) -> list[str]:
    """Return the known missions that are nearest in words, the nearest first."""
    return sorted(known, key=lambda other: (distance(mission, other), other))[:most]


def class_name(kind: str) -> str:
    """Return how programs call a class of things."""
    return "".join(word[:1].upper() + word[1:] for word in kind.split())


@lru_cache(1024)
def compiles(code: str) -> bool:
    """Whether a text is Python."""
    try:
        compile(code, "<code>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def merged(*codes: str, entries: Sequence[str] = ()) -> str:
    """Return code after code, of each name only the last definition.

    With `entries` only what these need is kept. Parts that do not compile are left out, and so is
    what would run by itself: only definitions, imports and assignments stay.
    """
    lasting: dict[str, str] = {}
    for code in codes:
        if not compiles(code):
            continue
        for node, own in _statements(code):
            for name in _defined(node):
                lasting.pop(name, None)
                lasting[name] = own
    if entries:
        needed, open_ = set[str](), list(entries)
        while open_:
            name = open_.pop()
            if name in lasting and name not in needed:
                needed.add(name)
                open_ += [
                    n.id for n in ast.walk(ast.parse(lasting[name])) if isinstance(n, ast.Name)
                ]
        lasting = {name: text for name, text in lasting.items() if name in needed}
    return "\n\n\n".join(dict.fromkeys(lasting.values())) + "\n" if lasting else ""


@lru_cache(256)
def _statements(code: str) -> list[tuple[ast.stmt, str]]:
    """Return what stands at the top of code, each as it was written where it has its own lines."""
    body, lines = ast.parse(code).body, code.splitlines()
    starts = Counter(node.lineno for node in body)
    found = []
    for node in body:
        whole = starts[node.lineno] == 1 and not getattr(node, "decorator_list", None)
        own = "\n".join(lines[node.lineno - 1 : node.end_lineno]) if whole else ast.unparse(node)
        found.append((node, own))
    return found


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top gives a meaning to."""
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
def entry(code: str, name: str) -> str:
    """Return the name of the function that stands for an entry point, "" where there is none.

    That is the one of this name, or the last whose name contains its first letters.
    """
    if not compiles(code):
        return ""
    functions = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    part = name.partition("_")[0][:7]
    like = [each for each in functions if part in each.lower()]
    return name if name in functions else next(reversed(like), "")


@dataclass(frozen=True)
class StateView:
    """What programs and prompts see of an environment: its things, or its observation as it is.

    With a schema a state is a list of entities, and two are equal when the same things are there,
    whatever rows they have in the table. Otherwise it is the observation.
    """

    space: Space
    schema: ObjectSchema | None = None
    actions: tuple[str, ...] = ()
    first: int = 0
    """The number of the first action."""

    @property
    def has_mission(self) -> bool:
        """Whether what is observed says what is asked for."""
        return self.space.kind == "dict" and MISSION in self.space.keys

    def mission(self, observation: Any) -> str:
        """Return what is asked for, "" where nothing is."""
        return str(observation.get(MISSION, "")) if isinstance(observation, dict) else ""

    def action(self, number: Any) -> str:
        """Return how programs call an action."""
        place = number - self.first if self.actions else -1
        return self.actions[place] if 0 <= place < len(self.actions) else str(number)

    def key(self, observation: Any) -> Any:
        """Return something hashable that is equal for equal states of things."""
        if self.schema is None:
            return repr(observation)
        table = np.asarray(observation[OBJECTS])
        return tuple(sorted(map(tuple, table[table[:, 0] > 0].tolist())))

    def same(self, left: Any, right: Any) -> bool:
        """Whether two observations are the same state."""
        if self.schema is None:
            return close(left, right)
        return bool(self.key(left) == self.key(right))

    def lines(self, observation: Any) -> list[str]:
        """Return a state in words, a line for each thing."""
        if self.schema is None:
            return [repr(observation)]
        things = self.schema.decode(observation[OBJECTS])
        held = next((thing for thing in things if thing.properties.get("held")), None)
        return [
            self._shown(thing, held if not place else None)
            for place, thing in enumerate(each for each in things if each is not held)
        ]

    def difference(self, before: Any, after: Any) -> list[str]:
        """Return what two states differ in: lines that are gone, and lines that are new."""
        old, new = Counter(self.lines(before)), Counter(self.lines(after))
        gone, came = (old - new).elements(), (new - old).elements()
        return [f"- {line}" for line in gone] + [f"+ {line}" for line in came]

    def _shown(self, thing: Thing, held: Thing | None) -> str:
        """Write a thing as programs see it."""
        said: dict[str, Any] = {n: v for n, v in thing.properties.items() if n != "held"}
        if self.schema and self.schema.directions and "direction" in said:
            said["direction"] = self._vector(self.schema, said["direction"])
        shown = [f"{name}={value!r}" for name, value in said.items() if value != "none"]
        if held is not None:
            shown.append(f"carrying={self._shown(held, None)}")
        return f"{class_name(thing.kind)}({', '.join(shown)})"

    def _vector(self, schema: ObjectSchema, value: int | str) -> Any:
        """Return the vector that a direction stands for."""
        [column] = [each for each in schema.fields if each.name == "direction"]
        number = column.write(value)
        return schema.directions[number - 1] if number else "none"

    @cached_property
    def api(self) -> str:
        """What programs can use, for a language model."""
        called = ", ".join(map(repr, self.actions)) or "the numbers of the environment"
        if self.schema is None:
            return f"A state is what is observed. Actions are {called}."
        fields = self.schema.fields
        names = [each.name for each in fields]
        said = [f"`{f.name}` is one of {list(f.values)}" for f in fields if f.values]
        said = [each for each in said if "`direction`" not in each]
        if self.schema.directions:
            said.append(f"`direction` is one of the vectors {list(self.schema.directions)}")
        if "held" in names:
            said.append("`carrying` is the entity that it holds, which is in no list then, or None")
        shown = ", ".join(f"`{name}`" for name in names if name != "held")
        kinds = map(class_name, self.schema.classes[1:])
        return (
            "A state is a list of entities. Every entity has the attributes "
            f"{shown}; what it lacks is None (never the text 'none'); {'; '.join(said)}.\n"
            f"Classes, made as `Kind(x, y, ...)`: {', '.join(kinds)}. The first entity of a state "
            "is the one that acts. x grows to the right, y downwards. An entity equals another of "
            "the same class and attributes.\n"
            "There are `entities_by_name(state, name)` and `entities_by_position(state, x, y)`, "
            "which return lists.\n"
            f"Actions are {called}."
        )


_TAIL = '''

class Environment:
    """Predicts the next state, and the reward of the mission."""

    def set_state(self, observation):
        self.observation, self.state = observation, $decode

    def step(self, action):
        name = ACTIONS[action - $first] if ACTIONS else action
        before, changed = $copies, $copies
        answer = dynamics(changed, name)
        after = changed if answer is None else answer
        observation = $encode
        pays = REWARDS.get($mission)
        reward, done = pays(before, name, $after) if pays else (0.0, False)
        self.observation, self.state = observation, after
        return observation, float(reward), bool(done)
'''
_JUDGE_TAIL = '''

class Environment:
    """Returns the reward of a recorded step from the states before and after it."""

    def set_state(self, pair):
        self.observation, self.pair = pair[0], pair

    def step(self, action):
        name = ACTIONS[action - $first] if ACTIONS else action
        before, after = ($decode for observation in self.pair)
        reward, done = REWARDS[$mission](before, name, after)
        return self.pair, float(reward), bool(done)
'''


@dataclass(frozen=True)
class WorldProgram:
    """A transition program, and for each mission the program that says what it pays."""

    transition: str = ""
    rewards: Mapping[str, str] = field(default_factory=dict)

    def with_reward(self, mission: str, code: str) -> WorldProgram:
        """Return it with another reward program of a mission."""
        return WorldProgram(self.transition, {**self.rewards, mission: code})

    def serves(self, mission: str) -> bool:
        """Whether both programs have their entry points."""
        pays = entry(self.rewards.get(mission, ""), REWARD)
        return bool(pays and entry(self.transition, TRANSITION))

    def text(self, view: StateView, note: str = "") -> str:
        """Return the class `Environment` that both make, to be planned in."""
        return self._text(view, _TAIL, note)

    def judge(self, view: StateView) -> str:
        """Return the `Environment` that says what recorded steps pay."""
        return self._text(view, _JUDGE_TAIL, "")

    def _text(self, view: StateView, tail: str, note: str) -> str:
        head = _head(view.schema, view.actions) if view.schema else f"ACTIONS = {view.actions!r}\n"
        parts = [_closed("dynamics", self.transition, TRANSITION, "predicts the next state")]
        missions = list(self.rewards.items())
        for number, (mission, code) in enumerate(missions):
            parts.append(
                _closed(f"pays_{number}", code, REWARD, f"the reward of the mission: {mission}")
            )
        pairs = ", ".join(f"{mission!r}: pays_{n}" for n, (mission, _) in enumerate(missions))
        parts.append(f"REWARDS = {{{pairs}}}\n")
        things, slots = f"observation[{OBJECTS!r}]", f"len(self.observation[{OBJECTS!r}])"
        encoded = f"{{**self.observation, {OBJECTS!r}: encode(after, {slots})}}"
        tail = Template(tail).substitute(
            first=view.first,
            decode=f"decode({things})" if view.schema else "observation",
            copies="clone(self.state)" if view.schema else "self.state",
            after="clone(after)" if view.schema else "after",
            encode=encoded if view.schema else "after",
            mission=f"self.observation[{MISSION!r}]" if view.has_mission else "''",
        )
        said = f'"""{note}"""\n\n' if note else ""
        return said + "\n\n".join([head, *parts]) + tail


def _head(schema: ObjectSchema, actions: Sequence[str]) -> str:
    """Return what reads and writes the tables of a schema, and the classes of its things."""
    names = [each.name for each in schema.fields if each.name not in ("x", "y", "held")]
    template = (files("cwm_learn") / "world.template").read_text(encoding="utf-8")
    kinds = [class_name(kind) for kind in schema.classes[1:]]
    classes = (f"class {kind}(Entity):\n    pass" for kind in kinds)
    return Template(template).substitute(
        actions=repr(tuple(actions)),
        fields=repr([(each.name, each.values) for each in schema.fields]),
        directions=repr(list(schema.directions)),
        parameters="".join(f", {name}=None" for name in names),
        stored="".join(f"\n        self.{name} = {name}" for name in names),
        values="".join(f", self.{name}" for name in names),
        read="".join(f", entity.{name}" for name in names),
        classes="\n\n\n".join(classes),
        kinds=", ".join(kinds),
    )


@lru_cache(1024)
def _closed(name: str, code: str, wanted: str, purpose: str) -> str:
    """Put code into a function of its own, so that its names are its own, and call that once."""
    function = entry(code, wanted)
    if not function:
        return f"def {name}(*_):  # {_line(purpose)}\n    raise NameError('there is no {wanted}')\n"
    plain = code if '"""' not in code and "'''" not in code else ast.unparse(ast.parse(code))
    body = indent(plain.strip(), "    ")
    head = f"def _{name}():  # {_line(purpose)}"
    return f"{head}\n{body}\n    return {function}\n\n\n{name} = _{name}()\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def layered(program: str, code: str, view: StateView) -> str:
    """Return a program with `invented(state, action, next_state, reward, done)` after each step."""
    head = _head(view.schema, view.actions) if view.schema else f"ACTIONS = {view.actions!r}\n"
    things = f"[{OBJECTS!r}]"
    read = f"decode({{}}{things})" if view.schema else "{}"
    written = f"{{**after, {OBJECTS!r}: encode(next_state, len(after{things}))}}"
    tail = Template(_LAYER_TAIL).substitute(
        head=indent(head.strip(), "    "),
        code=indent(code.strip(), "    "),
        first=view.first,
        before=read.format("before"),
        after=read.format("after"),
        written=written if view.schema else "next_state",
    )
    return f"{program.rstrip()}\n{tail}"


_LAYER_TAIL = '''

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


def for_goal(program: str, goal: str, space: Space, description: str = "") -> str:
    """Return a program of the same world in which only a goal pays, and reaching it is the end.

    A goal is a condition on what is observed: `observation[0] >= 0.6`, or by the names that the
    `description` has for components, `position >= 0.6`. `CwmError` for what is no such condition.
    """
    condition = _condition(goal, space, description)
    return f"{program.rstrip()}\n" + Template(_GOAL_TAIL).substitute(
        goal=_line(goal).replace("\\", "").replace('"""', ""), condition=condition
    )


_GOAL_TAIL = '''

_World = Environment


class Environment(_World):
    """The same environment with another reward: 1 for reaching $goal."""

    def step(self, action):
        observation, _, terminated, *more = super().step(action)
        reached = bool($condition)
        return (observation, float(reached), bool(terminated or reached), *more)
'''


def is_condition(goal: str, space: Space, description: str = "") -> bool:
    """Whether a goal is a condition on what is observed, and not a mission in words."""
    try:
        _condition(goal, space, description)
    except CwmError:
        return False
    return True


def condition_of(goal: str, space: Space, description: str = "") -> Callable[[Any], bool]:
    """Return what tells whether an observation meets a goal; it compares numbers, and no more."""
    code = compile(_condition(goal, space, description), "<goal>", "eval")
    known = {"__builtins__": {}, "abs": abs, "min": min, "max": max}
    return lambda observation: bool(eval(code, known, {"observation": observation}))  # noqa: S307


def _condition(goal: str, space: Space, description: str) -> str:
    """Return the goal as Python over `observation`; names become components."""
    names = component_identifiers(space, description)
    known = f"components are called {', '.join(names)}" if names else "write observation[0] >= 1"
    try:
        tree = ast.parse(goal.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CwmError(f"the goal {goal!r} is not a Python condition: {known}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _CONDITION_PARTS):
            raise CwmError(f"the goal {goal!r} must be a comparison of numbers: {known}")
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") not in ("abs", "min", "max"):
            raise CwmError(f"the goal {goal!r} may only call abs, min and max: {known}")
        if isinstance(node, ast.Name) and node.id not in (*names, *_GOAL_NAMES):
            raise CwmError(f"the goal {goal!r} has the unknown name {node.id!r}: {known}")
    if not any(isinstance(n, ast.Name) and n.id not in _GOAL_NAMES[1:] for n in ast.walk(tree)):
        raise CwmError(f"the goal {goal!r} uses no observation: {known}")
    return ast.unparse(_Components(names).visit(tree))


_GOAL_NAMES = ("observation", "abs", "min", "max")
_CONDITION_PARTS = (
    ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Name,
    ast.Constant, ast.Subscript, ast.Tuple, ast.boolop, ast.unaryop, ast.operator, ast.cmpop,
    ast.expr_context,
)  # fmt: skip


class _Components(ast.NodeTransformer):
    """Puts components where their names are."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:  # as ast calls it
        """Replace a name."""
        if node.id not in self._names:
            return node
        return ast.parse(f"observation[{self._names[node.id]}]", mode="eval").body


def component_identifiers(space: Space, description: str) -> dict[str, int]:
    """Name the components of an observation as a goal may: as documented, or by a word of that.

    "Cart Position" is `cart_position`, and `position` too where no other component has the word.
    """
    return identifiers(documented_names(description, space))


def identifiers(documented: Sequence[str]) -> dict[str, int]:
    """Name components as conditions may, given what they are called where they are documented."""
    said = [words_of(each) for each in documented]
    uses = Counter(word for words in said for word in set(words))
    names: dict[str, int] = {}
    for place, words in enumerate(said):
        telling = [word for word in words if uses[word] == 1 and word not in STOP_WORDS]
        for name in ("_".join(words), *telling):
            if name.isidentifier():
                names.setdefault(name, place)
    return names
