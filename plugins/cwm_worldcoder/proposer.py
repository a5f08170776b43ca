"""Answers the agent's questions offline: rules over classes of things, found from what it shows.

It sees what a language model would see in the prompt and nothing else. Each program that it writes
carries the cases that it was written from, so that mending adds one and never forgets. Asked
what is missing, it wishes: effects that its templates allow and that no case contradicts, and a
reward for what the words of the mission name.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import log2
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.objects import OBJECTS
from cwm_cli.search.contracts import Backend, Completion, Request
from cwm_learn.missions import StateView, class_name, words
from cwm_worldcoder import rules
from cwm_worldcoder.asking import ProgramQuestion, Shown

LIBRARY = "\n\n".join(
    inspect.getsource(getattr(rules, name))
    for name in ("points", "found", "situation", "outcome", "joined", "fits", "apply")
).replace(": Any", "").replace(" -> Any", "")  # fmt: skip
"""What is written into each program."""

HINTS = {
    "take": ("pick", "take", "get", "grab"),
    "put": ("drop", "put"),
    "set": ("toggle", "open", "use", "unlock", "switch"),
    "go": ("activate", "teleport", "enter", "use"),
}
"""Words of actions that speak for an effect."""


class Case(NamedTuple):
    """A situation, in names and values, in which an action led to something."""

    action: str
    said: dict[str, Any]
    led: Any


class Wish(NamedTuple):
    """What may be so: where a situation fits the pattern, the action leads to that."""

    action: str
    pattern: dict[str, Any]
    leads: Any


class ProposedEntity:
    """A thing as the rules see it, and as programs will."""

    def __init__(self, name: str, slot: int, attributes: Mapping[str, Any]) -> None:
        self.name, self.slot, self.carrying = name, slot, None
        self.__dict__.update(attributes)


class RuleProposer(Backend):
    """Writes transition and reward programs as rules over classes of things, without a model."""

    model: str = ""

    def complete(self, request: Request) -> Completion:
        """Answer a question of the agent; "" where it is about no things."""
        question = request.problem
        if not isinstance(question, ProgramQuestion) or question.view.schema is None:
            return Completion("")
        write = {
            "transition": self._transition,
            "mend transition": self._transition,
            "reward": self._reward,
            "mend reward": self._reward,
            "guess reward": self._guess,
        }
        if question.asked == "reach":
            return Completion(
                self._reach(question, np.random.default_rng([request.seed, request.step]))
            )
        return Completion(_fenced(write[question.asked](question)))

    def _transition(self, question: ProgramQuestion) -> str:
        cases, wishes = _carried(question.transition)
        cases += [
            Case(question.view.action(row.action), said, led)
            for row in _rows(question)
            for said, led in [moved(question.view, row)]
        ]
        return transition_code(question.view, _distinct(cases), wishes)

    def _reward(self, question: ProgramQuestion) -> str:
        cases, wishes = _carried(question.reward)
        view = question.view
        for row in _rows(question):
            before, after = entities(view, row.observation), entities(view, row.next_observation)
            said = rules.outcome(before, view.action(row.action), after)
            cases.append(Case("", said, [row.reward, row.terminated]))
        return reward_code(_distinct(cases), wishes)

    def _guess(self, question: ProgramQuestion) -> str:
        """Put the words of the new mission where those of the nearest one stand."""
        mission, code = next(iter((question.others or {}).items()))
        cases, wishes = _carried(code)
        old, new = words(mission), words(question.mission)
        swap = {a: b for a, b in zip(old, new, strict=False) if a != b}
        swap |= {class_name(a): class_name(b) for a, b in swap.items()}

        def renamed(said: Mapping[str, Any]) -> dict[str, Any]:
            return {n: swap.get(v, v) if isinstance(v, str) else v for n, v in said.items()}

        paid = [Case("", renamed(c.said), c.led) for c in cases if c.led[0] > 0]
        others = [c for c in cases if c.led[0] <= 0 and all(c.said != p.said for p in paid)]
        return reward_code(_distinct(others + paid), [w._replace(pattern=renamed(w.pattern))
                                                      for w in wishes])  # fmt: skip

    def _reach(self, question: ProgramQuestion, rng: np.random.Generator) -> str:
        """Wish for mechanics and for a reward, such that no case speaks against them."""
        view, start = question.view, entities(question.view, question.start)
        moves, _ = _carried(question.transition)
        pays, _ = _carried(question.reward)
        effects = [w for w in wished_effects(view, moves, start) if not _refuted(w, moves)]
        ends = [w for w in wished_ends(view, question.mission) if not _refuted(w, pays)]
        end = [ends[min(int(rng.geometric(0.5)), len(ends)) - 1]] if ends else []
        return (
            f"{_fenced(transition_code(view, moves, effects))}\n\n{_fenced(reward_code(pays, end))}"
        )


def entities(view: StateView, observation: Any) -> list[Any]:
    """Return the things of an observation, with what the first one carries in its hands."""
    schema = view.schema
    held: ProposedEntity | None = None
    state: list[Any] = []
    if schema is None:
        return state
    for slot, row in enumerate(observation[OBJECTS]):
        if not row[0]:
            continue
        [thing] = schema.decode(row[None])
        said: dict[str, Any] = dict(thing.properties)
        said = {name: None if value == "none" else value for name, value in said.items()}
        if "direction" in said and schema.directions:
            number = int(row[schema.column("direction")])
            said["direction"] = schema.directions[number - 1] if number else None
        made = ProposedEntity(class_name(thing.kind), slot, said)
        if said.get("held"):
            held = made
        else:
            state.append(made)
    if state:
        state[0].carrying = held
    return state


def moved(view: StateView, row: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the situation of a row, and what the action changed, as effects."""
    action = view.action(row.action)
    before, after = entities(view, row.observation), entities(view, row.next_observation)
    said, things = rules.situation(before, action), rules.found(before, action)
    dx, dy = rules.points(before, action)
    later: dict[int, Any] = {thing.slot: thing for thing in after}
    actor = after[0]
    effects: list[Any] = []
    for where, thing in things.items():
        if thing is None:
            continue
        now = later.get(thing.slot)
        if where == "held":
            if actor.carrying is None:
                effects.append(["put" if now else "remove", "held"])
        elif now is None:
            taken = actor.carrying is not None and actor.carrying.slot == thing.slot
            effects.append(["take" if taken else "remove", where])
        else:
            effects += _changes(view, where, thing, now, (dx, dy))
    here = things["here"]
    mate = [t for t in before if here and t.name == here.name and t is not here]
    went = (actor.x - before[0].x, actor.y - before[0].y)
    if went != (0, 0) and not any(e[:2] == ["move", "actor"] for e in effects) and mate:
        effects.append(["go", "here"])
    order = {"remove": 0, "put": 1, "take": 2, "set": 3, "move": 4, "turn": 5, "go": 6}
    return said, sorted(effects, key=lambda e: (order[e[0]], e[1] == "actor"))


def _changes(
    view: StateView, where: str, thing: Any, now: Any, way: tuple[int, int]
) -> Iterator[list[Any]]:
    """Yield what became of one thing."""
    went = (now.x - thing.x, now.y - thing.y)
    if went != (0, 0) and way != (0, 0):
        for far in (1, 2, -1):
            if went == (far * way[0], far * way[1]):
                yield ["move", where, far]
    directions = view.schema.directions if view.schema else ()
    for name in (each.name for each in view.schema.fields) if view.schema else ():
        old, new = getattr(thing, name), getattr(now, name)
        if name in ("x", "y", "held") or old == new:
            continue
        if name == "direction" and old in directions and new in directions:
            turn = (directions.index(new) - directions.index(old)) % len(directions)
            yield ["turn", where, turn]
        elif name != "direction":
            yield ["set", where, name, new]


def wished_effects(view: StateView, cases: Sequence[Case], start: Sequence[Any]) -> list[Wish]:
    """Return what actions may do that was never seen: the general before the particular."""
    schema = view.schema
    if schema is None:
        return []
    kinds = list(dict.fromkeys(thing.name for thing in start[1:]))
    values = next((f.values for f in schema.fields if f.name == "state"), ())
    values = tuple(v for v in values if v not in ("none", "hidden"))
    walks = ["move", "actor", 1]
    goes = [a for a in view.actions if any(c.action == a and walks in c.led for c in cases)]
    goes = goes or [a for a in view.actions if {"forward", *rules.WAYS} & set(a.split())]
    wishes: list[Wish] = []
    for action in view.actions:
        hinted = [k for k, words in HINTS.items() if set(words) & set(action.split())]
        effective = any(c.led for c in cases if c.action == action)
        kinds_of = hinted or ([] if effective or action in goes else list(HINTS))
        for kind in kinds:
            if action in goes:
                step = [walks]
                for value in (None, *values):
                    wishes.append(Wish(action, {"front": kind, "front state": value}, step))
                push = [["move", "front", 1], *step]
                wishes.append(Wish(action, {"front": kind, "beyond": None}, push))
            if "take" in kinds_of:
                wishes.append(Wish(action, {"front": kind, "held": None}, [["take", "front"]]))
            if "set" in kinds_of:
                for value in values:
                    led = [["set", "front", "state", value]]
                    wishes.append(Wish(action, {"front": kind}, led))
                    for held in kinds:
                        with_it = {"front": kind, "held": held}
                        wishes.append(Wish(action, with_it, led))
                        same = {**with_it, "front color as held": True}
                        wishes.append(Wish(action, same, led))
            if "go" in kinds_of and sum(t.name == kind for t in start) > 1:
                wishes.append(Wish(action, {"here": kind}, [["go", "here"]]))
        if "put" in kinds_of:
            wishes.append(Wish(action, {"front": None}, [["put", "held"]]))
    return [w for w in wishes if w.pattern.get("front") != "Wall"]


def wished_ends(view: StateView, mission: str) -> list[Wish]:
    """Return what may be meant by a mission: to be at, to hold or to open what its words name."""
    if view.schema is None:
        return []
    said = words(mission)
    kinds = [k for k in view.schema.classes[1:] if set(words(k)) <= set(said)]
    colors = next((f.values for f in view.schema.fields if f.name == "color"), ())
    values = next((f.values for f in view.schema.fields if f.name == "state"), ())
    named = []
    for kind in kinds:
        place = said.index(words(kind)[0])
        color = next((c for c in colors if c in said[max(0, place - 1) : place]), None)
        named.append((place, class_name(kind), color))
    wishes = []
    for _, kind, color in sorted(named, reverse=True):
        for where in ("here", "held"):
            pattern = {where: kind} | ({f"{where} color": color} if color else {})
            wishes.append(Wish("", pattern, [1.0, True]))
        for value in sorted(values, key=lambda v: v not in said):
            if value not in ("none", "hidden", "locked", "closed"):
                pattern = {"front": kind, "front state": value}
                pattern |= {"front color": color} if color else {}
                wishes.append(Wish("", pattern, [1.0, True]))
    wishes.append(Wish("", {"all met": True}, [1.0, True]))
    first = {"pick": "held", "fetch": "held", "open": "front state", "go": "here", "get": "here"}
    wanted = next((first[word] for word in said if word in first), "")
    return sorted(wishes, key=lambda w: wanted not in w.pattern)


def transition_code(view: StateView, cases: Sequence[Case], wishes: Sequence[Wish]) -> str:
    """Write a transition program that gives every case."""
    directions = view.schema.directions if view.schema else ()
    wishes = [wish for wish in wishes if not _refuted(wish, cases)]
    return (
        f"WAYS = {rules.WAYS!r}\nDIRECTIONS = {tuple(directions)!r}\n"
        f"{_kept('MOVED', cases)}{_kept('MAY_MOVE', wishes)}\n"
        f"{LIBRARY}\n\n{_rules('moves', 'MAY_MOVE', cases, '[]')}\n\n"
        "def transition(state, action):\n"
        "    effects = moves(action, situation(state, action))\n"
        "    return apply(state, action, effects, DIRECTIONS)\n"
    )


def reward_code(cases: Sequence[Case], wishes: Sequence[Wish]) -> str:
    """Write a reward program that gives every case."""
    wishes = [wish for wish in wishes if not _refuted(wish, cases)]
    return (
        f"WAYS = {rules.WAYS!r}\n"
        f"{_kept('PAID', cases)}{_kept('MAY_PAY', wishes)}\n"
        f"{LIBRARY}\n\n{_rules('pays', 'MAY_PAY', cases, '[0.0, False]')}\n\n"
        "def reward_func(state, action, next_state):\n"
        "    reward, done = pays('', outcome(state, action, next_state))\n"
        "    return reward, done\n"
    )


def _kept(name: str, some: Sequence[Case | Wish]) -> str:
    """Write cases or wishes, a line each."""
    return f"{name} = [\n" + "".join(f"    {tuple(each)!r},\n" for each in some) + "]\n"


def _rules(name: str, wishes: str, cases: Sequence[Case], nothing: str) -> str:
    """Write cases as rules, the question that tells most first; wishes go before them."""
    lines = [
        f"def {name}(action, said):",
        f"    for wished, pattern, leads in {wishes}:",
        "        if wished == action and fits(said, pattern):",
        "            return leads",
    ]
    for action in dict.fromkeys(case.action for case in cases):
        lines.append(f"    if action == {action!r}:")
        own = [case for case in cases if case.action == action]
        lines += _branches(own, "        ")
    return "\n".join([*lines, f"    return {nothing}"])


def _branches(cases: Sequence[Case], indent: str) -> list[str]:
    """Write cases as questions, the one that tells most first, until each has one answer."""
    led = Counter(repr(case.led) for case in cases)
    usual = max(led, key=lambda each: led[each])
    tests: dict[tuple[str, str], Any] = {
        (name, repr(value)): value for case in cases for name, value in case.said.items()
    }
    order = {name: place for place, name in enumerate(cases[0].said)}
    best = None
    if len(led) > 1:
        gains = [
            (_gain(cases, name, value), -order[name], name, value)
            for (name, _), value in tests.items()
        ]
        best = max(gains, key=lambda each: each[:2], default=None)
    if best is None or best[0] <= 0:
        return [f"{indent}return {usual}"]
    _, _, name, value = best
    yes = [case for case in cases if case.said[name] == value]
    no = [case for case in cases if case.said[name] != value]
    return [
        f"{indent}if said[{name!r}] == {value!r}:",
        *_branches(yes, indent + "    "),
        *_branches(no, indent),
    ]


def _gain(cases: Sequence[Case], name: str, value: Any) -> float:
    """Return how many bits a test tells of what cases lead to."""
    parts = [[c for c in cases if (c.said[name] == value) is answer] for answer in (True, False)]
    if not all(parts):
        return 0.0
    rest = sum(len(part) / len(cases) * _bits(part) for part in parts)
    gained = _bits(cases) - rest
    return round(gained, 9)


def _bits(cases: Sequence[Case]) -> float:
    counts = Counter(repr(case.led) for case in cases).values()
    return -sum(n / len(cases) * log2(n / len(cases)) for n in counts)


def _carried(code: str) -> tuple[list[Case], list[Wish]]:
    """Read the cases and wishes that a program carries; none where another wrote it."""
    found: dict[str, Any] = {}
    for node in ast.parse(code).body if code else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() as value):
                found[name] = ast.literal_eval(value)
    cases, wishes = (
        found.get("MOVED", found.get("PAID")),
        found.get("MAY_MOVE", found.get("MAY_PAY")),
    )
    return [Case(*each) for each in cases or ()], [Wish(*each) for each in wishes or ()]


def _rows(question: ProgramQuestion) -> list[Any]:
    shown: tuple[Shown, ...] = question.right
    wrong = (question.wrong,) if question.wrong else ()
    return [each.row for each in chain(shown, wrong)]


def _distinct(cases: Sequence[Case]) -> list[Case]:
    return list({repr(case): case for case in cases}.values())


def _refuted(wish: Wish, cases: Sequence[Case]) -> bool:
    """Whether a case had the pattern of a wish, and led elsewhere."""
    return any(
        case.action == wish.action
        and rules.fits(case.said, wish.pattern)
        and case.led != wish.leads
        for case in cases
    )


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"
