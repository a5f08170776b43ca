"""Programs for environments whose observations are few integers, from transitions alone."""

import numpy as np

from cwm_cli.transitions import Dataset
from cwm_induction.discrete_dynamics import Dynamics
from cwm_induction.discrete_emission import Model, write_program
from cwm_induction.discrete_exceptions import Options
from cwm_induction.discrete_factors import join
from cwm_induction.discrete_findings import findings, title
from cwm_induction.discrete_guesses import with_an_end
from cwm_induction.discrete_layouts import fit_dynamics
from cwm_induction.discrete_memory import remember, usual_outcomes
from cwm_induction.discrete_outcomes import fit_outcomes
from cwm_induction.discrete_transitions import Transitions, supports

LEAST_COUNT = 3
"""How often an outcome must be seen to be remembered where outcomes vary."""

SAMPLED = 0.8

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
    if variant % 2 and (guessed := _guess(seen, variant // 2)):
        return _written(fit, seen, guessed, GUESS)
    number = (variant + 1) // 2
    options = VARIANTS[number % len(VARIANTS)]
    part = seen if number < len(VARIANTS) else seen.part(_some_episodes(fit, rng))
    return _written(fit, seen, _model(part, fit_dynamics(part, options), options))


def _model(part: Transitions, dynamics: Dynamics, options: Options) -> Model:
    """Add the rules of termination and reward to those of motion."""
    return Model(part.frame, dynamics, fit_outcomes(part, dynamics, options), part.rewards)


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
    scene = model.dynamics.predict(seen.before, seen.action)
    scene = model.outcomes.predict(scene, model.dynamics.sizes)
    after = join(scene.new, model.dynamics.layout)
    same = (after == seen.after).all(axis=1)
    wrong: np.ndarray = ~same | (scene.done != seen.done) | (scene.reward != seen.codes)
    return wrong
