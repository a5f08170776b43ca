"""The model of an environment whose state has a few factors, and the program of the model."""

import ast
import textwrap
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.dynamics import Effect, FactorChange, FactorDynamics
from cwm_induction.discrete.expressions import (
    WIDTH,
    CaseWriter,
    Constants,
    action_lines,
    assignments,
    bracketed,
    chain,
    listed,
    mentions,
    method,
    observation_expression,
    part_of_action,
    state_lines,
)
from cwm_induction.discrete.features import FLAG, RuleColumn
from cwm_induction.discrete.outcomes import Outcomes, RewardFormula
from cwm_induction.discrete.transitions import IntegerEncoding, Transitions, join

MOST_LISTED = 8
"""The docstring of a program lists the count of each reward for at most this many rewards."""

PLACES = {0: (), 1: ("position",), 2: ("row", "column"), 3: ("layer", "row", "column")}
"""Names of the factors that actions move up and down, by number of such factors."""

Foreseen = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Next observations, rewards and ends."""

Predict = Callable[[np.ndarray, np.ndarray], Foreseen]
"""A function that predicts outcomes from observations and actions."""


class DiscreteModel(NamedTuple):
    """The fitted model of an environment.

    The reward rule returns an index into `rewards`: the reward, or with a `formula` the bonus to
    add to its sum.
    """

    encoding: IntegerEncoding
    dynamics: FactorDynamics
    outcomes: Outcomes
    rewards: tuple[float, ...]
    formula: RewardFormula | None = None

    def predict(self, before: np.ndarray, action: np.ndarray) -> Foreseen:
        """Predict next observations, rewards and ends by rules."""
        factored = self.dynamics.predict(before, action)
        factored = self.outcomes.predict(factored, self.dynamics.sizes)
        rewards = np.array(self.rewards)[factored.reward]
        if self.formula:
            rewards = rewards + self.formula.values(action, factored.old, factored.new)
        return join(factored.new, self.dynamics.layout), rewards, factored.done


def write_program(
    model: DiscreteModel,
    seen: Transitions,
    *more: str,
    methods: "Callable[[RuleWriter], list[str]] | None" = None,
) -> str:
    """Write the program of a model.

    The docstring of the program summarises the data and ends with the sentences `more`.
    `methods` writes the methods after `observation`; by default, this is `step` alone.
    """
    writer = RuleWriter(model)
    encoding, layout, names = model.encoding, model.dynamics.layout, writer.names
    step = methods(writer) if methods else writer.step()
    initial, setters = state_lines(encoding, layout, names)
    answer = observation_expression(encoding, layout, names)
    constants = writer.constants.lines
    body = [
        f'"""{_title(names, model.dynamics.sizes.radices)}',
        "",
        *_summary(seen, model, names, more, certain=methods is None),
        '"""',
        "",
        *constants,
        *([""] if constants else []),
        *method("__init__(self)", initial),
        *method("set_state(self, observation)", setters),
        *method("observation(self)", returned(answer)),
        *step,
    ]
    indented = [f"    {line}" if line else "" for line in body]
    numpy = ["import numpy as np", "", ""] if "np." in answer else []
    return "\n".join([*numpy, "class Environment:", *indented, ""])


def returned(answer: str) -> list[str]:
    """Write a return statement; long expressions are wrapped in their own or extra brackets."""
    if isinstance(ast.parse(answer, mode="eval").body, ast.Call | ast.List | ast.Tuple):
        return textwrap.wrap(
            f"return {answer}", WIDTH, subsequent_indent="    ", break_long_words=False
        )
    return bracketed("return ", answer)


def factor_names(dynamics: FactorDynamics) -> list[str]:
    """Name each factor by its role, such as a place that actions move, an item or a flag."""
    radices, moves = dynamics.sizes.radices, dynamics.moves
    changed = {change.factor for change in dynamics.changes}
    places = [index for index, move in enumerate(moves) if move.steps]
    if len(radices) == 1 and not places:
        return ["state"]
    words = PLACES.get(len(places), tuple(f"place_{n}" for n in range(len(places))))
    names = dict(zip(places, words, strict=True))
    for index, (radix, move) in enumerate(zip(radices, moves, strict=True)):
        if index not in names and not move.moves and index not in changed:
            names[index] = "setting"
        elif index not in names:
            names[index] = "flag" if radix == FLAG else "value" if move.moves else "item"
    if landmarks := dynamics.sizes.landmarks:
        names |= dict.fromkeys(landmarks.goals(radices), "target")
    ordered = [names[index] for index in range(len(radices))]
    return [f"{name}_{i}" if ordered.count(name) > 1 else name for i, name in enumerate(ordered)]


class RuleWriter:
    """A writer of the methods of one program and their constants.

    `changing` lists the factors with a next value after a step, and `moving` the factors with a
    next value after the nominal moves. `known` contains the factors with a next value at the
    current line.
    """

    def __init__(self, model: DiscreteModel) -> None:
        self.model, self.dynamics = model, model.dynamics
        self.names = factor_names(model.dynamics)
        self.constants = Constants()
        changed = {change.factor for change in self.dynamics.changes}
        moves = self.dynamics.moves
        self.changing = [i for i, move in enumerate(moves) if move.moves or i in changed]
        self.moving = [i for i, move in enumerate(moves) if move.moves]
        self.known = set(self.moving)
        self.rewards = tuple(repr(reward) for reward in model.rewards)
        self.writer = CaseWriter(self.spell, self.rewards)

    def step(self) -> list[str]:
        """Write `step`: moves, exceptions, outcomes, and the next state."""
        moving = [self.names[i] for i in self.moving]
        moves, rules = self._moves(moving)
        outcomes = self._outcomes()
        text = "\n".join(rules + outcomes)
        aims = [name for name in moving if mentions(text, f"aimed_{name}")]
        same = self._unchanged() if "unchanged" in text else []
        whole = "\n".join([*moves, text, *same])
        used = [name for name in self.names if mentions(whole, name)]
        body = [
            *action_lines(self.model.encoding),
            *assignments("", "self.", used),
            *moves,
            *assignments("aimed_", "new_", aims),
            *rules,
            *same,
            *outcomes,
            *assignments("self.", "new_", [self.names[i] for i in self.changing]),
            "return self.observation(), reward, terminated",
        ]
        return method("step(self, action)", body)[:-1]

    def _moves(self, moving: list[str]) -> tuple[list[str], list[str]]:
        """Write the nominal moves, and the lines for blocked moves and exceptions."""
        if self.dynamics.slide:
            return self.dynamics.slide.lines(self.constants, self.names), self._exceptions()
        nominal = [self.dynamics.moves[i] for i in self.moving]
        targets = [
            move.target_text(self.constants, self.names, factor)
            for factor, move in zip(self.moving, nominal, strict=True)
        ]
        block = self.dynamics.block
        blocked = self.writer.condition(block) if block else "False"
        cut = mentions(blocked, "outside")
        moves = []
        for move, name, target in zip(nominal, moving, targets, strict=True):
            moves += [f"target_{name} = {target}"] if cut else []
            moves.append(f"new_{name} = {move.bounded_text(f'target_{name}' if cut else target)}")
        if cut:
            sides = f"({listed(moving, 'new_')}) != ({listed(moving, 'target_')})"
            moves += bracketed("outside = ", sides)
        stop = [] if blocked == "False" else bracketed("if ", blocked, ":")
        stop += [f"    {listed(moving, 'new_')} = {listed(moving)}"] if stop else []
        return moves, [*stop, *self._exceptions()]

    def _exceptions(self) -> list[str]:
        """Write the changes that are not moves."""
        lines: list[str] = []
        for change in self.dynamics.changes:
            lines += self._change(change)
            self.known.add(change.factor)
        return lines

    def _change(self, change: FactorChange) -> list[str]:
        """Write the exceptions of one factor."""
        name, known = self.names[change.factor], change.factor in self.known
        values = {n: self._effect(e, change.factor) for n, e in enumerate(change.effects, 1)}
        cases = self.writer.cases(change.rules)
        return chain(cases, f"new_{name}", values, default=None if known else name)

    def _effect(self, effect: Effect, factor: int) -> str:
        """Write the next value of a factor by an effect."""
        name, last = self.names[factor], self.dynamics.sizes.radices[factor] - 1
        if effect.kind == "set":
            return str(effect.value)
        if effect.kind == "add":
            return f"min(max({name} + {effect.value}, 0), {last})".replace("+ -", "- ")
        if effect.kind == "shift":
            aimed = f"new_{name}" if factor in self.known else name
            return f"min(max({aimed} + {effect.value}, 0), {last})".replace("+ -", "- ")
        if effect.kind == "site":
            return f"{self._value_at()}.get({self._cell()}, {name})"
        return name if effect.kind == "keep" else self.names[effect.value]

    def _unchanged(self) -> list[str]:
        """Write the test whether the state is unchanged."""
        names = [self.names[i] for i in self.changing]
        if len(names) == 1:
            return [f"unchanged = new_{names[0]} == {names[0]}"]
        return bracketed("unchanged = ", f"({listed(names, 'new_')}) == ({listed(names)})")

    def _outcomes(self) -> list[str]:
        """Write the end of the episode and the reward, in the order of the model."""
        outcomes = self.model.outcomes
        ends = self.writer.condition(outcomes.done, opposite=outcomes.always)
        parts = [bracketed("terminated = ", ends), self._reward()]
        if outcomes.reward_first:
            parts.reverse()
        lines = [line for part in parts for line in part]
        flags, text = self.dynamics.sizes.flags, "\n".join(lines)
        if mentions(text, "total_before"):
            before = " + ".join(self.names[flag] for flag in flags)
            lines = [*bracketed("total_before = ", before), *lines]
        if mentions(text, "total"):
            lines = [*bracketed("total = ", " + ".join(map(self._after, flags))), *lines]
        return lines

    def _reward(self) -> list[str]:
        """Write the reward: a rule, a sum, or a sum and a bonus by a rule."""
        formula, rewards = self.model.formula, self.rewards
        if formula is None:
            return self._reward_rule("reward")
        nothing = len(rewards) == 1 and not float(rewards[0])
        lines = [] if nothing else self._reward_rule("bonus")
        start = "bonus" if lines else ""
        return [*lines, *formula.lines(start, self.names.__getitem__, self._after)]

    def _reward_rule(self, target: str) -> list[str]:
        """Write the rule that gives a reward or bonus."""
        values = dict(enumerate(self.rewards))
        cases = self.writer.cases(self.model.outcomes.reward)
        if len(cases) == 1:
            [(expression, label)] = cases
            line = f"{target} = {values[label]} if {expression} else {values[0]}"
            if len(line) <= WIDTH:
                return [line]
        return chain(cases, target, values, default=values[0])

    def spell(self, column: RuleColumn) -> str:
        """Write the expression of a column."""
        if column.kind == "site":
            return f"{self._cell()} in {self._value_at()}"
        if column.kind == "at":
            return f"{self._value_at()}.get({self._cell()}) == {self.names[column.factor]}"
        if column.kind == "part":
            return part_of_action(self.dynamics.sizes.parts, column.other)
        if column.kind in ("change", "gap", "sum"):
            return self._comparison_text(column)
        if column.factor < 0:
            paid = "bonus" if self.model.formula else "reward"
            plain = {"same": "unchanged", "done": "terminated", "reward": paid}
            return plain.get(column.kind, column.kind)
        name = self.names[column.factor]
        new = f"new_{name}" if column.factor in self.known else name
        special = {"aimed": f"aimed_{name}", "edge": f"{name} + new_{name}", "new": new}
        return special.get(column.kind, name)

    def _comparison_text(self, column: RuleColumn) -> str:
        """Write the expression of a column about several factors, or the change of one factor."""
        if column.kind == "sum":
            names = [self.spell(RuleColumn("new", factor, 0)) for factor in column.cell]
            return f"sum([{listed(names)}])"
        name = self.spell(RuleColumn("new", column.factor, 0))
        if column.kind == "change":
            return f"{name} - {self.names[column.factor]}"
        other = self.spell(RuleColumn("new", column.other, 0))
        return f"{name} - {other}"

    def _after(self, factor: int) -> str:
        """Return the variable of the value of a factor after the step."""
        return f"new_{self.names[factor]}" if factor in self.changing else self.names[factor]

    def _cell(self) -> str:
        """Write the current cell."""
        landmarks = self.dynamics.sizes.landmarks
        names = [self.names[place] for place in landmarks.places] if landmarks else []
        return names[0] if len(names) == 1 else f"({listed(names)})"

    def _value_at(self) -> str:
        """Return the constant that maps a cell to the value that represents it."""
        landmarks = self.dynamics.sizes.landmarks
        if landmarks is None:
            return "{}"
        entries = [
            f"{cell[0] if len(cell) == 1 else cell}: {value}"
            for cell, value in landmarks.values.items()
        ]
        name = self.names[landmarks.item]
        comment = f"{name} located at {self._cell()}, or delivered there"
        return self.constants.add(f"{name.upper()}_AT", "{" + ", ".join(entries) + "}", comment)


def _title(names: list[str], radices: tuple[int, ...]) -> str:
    """Describe the factors of the state in one line."""
    parts = [f"{name} (0 to {radix - 1})" for name, radix in zip(names, radices, strict=True)]
    if len(parts) == 1:
        return f"The state is one number from 0 to {radices[0] - 1}."
    text = f"The state is {_enumerate(parts)}."
    return text if len(text) <= WIDTH else f"The state has {len(parts)} parts."


def _summary(
    seen: Transitions,
    model: DiscreteModel,
    names: list[str],
    more: tuple[str, ...],
    *,
    certain: bool,
) -> list[str]:
    """Describe the data and the assumptions, followed by the sentences `more`."""
    sentences = _data_summary(seen)
    if seen.contradicts and certain:
        sentences.append("Equal inputs had different outcomes: the most common one is predicted.")
    return textwrap.wrap(" ".join([*sentences, *more]), WIDTH)


def _data_summary(seen: Transitions) -> list[str]:
    """Summarise the data: number of transitions, ends of episodes, rewards."""
    transitions = _count(int(seen.count.sum()), "transition")
    sentences = [f"Induced from {transitions} of {_count(seen.episodes, 'episode')}."]
    ends = int(seen.count[seen.done == 1].sum())
    if ends:
        verb = "was" if ends == 1 else "were"
        sentences.append(f"{_count(ends, 'terminal transition')} {verb} seen.")
    counts = np.bincount(seen.codes, weights=seen.count).astype(int).tolist()
    if len(counts) == 1:
        return sentences
    if len(counts) > MOST_LISTED:
        return [*sentences, f"{len(counts)} different rewards were seen."]
    parts = [
        f"{reward} ({'once' if count == 1 else f'{count} times'})"
        for reward, count in zip(seen.rewards, counts, strict=True)
    ]
    return [*sentences, f"Rewards seen: {_enumerate(parts)}."]


def _count(number: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _enumerate(parts: list[str]) -> str:
    """Join parts with commas and a last `and`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
