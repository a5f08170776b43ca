"""Induction of programs for environments whose observations are few integers.

The state is divided into factors, which move by rules with exceptions or by random draws. A
program stores the rows that its rules do not explain.
"""

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.discrete.chances import (
    chance_model,
    is_paid_by_chance,
    unpaid,
    write_chances,
)
from cwm_induction.discrete.draws import draw
from cwm_induction.discrete.dynamics import (
    FactorDynamics,
    fit_dynamics,
    known_dynamics,
    plain_layouts,
)
from cwm_induction.discrete.expressions import wrapped
from cwm_induction.discrete.outcomes import EXACT, fit_formula, fit_outcomes, known_steps
from cwm_induction.discrete.program_text import DiscreteModel, write_program
from cwm_induction.discrete.rule_search import RuleVariant
from cwm_induction.discrete.transitions import Transitions, integer_columns, join
from cwm_induction.structure import EARLY, FEW, GROWN, KnownStructure

VARIANTS = (
    RuleVariant(),
    RuleVariant(rank=1),
    RuleVariant(shapes=False),
    RuleVariant(blocks=False),
    RuleVariant(rank=2),
)
"""Variants of the rule search, in the order of use: the shortest description first."""

LEAST_COUNT = 3
"""If outcomes vary, programs store only outcomes with at least this count."""

SAMPLED = 0.8
"""After all variants, fit rules to a random sample with this share of the episodes."""

GUESS = "It is a guess that the episode ends in one more state, which no transition reached."


def induce(
    fit: Dataset, *, variant: int, rng: np.random.Generator, known: KnownStructure | None = None
) -> str:
    """Return a program that explains a dataset; `supports` must accept the dataset.

    Variant 0 is the shortest description. Odd variants add a guess about a state that was never
    observed. Even variants restrict the rules or use the next best layout of the state; after
    all of `VARIANTS`, they fit the rules to a random sample of the episodes.

    Variant 0 tries the layouts `known` from fewer rows first. It searches more layouts if the
    rules leave more than `FEW` rows unexplained and the known layouts are not recent.
    """
    seen = Transitions.of(fit)
    if known is not None and variant == 0:
        return _from_known(fit, seen, known)
    return _induce_variant(fit, seen, variant, rng)


def induce_chances(fit: Dataset, *, variant: int = 0, known: KnownStructure | None = None) -> str:
    """Return a program with all outcomes and their probabilities, for a random environment.

    Further variants restrict the rules for the result of a draw. The layout `known` from fewer
    rows is used again, unless these were far fewer rows.
    """
    rules = VARIANTS[variant % len(VARIANTS)]._replace(shifts=True)
    seen = Transitions.of(fit)
    if known is not None and known.holds_for(len(fit)):
        seen = replace(seen, readings=known.layouts)
    drawn = draw(seen)
    if known is not None and not seen.readings:
        known.rows, known.layouts = len(fit), (drawn.layout,)
    by_chance = is_paid_by_chance(drawn.as_drawn)
    certain = unpaid(drawn.as_drawn) if by_chance else drawn.as_drawn
    steps = drawn.draws.known_steps(certain.encoding.actions)
    dynamics = known_dynamics(certain, rules, steps)
    model = _with_outcomes(certain, dynamics, rules)
    return write_chances(chance_model(drawn, model, by_chance))


def _from_known(fit: Dataset, seen: Transitions, known: KnownStructure) -> str:
    """Return the shortest description in the known layouts, in likely layouts, or in all.

    The search widens if the rules in the narrower choice leave rows unexplained.
    """
    rng = np.random.default_rng(0)  # not used by variant 0
    rows = len(fit)
    if known.layouts and known.holds_for(rows) and (rows > EARLY or known.is_fresh(rows)):
        program = _induce_variant(fit, replace(seen, readings=known.layouts), 0, rng)
        if known.is_fresh(rows) or len(recall(program)[1]) <= FEW:
            return program
    known.rows = rows
    if known.layouts and rows > EARLY:
        likely = replace(seen, readings=(*known.layouts, *plain_layouts(seen)))
        program = _induce_variant(fit, likely, 0, rng)
        if rows < GROWN * known.thorough or not recall(program)[1]:
            known.layouts = (fit_dynamics(likely, VARIANTS[0]).layout,)
            return program
    program, known.thorough = _induce_variant(fit, seen, 0, rng), rows
    known.layouts = (fit_dynamics(seen, VARIANTS[0]).layout,)
    return program


def _induce_variant(fit: Dataset, seen: Transitions, variant: int, rng: np.random.Generator) -> str:
    if variant % 2 and (guessed := _guess(seen, variant // 2)):
        return _write(fit, seen, guessed, GUESS)
    number = (variant + 1) // 2
    part = seen if number < len(VARIANTS) else seen.part(_some_episodes(fit, rng))
    return _write(fit, seen, _fit_rules(part, VARIANTS[number % len(VARIANTS)]))


def improve(program: str, fit: Dataset, wrong: np.ndarray) -> str:
    """Store the most common outcome of each situation among the `wrong` rows in a program."""
    return remember(program, usual_outcomes(fit, wrong), fit)


def _write(fit: Dataset, seen: Transitions, model: DiscreteModel, *more: str) -> str:
    """Write the program of a model, with the transitions that its rules do not predict."""
    after, rewards, done = model.predict(seen.before, seen.action)
    wrong = (after != seen.after).any(axis=1) | (done != seen.done)
    wrong |= np.abs(rewards - seen.paid) > EXACT
    least = LEAST_COUNT if seen.is_noisy else 1
    memory = usual_outcomes(fit, wrong[seen.rows], least=least)
    return remember(write_program(model, seen, *more), memory, fit)


def _fit_rules(part: Transitions, variant: RuleVariant) -> DiscreteModel:
    """Fit rules of dynamics, termination and reward."""
    return _with_outcomes(part, fit_dynamics(part, variant), variant)


def _with_outcomes(
    part: Transitions, dynamics: FactorDynamics, variant: RuleVariant
) -> DiscreteModel:
    """Fit the rules of termination and reward, given the dynamics.

    A sum that gives most rewards is used if it is shorter and leaves few distinct rewards to
    the rules.
    """
    factored, noise = known_steps(part, dynamics)
    outcomes = fit_outcomes(part, factored, dynamics.sizes, variant, noise)
    model = DiscreteModel(part.encoding, dynamics, outcomes, part.rewards)
    old, new = part.in_factors(dynamics.layout)
    formula = fit_formula(part.action, old, new, part.paid, dynamics.sizes)
    if formula is None:
        return model
    rest = part.paying(part.paid - formula.values(part.action, old, new))
    outcomes = fit_outcomes(rest, factored, dynamics.sizes, variant, noise)
    few = 2 * len(rest.rewards) <= len(part.rewards)
    if not few or formula.bits + outcomes.bits >= model.outcomes.bits:
        return model
    return DiscreteModel(part.encoding, dynamics, outcomes, rest.rewards, formula=formula)


def _some_episodes(dataset: Dataset, rng: np.random.Generator) -> np.ndarray:
    """Return a mask of the rows of a random sample of episodes, at least one episode."""
    numbers = np.unique(dataset.columns["episodes"])
    size = max(1, round(SAMPLED * len(numbers)))
    chosen = rng.choice(numbers, size=size, replace=False)
    mask: np.ndarray = np.isin(dataset.columns["episodes"], chosen)
    return mask


def _guess(seen: Transitions, rank: int) -> DiscreteModel | None:
    """Return the shortest description that ends episodes in a state without observations.

    States that were never observed often end the episode. `rank` is the rank of the state by the
    number of known states that lead to it. Return None if there are fewer states.
    """
    dynamics = fit_dynamics(seen, VARIANTS[0])
    known = np.unique(np.concatenate([seen.before, seen.after]), axis=0)
    places, actions = np.unique(seen.before, axis=0), np.unique(seen.action)
    before, action = np.repeat(places, len(actions), axis=0), np.tile(actions, len(places))
    after = join(dynamics.predict(before, action).new, dynamics.layout)
    states, index, count = np.unique(after, axis=0, return_inverse=True, return_counts=True)
    fresh = ~(states[:, None] == known[None]).all(axis=2).any(axis=1)
    order = np.argsort(-count, kind="stable")
    candidates = order[fresh[order]]
    if rank >= len(candidates):
        return None
    rows = index.reshape(-1) == candidates[rank]
    imagined = _with_ends(seen, before[rows], action[rows], after[rows])
    return _with_outcomes(imagined, dynamics, VARIANTS[0])


def _with_ends(
    seen: Transitions, before: np.ndarray, action: np.ndarray, after: np.ndarray
) -> Transitions:
    """Add transitions that end the episode, with the most common reward of ends."""
    ends = seen.codes[seen.done == 1]
    code = int(np.bincount(ends).argmax()) if len(ends) else 0
    new = {"before": before, "action": action, "after": after}
    new |= {name: np.full(len(action), value) for name, value in (("codes", code), ("done", 1))}
    new["count"] = np.ones(len(action), dtype=seen.count.dtype)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(seen, name), column]) for name, column in new.items()
    }
    return replace(seen, **columns)


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
