"""Programs for environments whose observations are few integers, from transitions alone."""

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.discrete.board import board_outcomes, fit_board, write_board
from cwm_induction.discrete.chances import fit_chances
from cwm_induction.discrete.dynamics import FactorDynamics, fit_dynamics
from cwm_induction.discrete.expressions import wrapped
from cwm_induction.discrete.outcomes import EXACT, fit_formula, fit_outcomes, scene_of
from cwm_induction.discrete.program_text import (
    DiscreteModel,
    findings,
    seen_findings,
    title,
    write_program,
)
from cwm_induction.discrete.rule_search import Variant
from cwm_induction.discrete.transitions import Transitions, join, split, supports

FOLDS = 3
MARGIN = 0.03
MOST_REWARDS = 20

Foreseen = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Next observations, rewards and ends."""

Predict = Callable[[np.ndarray, np.ndarray], Foreseen]
Explain = Callable[[Transitions], Predict | None]


def best(fit: Dataset, seen: Transitions, explanations: Sequence[Explain]) -> int:
    """Return the place of the explanation that predicts held-back trajectories best.

    The first is kept unless another is better by more than `MARGIN`.
    """
    episodes = np.unique(fit.columns["episodes"], return_inverse=True)[1].reshape(-1)
    scores = np.zeros(len(explanations))
    for fold in range(min(FOLDS, episodes.max() + 1)):
        held_back = episodes % FOLDS == fold
        if held_back.any() and not held_back.all():
            train, check = seen.part(~held_back), seen.part(held_back)
            for place, explain in enumerate(explanations):
                predict = explain(train)
                scores[place] += score(predict, check, seen) if predict else -1.0
    scores[0] += FOLDS * MARGIN
    return int(scores.argmax())


def score(predict: Predict, check: Transitions, seen: Transitions) -> float:
    """Return the share of what is right, with the weights that the rewards have in `seen`."""
    after, rewards, done = predict(check.before, check.action)
    right = (after == check.after).all(axis=1) * (check.done == 0)
    parts = 3 - check.done
    share = (right + (np.abs(rewards - check.paid) < EXACT) + (done == check.done)) / parts
    counts = np.bincount(seen.codes, weights=seen.count)
    weights = check.count / (counts[check.codes] if len(counts) <= MOST_REWARDS else 1.0)
    return float((share * weights).sum() / weights.sum())


def with_an_end(seen: Transitions, dynamics: FactorDynamics, rank: int) -> Transitions | None:
    """Return the transitions with those imagined that would lead to a state never seen.

    That state is taken to end the episode, as states do that nobody was ever
    seen in again. `rank` is its place among such states, those first that most
    of the known states lead to; None when there are not so many.
    """
    known = np.unique(np.concatenate([seen.before, seen.after]), axis=0)
    places = np.unique(seen.before, axis=0)
    actions = np.unique(seen.action)
    before = np.repeat(places, len(actions), axis=0)
    action = np.tile(actions, len(places))
    after = join(dynamics.predict(before, action).new, dynamics.layout)
    states, index, count = np.unique(after, axis=0, return_inverse=True, return_counts=True)
    fresh = ~(states[:, None] == known[None]).all(axis=2).any(axis=1)
    order = np.argsort(-count, kind="stable")
    candidates = order[fresh[order]]
    if rank >= len(candidates):
        return None
    rows = index.reshape(-1) == candidates[rank]
    return _extended(seen, before[rows], action[rows], after[rows])


def _extended(
    seen: Transitions, before: np.ndarray, action: np.ndarray, after: np.ndarray
) -> Transitions:
    """Add transitions that end the episode, with the reward that ends most often have."""
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
"""What follows an observation and an action: observation, reward, whether the episode ends."""

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
    """Return the commonest outcome of every observation and action among the rows of a mask.

    Situations in which no outcome was seen `least` times are left out.
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
    return {key: _usual(seen) for key, seen in counts.items() if max(seen.values()) >= least}


def remember(program: str, memory: Memory, dataset: Dataset) -> str:
    """Write a memory into a program of this package, over what it remembers already."""
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
    """Return a program's rules alone and what it remembers."""
    rules, heading, memory = program.partition(f"\n{_HEADING}\n")
    if not heading:
        return program, {}
    display = memory.split("REMEMBERED = ", 1)[1].split("\n\n", 1)[0]
    return rules.replace(_RULES, _STEP, 1), ast.literal_eval(display)


def _usual(seen: Mapping[Any, int]) -> Any:
    """Return the commonest outcome, the lowest of several."""
    return min(seen, key=lambda outcome: (-seen[outcome], outcome))


def _plain(dataset: Dataset, name: str) -> list[Any]:
    """Return the values of a field as integers or tuples of integers."""
    space = dataset.action_space if name == "actions" else dataset.observation_space
    rows = len(dataset)
    parts = [dataset.columns[leaf.name].reshape(rows, -1) for leaf in space.leaves(name)]
    values = np.concatenate(parts, axis=1).astype(np.int64).tolist()
    return (
        [row[0] for row in values] if space.kind == "discrete" else [tuple(row) for row in values]
    )


def _key(space: Space, value: str) -> str:
    """Write an expression that turns a value into something to look up."""
    if space.kind == "discrete":
        return value
    if space.kind == "tuple":
        return value
    return f"tuple({value}.ravel())" if len(space.shape) > 1 else f"tuple({value})"


LEAST_COUNT = 3
"""How often an outcome must be seen to be remembered where outcomes vary."""

SAMPLED = 0.8

CHANCE = (
    "Chance decides what follows: CHANCES says how often each step was seen, `outcomes` lists "
    "what may happen, and `step` answers with the likeliest."
)

GUESS = "That the episode ends in one state which no transition led to is a guess."

VARIANTS = (
    Variant(),
    Variant(rank=1),
    Variant(shapes=False),
    Variant(blocks=False),
    Variant(rank=2),
)

__all__ = ["VARIANTS", "improve", "induce", "supports"]


def induce(fit: Dataset, *, variant: int, rng: np.random.Generator) -> str:
    """Return a program that explains transitions of a dataset that `supports` accepts.

    Variant 0 is the shortest description. Of the others, every second one
    adds a guess about a state that was never seen; the rest change what may be
    used, or take the next best reading of the state, and once all were had,
    fit the rules to some of the episodes, drawn at random.
    """
    seen = Transitions.of(fit)
    if variant == 0 and (board := fit_board(fit, seen)):
        outcomes = board_outcomes(board, seen, VARIANTS[0])
        return write_board(board, outcomes, seen.frame, seen.rewards, seen_findings(seen))
    if variant % 2 and (guessed := _guess(seen, variant // 2)):
        return _written(fit, seen, guessed, GUESS)
    number = (variant + 1) // 2
    options = VARIANTS[number % len(VARIANTS)]
    part = seen if number < len(VARIANTS) else seen.part(_some_episodes(fit, rng))
    if number == 0 and (drawn := _drawn(fit, seen)):
        return write_program(drawn, title(drawn), findings(seen, drawn, CHANCE))
    return _written(fit, seen, _model(part, fit_dynamics(part, options), options))


def _drawn(fit: Dataset, seen: Transitions) -> DiscreteModel | None:
    """Return the model in which chance decides, where that foresees other trajectories better."""
    options = VARIANTS[0]
    if not seen.is_noisy or not (chances := fit_chances(seen, options)):
        return None

    def by_chance(part: Transitions) -> Predict | None:
        found = fit_chances(part, options)
        return found.predict if found else None

    def by_rules(part: Transitions) -> Predict:
        return _predict(_model(part, fit_dynamics(part, options), options))

    if best(fit, seen, [by_chance, by_rules]):
        return None
    return DiscreteModel(seen.frame, chances.dynamics, chances.outcomes, seen.rewards, chances)


def _predict(model: DiscreteModel) -> Predict:
    """Return what a model foresees, as a function."""

    def predict(before: np.ndarray, action: np.ndarray) -> Foreseen:
        scene = model.dynamics.predict(before, action)
        scene = model.outcomes.predict(scene, model.dynamics.sizes)
        rewards = np.array(model.rewards)[scene.reward]
        if model.formula:
            rewards = rewards + model.formula.values(action, scene.old, scene.new)
        return join(scene.new, model.dynamics.layout), rewards, scene.done

    return predict


def _model(part: Transitions, dynamics: FactorDynamics, options: Variant) -> DiscreteModel:
    """Add the rules of termination and reward to those of motion."""
    scene, noise = scene_of(part, dynamics)
    outcomes = fit_outcomes(part, scene, dynamics.sizes, options, noise)
    model = DiscreteModel(part.frame, dynamics, outcomes, part.rewards)
    old, new = (split(state, dynamics.layout) for state in (part.before, part.after))
    formula = fit_formula(part.action, old, new, part.paid, dynamics.sizes)
    if formula is None:
        return model
    rest = part.paying(part.paid - formula.values(part.action, old, new))
    outcomes = fit_outcomes(rest, scene, dynamics.sizes, options, noise)
    few = 2 * len(rest.rewards) <= len(part.rewards)
    if not few or formula.bits + outcomes.bits >= model.outcomes.bits:
        return model
    return DiscreteModel(part.frame, dynamics, outcomes, rest.rewards, formula=formula)


def _guess(seen: Transitions, rank: int) -> DiscreteModel | None:
    """Return the shortest description that ends episodes in a state never seen, if there is one."""
    options = VARIANTS[0]
    dynamics = fit_dynamics(seen, options)
    imagined = with_an_end(seen, dynamics, rank)
    return _model(imagined, dynamics, options) if imagined else None


def _written(fit: Dataset, seen: Transitions, model: DiscreteModel, *more: str) -> str:
    """Write the program of a model, which remembers what its rules do not foresee."""
    program = write_program(model, title(model), findings(seen, model, *more))
    least = LEAST_COUNT if seen.is_noisy else 1
    wrong = _wrong(seen, model)[seen.rows]
    return remember(program, usual_outcomes(fit, wrong, least=least), fit)


def improve(program: str, fit: Dataset, wrong: np.ndarray) -> str:
    """Return the program with the usual outcome of every situation in a mask of rows."""
    return remember(program, usual_outcomes(fit, wrong), fit)


def _some_episodes(dataset: Dataset, rng: np.random.Generator) -> np.ndarray:
    """Return the mask of most episodes, at least one."""
    numbers = np.unique(dataset.columns["episodes"])
    size = max(1, round(SAMPLED * len(numbers)))
    chosen = rng.choice(numbers, size=size, replace=False)
    mask: np.ndarray = np.isin(dataset.columns["episodes"], chosen)
    return mask


def _wrong(seen: Transitions, model: DiscreteModel) -> np.ndarray:
    """Say which transitions a model does not foresee."""
    after, rewards, done = _predict(model)(seen.before, seen.action)
    same = (after == seen.after).all(axis=1)
    wrong: np.ndarray = ~same | (done != seen.done) | (np.abs(rewards - seen.paid) > EXACT)
    return wrong
