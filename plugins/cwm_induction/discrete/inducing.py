"""Programs for environments whose observations are few integers, from transitions alone."""

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.discrete.board import fit_board
from cwm_induction.discrete.board_outcomes import board_outcomes
from cwm_induction.discrete.board_text import write_board
from cwm_induction.discrete.choice import Answer, Predict, best
from cwm_induction.discrete.drift import fit_chances
from cwm_induction.discrete.dynamics import Dynamics
from cwm_induction.discrete.emission import write_program
from cwm_induction.discrete.exceptions import Options
from cwm_induction.discrete.factors import join, split
from cwm_induction.discrete.findings import findings, seen_findings, title
from cwm_induction.discrete.formulas import EXACT, fit_formula
from cwm_induction.discrete.guesses import with_an_end
from cwm_induction.discrete.layouts import fit_dynamics
from cwm_induction.discrete.memory import remember, usual_outcomes
from cwm_induction.discrete.outcomes import fit_outcomes, scene_of
from cwm_induction.discrete.transitions import Transitions, supports
from cwm_induction.discrete.wording import Model

LEAST_COUNT = 3
"""How often an outcome must be seen to be remembered where outcomes vary."""

SAMPLED = 0.8

CHANCE = (
    "Chance decides what follows: CHANCES says how often each step was seen, `outcomes` lists "
    "what may happen, and `step` answers with the likeliest."
)

GUESS = "That the episode ends in one state which no transition led to is a guess."

VARIANTS = (
    Options(),
    Options(rank=1),
    Options(shapes=False),
    Options(blocks=False),
    Options(rank=2),
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


def _drawn(fit: Dataset, seen: Transitions) -> Model | None:
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
    return Model(seen.frame, chances.dynamics, chances.outcomes, seen.rewards, chances)


def _predict(model: Model) -> Predict:
    """Return what a model foresees, as a function."""

    def predict(before: np.ndarray, action: np.ndarray) -> Answer:
        scene = model.dynamics.predict(before, action)
        scene = model.outcomes.predict(scene, model.dynamics.sizes)
        rewards = np.array(model.rewards)[scene.reward]
        if model.formula:
            rewards = rewards + model.formula.values(action, scene.old, scene.new)
        return join(scene.new, model.dynamics.layout), rewards, scene.done

    return predict


def _model(part: Transitions, dynamics: Dynamics, options: Options) -> Model:
    """Add the rules of termination and reward to those of motion."""
    scene, noise = scene_of(part, dynamics)
    outcomes = fit_outcomes(part, scene, dynamics.sizes, options, noise)
    model = Model(part.frame, dynamics, outcomes, part.rewards)
    old, new = (split(state, dynamics.layout) for state in (part.before, part.after))
    formula = fit_formula(part.action, old, new, part.paid, dynamics.sizes)
    if formula is None:
        return model
    rest = part.paying(part.paid - formula.values(part.action, old, new))
    outcomes = fit_outcomes(rest, scene, dynamics.sizes, options, noise)
    few = 2 * len(rest.rewards) <= len(part.rewards)
    if not few or formula.bits + outcomes.bits >= model.outcomes.bits:
        return model
    return Model(part.frame, dynamics, outcomes, rest.rewards, formula=formula)


def _guess(seen: Transitions, rank: int) -> Model | None:
    """Return the shortest description that ends episodes in a state never seen, if there is one."""
    options = VARIANTS[0]
    dynamics = fit_dynamics(seen, options)
    imagined = with_an_end(seen, dynamics, rank)
    return _model(imagined, dynamics, options) if imagined else None


def _written(fit: Dataset, seen: Transitions, model: Model, *more: str) -> str:
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


def _wrong(seen: Transitions, model: Model) -> np.ndarray:
    """Say which transitions a model does not foresee."""
    after, rewards, done = _predict(model)(seen.before, seen.action)
    same = (after == seen.after).all(axis=1)
    wrong: np.ndarray = ~same | (done != seen.done) | (np.abs(rewards - seen.paid) > EXACT)
    return wrong
