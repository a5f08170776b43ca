"""Models of many like parts: their moves, then other quantities, rewards and ends."""

import textwrap
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.discrete.expressions import action_lines
from cwm_induction.discrete.transitions import IntegerEncoding
from cwm_induction.relations.expressions import FUNCTIONS, Names
from cwm_induction.relations.payments import Payments, fit_payments
from cwm_induction.relations.rules import (
    EffectRules,
    RuleEffect,
    RuleTerm,
    RuleVocabulary,
    Spend,
    definitions,
    fit_rules,
    mentions,
    plain_effects,
    plain_terms,
)

MAX_CONSTANTS = 8
"""Different values that rules may set; a quantity with more values is a number."""

PROGRAM = '''import numpy as np


{functions}class Environment:
    """{summary}, induced from {rows}."""

{constants}    def set_state(self, observation):
        """Set the observation to predict from."""
        self.state = np.array(observation)

    def observation(self):
        """Return the observation of the state."""
        return self.state

    def step(self, action):
        """Predict the next observation, the reward and the end of the episode."""
{body}
'''

Steps = dict[int, tuple[int, int]]
"""Rows and columns that each action moves an object by."""


class PartRows(NamedTuple):
    """Transitions as arrays of whole numbers; actions are numbered from 0."""

    before: Array
    action: Array
    after: Array
    rewards: Array
    ends: Array

    def part(self, mask: Array) -> "PartRows":
        """Return the rows of a mask."""
        return PartRows(*(column[mask] for column in self))


class PartsLayout(ABC):
    """The components of an observation that are parts; others are single quantities."""

    @property
    @abstractmethod
    def extras(self) -> list[int]:
        """Components that belong to no part."""


class ProgramText(NamedTuple):
    """The lines of a program that a structure of parts needs.

    `moves` give the parts new values. `finish` writes these into the array `numbers`, which holds
    the whole state, or sets the state.
    """

    constants: list[str]
    start: list[str]
    moves: list[str]
    finish: list[str]


@dataclass
class PartsModel(ABC):
    """Rules for the parts of an observation; subclasses describe their structure."""

    layout: PartsLayout
    quantities: dict[int, EffectRules] = field(default_factory=dict, kw_only=True)
    payments: Payments | None = field(default=None, kw_only=True)

    summary: ClassVar[str]

    @abstractmethod
    def moved(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the observations after the moves, and the names that later rules may use."""

    @abstractmethod
    def quantity_terms(self, names: Names) -> list[RuleTerm]:
        """Return the terms of the rules of single quantities."""

    @abstractmethod
    def payment_terms(self, names: Names) -> tuple[list[RuleTerm], list[RuleTerm]]:
        """Return the terms of weighted sums, and the terms of conditions."""

    @abstractmethod
    def program_text(self, end: str) -> ProgramText:
        """Write the program up to the moves; `end` is the text after these."""

    def copies(self, component: int) -> list[RuleEffect]:
        """Return further expressions that a quantity may take its value from."""
        return []

    def functions(self) -> dict[str, str]:
        """Return the functions that programs may call, by name."""
        return FUNCTIONS

    def predict(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the next observations, and the names that rewards and ends may use."""
        after, names = self.moved(before, action)
        for component in self.layout.extras:
            if component in self.quantities:
                after[:, component] = self.quantities[component].outcomes(names, len(before))
            names[f"new_x{component}"] = after[:, component]
        return after, names

    def fit_quantities_and_payments(self, rows: PartRows, spend: Spend) -> None:
        """Learn rules for single quantities, then for rewards and ends."""
        _, names = self.predict(rows.before, rows.action)
        terms = self.quantity_terms(names)
        for component in self.layout.extras:
            target, copies = rows.after[:, component], self.copies(component)
            rules = fit_quantity(component, target, names, terms, copies, spend)
            self.quantities[component] = rules
            # later quantities may follow the change of this one
            names[f"new_x{component}"] = target
            terms += plain_terms("flag", [f"(new_x{component} == x{component})"])
            terms += plain_terms("number", [f"new_x{component}"])
        _, names = self.predict(rows.before, rows.action)
        sums, conditions = self.payment_terms(names)
        self.payments = fit_payments(sums, conditions, names, rows.rewards, rows.ends, spend)

    def exact_share(self, rows: PartRows) -> float:
        """Return the share of transitions that are predicted in every part."""
        if self.payments is None:
            return 0.0
        after, names = self.predict(rows.before, rows.action)
        rewards, ends = self.payments.predict(names, len(after))
        right = (after == rows.after).all(axis=1) & (ends == rows.ends)
        right &= np.abs(rewards - rows.rewards) <= 1e-6
        return float(right.mean())

    def write(self, encoding: IntegerEncoding, rows: str) -> str:
        """Write the program; `rows` describes the transitions."""
        assert self.payments is not None
        end = [
            line
            for component, rules in self.quantities.items()
            for line in rules.lines(f"new_x{component} = {{}}".format)
        ]
        end += self.payments.lines
        terms = [term for rules in self.quantities.values() for term in rules.terms]
        variables = definitions([*terms, *self.payments.terms], "\n".join(end))
        constants, start, moves, finish = self.program_text("\n".join([*variables, *end]))
        end = [*(line for line in variables if line not in moves), *end]
        text = "\n".join([*start, *moves, *end])
        takes_numbers = mentions("\n".join([*start, *finish]), "numbers")
        extras = [c for c in self.layout.extras if mentions(text, f"x{c}")]
        body = [
            *action_lines(encoding),
            *["numbers = self.state.flatten()"] * takes_numbers,
            *(f"x{c} = int(numbers[{c}])" for c in extras),
            *start,
            *moves,
            *end,
            *finish,
            *(f"numbers[{c}] = new_x{c}" for c in self.quantities),
            *["self.state = numbers.reshape(self.state.shape)"] * takes_numbers,
            "return self.state, reward, terminated",
        ]
        text = "\n".join(body)
        functions = [code for name, code in self.functions().items() if mentions(text, name)]
        return PROGRAM.format(
            functions="".join(f"{code}\n\n" for code in functions),
            summary=self.summary,
            rows=rows,
            constants="".join(f"    {line}\n" for line in constants) + "\n" * bool(constants),
            body=textwrap.indent(text, "        "),
        )


def fit_quantity(
    component: int,
    after: Array,
    names: Names,
    terms: list[RuleTerm],
    copies: Sequence[RuleEffect],
    spend: Spend,
) -> EffectRules:
    """Learn rules for one component.

    Args:
        component: Its number, n; its value before the step is named `xn`.
        after: Values after the step.
        names: Values of variables, one entry per row.
        terms: Terms that conditions may compare.
        copies: Other expressions that it may take its value from.
        spend: Takes multiplications.
    """
    own, values = f"x{component}", np.unique(after).tolist()
    texts = [own, f"{own} + 1", f"{own} - 1", *map(str, values[:MAX_CONSTANTS])]
    effects = [*plain_effects(texts), *copies]
    numbers = [t.name for t in terms if t.kind == "number" and t.name.isidentifier()]
    low, size = values[0], len(values)
    origin = f" + {low}" if low else ""
    for shift in range(size if 1 < size <= MAX_CONSTANTS else 0):
        # a cycle of values that advances by one or by another quantity
        ahead = f" + {shift - low}" if shift != low else ""
        effects.append(RuleEffect(f"({own}{ahead}) % {size}{origin}", 1.0))
        steps = [f"{own} {sign} {number}" for sign in "+-" for number in numbers if number != own]
        effects += plain_effects([f"({step}{ahead}) % {size}{origin}" for step in steps], 3.0)
    return fit_rules(RuleVocabulary(terms, effects), after, names, spend)


def common_steps(moved: Array, action: Array) -> tuple[Steps, float]:
    """Return the most common step of each action, and the share of moves that follow it.

    Args:
        moved: Rows and columns that an object moved by, of shape (rows, 2).
        action: Numbers of the actions.
    """
    steps, right, total = Steps(), 0, 0
    for number in np.unique(action).tolist():
        own = moved[(action == number) & moved.any(axis=1)]
        if len(own):
            (step, count), *_ = Counter(map(tuple, own.tolist())).most_common(1)
            steps[number] = step
            right, total = right + count, total + len(own)
    return steps, right / max(1, total)


def steps_of(steps: Steps, action: Array) -> Array:
    """Return rows and columns that actions move by, of shape (2, rows)."""
    return np.array([steps.get(number, (0, 0)) for number in action.tolist()]).T
