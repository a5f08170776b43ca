"""The text of a program that says what was found."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete_conditions import LINE, Condition, Constants, Speaker, either
from cwm_induction.discrete_dynamics import Change, Dynamics, Effect
from cwm_induction.discrete_names import factor_names
from cwm_induction.discrete_outcomes import Outcomes
from cwm_induction.discrete_shapes import action_lines, observation_expression, state_lines
from cwm_induction.discrete_transitions import Frame
from cwm_induction.tables import Column, Table


class Model(NamedTuple):
    """Everything that was found about an environment."""

    frame: Frame
    dynamics: Dynamics
    outcomes: Outcomes
    rewards: tuple[float, ...]


def write_program(model: Model, title: str, findings: list[str]) -> str:
    """Write the program; `title` and `findings` become the docstring of its class."""
    return _Writer(model).program(title, findings)


class _Writer:
    """Collects the constants and the lines of one program."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.dynamics = model.dynamics
        self.names = factor_names(model.dynamics)
        self.constants = Constants()
        changed = {change.factor for change in self.dynamics.changes}
        moves = self.dynamics.moves
        self.changing = [i for i, move in enumerate(moves) if move.moves or i in changed]
        self.moving = [i for i, move in enumerate(moves) if move.moves]
        self.known = set(self.moving)
        self.rewards = tuple(repr(reward) for reward in model.rewards)
        self.speaker = Speaker(self.constants, self.spell, self.rewards)

    def spell(self, column: Column) -> str:
        """Name what a rule looks at."""
        plain = {"action": "action", "same": "unchanged", "done": "terminated", "reward": "reward"}
        if column.kind in plain:
            return plain[column.kind]
        name = self.names[column.factor]
        if column.kind == "meets":
            sides = [self.spell(Column("new", f, 0)) for f in (column.factor, column.other)]
            return " == ".join(sides)
        if column.kind == "aimed":
            return f"aimed_{name}"
        if column.kind == "edge":
            return f"{name} + new_{name}"
        return f"new_{name}" if column.kind == "new" and column.factor in self.known else name

    def program(self, title: str, findings: list[str]) -> str:
        """Put the parts together."""
        step = self.step()
        initial, setters = state_lines(self.model.frame, self.dynamics.layout, self.names)
        answer = observation_expression(self.model.frame, self.dynamics.layout, self.names)
        numpy = ["import numpy as np", "", ""] if "np." in answer else []
        blank = [""] if self.constants.lines else []
        body = [
            *_docstring(title, findings),
            "",
            *self.constants.lines,
            *blank,
            *_function("__init__(self)", initial),
            *_function("set_state(self, observation)", setters),
            *_function("observation(self)", [f"return {answer}"]),
            *_function("step(self, action)", step)[:-1],
        ]
        indented = [f"    {line}" if line else "" for line in body]
        return "\n".join([*numpy, "class Environment:", *indented, ""])

    def step(self) -> list[str]:
        """Write the body of `step`."""
        moves, rules, outcomes = self.moves(), self.exceptions(), self.outcomes()
        text = "\n".join(rules + outcomes)
        aims = [self.names[i] for i in self.moving if _mentions(text, f"aimed_{self.names[i]}")]
        keep = [f"{_list('aimed_', aims)} = {_list('new_', aims)}"] if aims else []
        same = self._unchanged() if "unchanged" in text else []
        used = [name for name in self.names if _mentions("\n".join([*moves, text, *same]), name)]
        read = [f"{_list('', used)} = {_list('self.', used)}"] if used else []
        new = [self.names[i] for i in self.changing]
        write = [f"{_list('self.', new)} = {_list('new_', new)}"] if new else []
        return [
            *action_lines(self.model.frame),
            *read,
            *moves,
            *keep,
            *rules,
            *same,
            *outcomes,
            *write,
            "return self.observation(), reward, terminated",
        ]

    def moves(self) -> list[str]:
        """Write the nominal moves."""
        return [f"new_{self.names[i]} = {self._landing(i)}" for i in self.moving]

    def _landing(self, factor: int) -> str:
        """Write where the nominal move of a factor leads."""
        move, name = self.dynamics.moves[factor], self.names[factor]
        key = "action" if move.key is None else f"(action, {self.names[move.key]})"
        entries = [
            f"{action if move.key is None else (action, column)}: {int(delta)}"
            for (action, column), delta in _cells(move.deltas)
            if delta
        ]
        step = self.constants.add(
            f"{name.upper()}_STEP", "{" + ", ".join(entries) + "}", f"change of {name} by {key}"
        )
        total = f"{name} + {step}.get({key}, 0)"
        if move.wraps:
            return f"({total}) % {move.radix}"
        return f"min(max({total}, 0), {move.radix - 1})"

    def exceptions(self) -> list[str]:
        """Write where nothing moves and what else changes."""
        lines: list[str] = []
        if self.dynamics.block:
            names = [self.names[i] for i in self.moving]
            test = either(self.speaker.conditions(self.dynamics.block.rules, "BLOCKED"))
            if test != "False":
                lines += [f"if {test}:", f"    {_list('new_', names)} = {_list('', names)}"]
        for change in self.dynamics.changes:
            lines += self._change(change)
            self.known.add(change.factor)
        return lines

    def _change(self, change: Change) -> list[str]:
        """Write the exceptions of one factor."""
        name = self.names[change.factor]
        values = {n: self._effect(e, change.factor) for n, e in enumerate(change.effects, 1)}
        layers, constant = change.rules.layers, f"{name.upper()}_AFTER"
        default = f"new_{name}" if change.factor in self.known else name
        settled = all(effect.kind == "set" for effect in change.effects)
        if settled and len(layers) == 1 and isinstance(layers[0], Table):
            lookup = self.speaker.lookup(layers[0], values, constant, default)
            return [f"new_{name} = {lookup}"]
        conditions = self.speaker.conditions(change.rules, constant)
        kept = None if change.factor in self.known else name
        return _chain(conditions, f"new_{name}", values, default=kept)

    def _effect(self, effect: Effect, factor: int) -> str:
        """Write the value that an effect gives a factor."""
        name, last = self.names[factor], self.dynamics.sizes.radices[factor] - 1
        if effect.kind == "set":
            return str(effect.value)
        if effect.kind == "add":
            return f"min(max({name} + {effect.value}, 0), {last})".replace("+ -", "- ")
        return name if effect.kind == "keep" else self.names[effect.value]

    def outcomes(self) -> list[str]:
        """Write when the episode ends and what is rewarded, in the order that was found."""
        parts = [self._end(), self._reward()]
        if self.model.outcomes.reward_first:
            parts.reverse()
        return [line for part in parts for line in part]

    def _end(self) -> list[str]:
        """Write when the episode ends."""
        found = self.model.outcomes
        ends = either(self.speaker.conditions(found.done.rules, "TERMINAL"))
        if found.always:
            ends = "True" if ends == "False" else f"not ({ends})"
        return [f"terminated = {ends}"]

    def _reward(self) -> list[str]:
        """Write what is rewarded."""
        rules = self.model.outcomes.reward.rules
        values = dict(enumerate(self.rewards))
        if len(rules.layers) == 1 and isinstance(rules.layers[0], Table):
            table = rules.layers[0]
            if len(table.labels) > 1 and len(set(table.labels.values())) > 1:
                return [f"reward = {self.speaker.lookup(table, values, 'REWARD', values[0])}"]
        conditions = self.speaker.conditions(rules, "REWARDED")
        if len(conditions) == 1:
            expression, label = conditions[0]
            line = f"reward = {values[label]} if {expression} else {values[0]}"
            return (
                [line]
                if len(line) <= LINE - len("    ")
                else _chain(conditions, "reward", values, values[0])
            )
        return _chain(conditions, "reward", values, default=values[0])

    def _unchanged(self) -> list[str]:
        """Write whether the state stays as it was."""
        names = [self.names[i] for i in self.changing]
        if len(names) == 1:
            return [f"unchanged = new_{names[0]} == {names[0]}"]
        return [f"unchanged = ({_list('new_', names)}) == ({_list('', names)})"]


def _chain(
    conditions: list[Condition], target: str, values: dict[int, str], default: str | None
) -> list[str]:
    """Assign by the last condition that holds; without a default nothing is assigned otherwise."""
    lines: list[str] = [] if default is None else [f"{target} = {default}"]
    word = "if"
    for number, condition in reversed(list(enumerate(conditions))):
        if condition.label or number:
            value = values.get(condition.label)
            assign = "pass" if value is None else f"{target} = {value}"
            lines += [f"{word} {condition.expression}:", f"    {assign}"]
            word = "elif"
    return lines


def _cells(deltas: np.ndarray) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the cells of a table of moves."""
    for action, row in enumerate(deltas.tolist()):
        for column, delta in enumerate(row):
            yield (action, column), delta


def _list(prefix: str, names: list[str]) -> str:
    """Write names with a prefix, separated by commas."""
    return ", ".join(prefix + name for name in names)


def _mentions(text: str, name: str) -> bool:
    """Say whether a variable is used."""
    return re.search(rf"(?<![\w.]){name}\b", text) is not None


def _function(signature: str, body: list[str]) -> list[str]:
    """Write a method and a blank line."""
    return [f"def {signature}:", *[f"    {line}" for line in body], ""]


def _docstring(title: str, findings: list[str]) -> list[str]:
    """Write the docstring of the class."""
    return [f'"""{title}', "", *findings, '"""']
