"""Programs for environments whose observations are few integers, from transitions alone."""

import numpy as np

from cwm_cli.transitions import Dataset
from cwm_induction.discrete_emission import Model, write_program
from cwm_induction.discrete_exceptions import Options
from cwm_induction.discrete_factors import Transitions, join, supports
from cwm_induction.discrete_findings import findings, title
from cwm_induction.discrete_layouts import fit_dynamics
from cwm_induction.discrete_memory import remember, usual_outcomes
from cwm_induction.discrete_outcomes import fit_outcomes

LEAST_COUNT = 3
"""How often an outcome must be seen to be remembered where outcomes vary."""

SAMPLED = 0.8

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

    Variant 0 is the shortest description; the others change what may be used,
    or take the next best reading of the state. Once all were had, rules are
    fitted to some of the episodes, drawn at random.
    """
    options = VARIANTS[variant % len(VARIANTS)]
    seen = Transitions.of(fit)
    part = seen if variant < len(VARIANTS) else seen.part(_some_episodes(fit, rng))
    dynamics = fit_dynamics(part, options)
    model = Model(seen.frame, dynamics, fit_outcomes(part, dynamics, options), seen.rewards)
    program = write_program(model, title(model), findings(seen, model))
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
