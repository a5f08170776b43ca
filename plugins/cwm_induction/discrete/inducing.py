"""Induction of programs for environments whose observations are few integers.

The state is divided into factors, which move by rules with exceptions or by random draws. A
program stores the rows that its rules do not explain.
"""

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.decision_list import Spend
from cwm_induction.discrete.chances import (
    chance_model,
    is_paid_by_chance,
    unpaid,
    write_chances,
)
from cwm_induction.discrete.draws import draw
from cwm_induction.discrete.dynamics import FactorDynamics, fit_dynamics, known_dynamics
from cwm_induction.discrete.expressions import wrapped
from cwm_induction.discrete.outcomes import EXACT, fit_formula, fit_outcomes
from cwm_induction.discrete.program_text import DiscreteModel, write_program
from cwm_induction.discrete.transitions import Transitions, integer_columns
from cwm_induction.effort import Effort
from cwm_induction.structure import EARLY, FEW, KnownStructure

UNITS = 4_000
"""Work units for the rules of one program, about 20 seconds of one core."""

LEAST_COUNT = 3
"""If outcomes vary, programs store only outcomes with at least this count."""


def induce(fit: Dataset, known: KnownStructure | None = None) -> str:
    """Return a program that explains a dataset; `supports` must accept the dataset.

    The search tries the layout `known` from fewer rows first. It searches all layouts if the
    rules leave more than `FEW` rows unexplained and the known layout is not recent.
    """
    seen, rows = Transitions.of(fit), len(fit)
    if known is None:
        return _program(fit, seen)[0]
    if known.layouts and known.holds_for(rows) and (rows > EARLY or known.is_fresh(rows)):
        program = _program(fit, replace(seen, readings=known.layouts))[0]
        if known.is_fresh(rows) or len(recall(program)[1]) <= FEW:
            return program
    program, dynamics = _program(fit, seen)
    known.rows, known.layouts = rows, (dynamics.layout,)
    return program


def induce_chances(fit: Dataset, known: KnownStructure | None = None) -> str:
    """Return a program with all outcomes and their probabilities, for a random environment.

    The layout `known` from fewer rows is used again, unless these were far fewer rows.
    """
    seen, spend = Transitions.of(fit), Effort(UNITS, inf).spend
    if known is not None and known.holds_for(len(fit)):
        seen = replace(seen, readings=known.layouts)
    drawn = draw(seen)
    if known is not None and not seen.readings:
        known.rows, known.layouts = len(fit), (drawn.layout,)
    by_chance = is_paid_by_chance(drawn.as_drawn)
    certain = unpaid(drawn.as_drawn) if by_chance else drawn.as_drawn
    certain = certain.usual
    steps = drawn.draws.known_steps(certain.encoding.actions)
    model = _with_outcomes(certain, known_dynamics(certain, steps, spend), spend)
    return write_chances(chance_model(drawn, model, by_chance))


def improve(program: str, fit: Dataset, wrong: np.ndarray) -> str:
    """Store the most common outcome of each situation among the `wrong` rows in a program."""
    return remember(program, usual_outcomes(fit, wrong), fit)


def _program(fit: Dataset, seen: Transitions) -> tuple[str, FactorDynamics]:
    """Return a program, with the transitions that its rules do not predict, and its dynamics."""
    spend = Effort(UNITS, inf).spend
    dynamics = fit_dynamics(seen.usual, spend)
    model = _with_outcomes(seen.usual, dynamics, spend)
    after, rewards, done = model.predict(seen.before, seen.action)
    wrong = (after != seen.after).any(axis=1) | (done != seen.done)
    wrong |= np.abs(rewards - seen.paid) > EXACT
    least = LEAST_COUNT if seen.is_noisy else 1
    memory = usual_outcomes(fit, wrong[seen.rows], least=least)
    return remember(write_program(model, seen), memory, fit), dynamics


def _with_outcomes(seen: Transitions, dynamics: FactorDynamics, spend: Spend) -> DiscreteModel:
    """Fit the rules of termination and reward, given the dynamics.

    A sum that gives most rewards is used if it is shorter and leaves few distinct rewards to
    the rules.
    """
    old, new = seen.in_factors(dynamics.layout)
    factored = dynamics.predict(seen.before, seen.action)._replace(new=new)
    outcomes = fit_outcomes(seen, factored, dynamics.sizes, spend)
    model = DiscreteModel(seen.encoding, dynamics, outcomes, seen.rewards)
    formula = fit_formula(seen.action, old, new, seen.paid, dynamics.sizes)
    if formula is None:
        return model
    rest = seen.paying(seen.paid - formula.values(seen.action, old, new))
    outcomes = fit_outcomes(rest, factored, dynamics.sizes, spend)
    few = 2 * len(rest.rewards) <= len(seen.rewards)
    if not few or formula.bits + outcomes.bits >= model.outcomes.bits:
        return model
    return DiscreteModel(seen.encoding, dynamics, outcomes, rest.rewards, formula=formula)


Memory = dict[tuple[Any, Any], tuple[Any, float, bool]]
"""The next observation, reward and end of the episode by observation and action."""

_STEP = "    def step(self, action):"
_RULES = "    def step_by_rules(self, action):"
_HEADING = "    # Observed transitions that the rules do not explain, by observation and action."
_ANSWER = """
    def step(self, action):
        key = ({observation}, {action})
        if key not in self.REMEMBERED:
            return self.step_by_rules(action)
        observation, reward, terminated = self.REMEMBERED[key]
        self.set_state(observation)
        return self.observation(), reward, terminated
"""


def usual_outcomes(dataset: Dataset, rows: np.ndarray, *, least: int = 1) -> Memory:
    """Return the most common outcome of each observation and action in a mask of rows.

    In a tie, it is the lowest outcome. Situations whose most common outcome has a count
    below `least` are omitted.
    """
    keys = [*zip(_plain(dataset, "observations"), _plain(dataset, "actions"), strict=True)]
    outcomes = zip(
        _plain(dataset, "next_observations"),
        dataset.columns["rewards"].tolist(),
        dataset.columns["terminations"].tolist(),
        strict=True,
    )
    counts: dict[Any, Counter[Any]] = {keys[row]: Counter() for row in np.flatnonzero(rows)}
    for key, outcome in zip(keys, outcomes, strict=True):
        if key in counts:
            counts[key][outcome] += 1
    usual = {
        key: min(seen.items(), key=lambda pair: (-pair[1], pair[0])) for key, seen in counts.items()
    }
    return {key: outcome for key, (outcome, count) in usual.items() if count >= least}


def remember(program: str, memory: Memory, dataset: Dataset) -> str:
    """Add a memory to a program of this package; new entries replace old ones."""
    if not memory:
        return program
    rules, known = recall(program)
    entries = sorted({**known, **memory}.items())
    display = "{" + ", ".join(f"{key}: {outcome}" for key, outcome in entries) + "}"
    table = [f"    {line}" for line in wrapped("REMEMBERED = ", display)]
    answer = _ANSWER.format(
        observation=_key(dataset.observation_space, "self.observation()"),
        action=_key(dataset.action_space, "action"),
    )
    start = rules.replace(_STEP, _RULES, 1).rstrip("\n")
    return "\n".join([start, "", _HEADING, *table]) + "\n" + answer


def recall(program: str) -> tuple[str, Mapping[Any, Any]]:
    """Return a program without its memory, and the memory."""
    rules, heading, memory = program.partition(f"\n{_HEADING}\n")
    if not heading:
        return program, {}
    display = memory.split("REMEMBERED = ", 1)[1].split("\n\n", 1)[0]
    return rules.replace(_RULES, _STEP, 1), ast.literal_eval(display)


def _plain(dataset: Dataset, name: str) -> list[Any]:
    """Return the values of a field as integers or tuples of integers."""
    space = dataset.action_space if name == "actions" else dataset.observation_space
    values = integer_columns(dataset, space, name).tolist()
    return [row[0] if space.kind == "discrete" else tuple(row) for row in values]


def _key(space: Space, value: str) -> str:
    """Write an expression that converts a value to a dictionary key."""
    if space.kind in ("discrete", "tuple"):
        return value
    return f"tuple({value}.ravel())" if len(space.shape) > 1 else f"tuple({value})"
