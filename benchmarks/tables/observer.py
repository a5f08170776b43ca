"""Ideal observers: one-step prediction by someone who knows the law.

Two predictors see only the recorded rows up to now:

- The plain predictor takes the last recorded observation as the true state. Hidden
  parts (delay lines, a relay) follow from the recorded actions.
- The filtered predictor is a bootstrap particle filter (Gordon, Salmond and Smith
  1993) with the kernel shrinkage of Liu and West (2001) for continuous states.

Both predict the next recorded value: the mean for numbers, the probability of true
for booleans and the most probable code for labels. A boolean enters the RMSE as 0 or
1. A wrong label counts as error 1, so its RMSE is the square root of the error rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.tables.recording import Array, Column, Law, Recording, record_all

#: Shrinkage of the Liu-West kernel: larger values jitter the particles less.
SHRINKAGE = 0.985
#: Lower bound of the jitter as a share of the sensor noise; it prevents the collapse
#: of the particles to one point.
MIN_JITTER = 0.03
#: Probability of a category that differs from the particle although its sensor is exact.
EXACT_FLIP = 1e-6


def normal_cdf(values: Array) -> Array:
    """Approximate the normal distribution function (Page 1977), error below 2e-4."""
    with np.errstate(over="ignore"):
        inner = np.sqrt(2.0 / np.pi) * (values + 0.044715 * values**3)
    return np.asarray(0.5 * (1.0 + np.tanh(inner)))


def log_likelihood(columns: Sequence[Column], recorded: Array, true: Array) -> Array:
    """Return the log-likelihood of one recorded row for each true observation.

    Args:
        columns: The observation columns.
        recorded: Shape (columns,).
        true: True observations of the particles, shape (n, columns).
    """
    total = np.zeros(len(true))
    for index, column in enumerate(columns):
        total += _column_likelihood(column, float(recorded[index]), true[:, index])
    return total


def _column_likelihood(column: Column, value: float, true: Array) -> Array:
    if column.is_category:
        flip = max(column.noise, EXACT_FLIP)
        return np.log(np.where(true == value, 1.0 - flip, flip))
    unit = 1.0 if column.form == "integer" else 10.0**-column.decimals
    deviation = np.hypot(column.deviation(true), 0.29 * unit)
    scaled = (value - true) / deviation
    if value > column.lowest:
        return np.asarray(-0.5 * scaled**2 - np.log(deviation))
    censored = normal_cdf((value + 0.5 * unit - true) / deviation)
    return np.asarray(np.log(np.maximum(censored, 1e-30)))


def predict(law: Law, states: Array, noisy: bool, rng: np.random.Generator) -> Array:
    """Return the predicted recorded observation of equally weighted states."""
    true = law.observe(states)
    prediction = true.mean(axis=0)
    for index, column in enumerate(law.observations):
        if column.form == "label":
            values, counts = np.unique(true[:, index], return_counts=True)
            prediction[index] = values[counts.argmax()]
        elif column.form == "boolean" and noisy:
            prediction[index] += column.noise * (1.0 - 2.0 * prediction[index])
        elif noisy and np.isfinite(column.lowest):
            prediction[index] = column.record(np.tile(true[:, index], 4), True, rng).mean()
    return np.asarray(np.round(prediction, 10))


def _resample(states: Array, log_weights: Array, rng: np.random.Generator) -> Array:
    weights = np.exp(log_weights - log_weights.max())
    positions = (rng.random() + np.arange(len(states))) / len(states)
    chosen = np.searchsorted(np.cumsum(weights / weights.sum()), positions)
    return states[np.minimum(chosen, len(states) - 1)]


def _jitter(law: Law, states: Array, rng: np.random.Generator) -> Array:
    """Spread the continuous components, with unchanged mean and variance."""
    states = states.copy()
    smooth = list(law.smooth)
    if not smooth:
        return states
    true = law.observe(states)
    sensor = np.zeros(len(smooth))
    for position, index in enumerate(smooth):
        column = law.observations[law.observed.index(index) if law.observed else index]
        sensor[position] = column.deviation(true[:, position]).mean()
    part = states[:, smooth]
    width = np.sqrt(1.0 - SHRINKAGE**2) * part.std(axis=0)
    part = SHRINKAGE * part + (1.0 - SHRINKAGE) * part.mean(axis=0)
    width = np.maximum(width, MIN_JITTER * sensor)
    states[:, smooth] = part + width * rng.standard_normal(part.shape)
    return states


def _start(
    law: Law, recorded: Array, spread: bool, particles: int, rng: np.random.Generator
) -> Array:
    """Return states that agree with the first recorded row of a segment."""
    rows = np.tile(recorded, (particles, 1))
    if spread:
        rows = record_all(law.observations, rows, True, rng)
    return law.place(law.initial(particles, rng).astype(float), rows)


def one_step(
    law: Law, recording: Recording, noisy: bool, filtered: bool, particles: int, seed: int
) -> Array:
    """Predict the row after each scored row from the rows up to it.

    Args:
        law: The true rule.
        recording: Recorded rows; see `scored_rows` for the scored ones.
        noisy: Whether the recording contains sensor noise. Without noise, both
            predictors are the same: recorded values are exact, hidden parts are inferred.
        filtered: Whether to use the particle filter.
        particles: Number of copies of the state.
        seed: Seed of the particles.

    Returns:
        Predicted observations, shape (scored rows, columns).
    """
    rng = np.random.default_rng([seed, 5])
    scored = set(scored_rows(law, recording).tolist())
    predictions: list[Array] = []
    states = np.zeros((0, 0))
    for row in range(len(recording.segments) - 1):
        if row == 0 or recording.segments[row] != recording.segments[row - 1]:
            states = _start(law, recording.observations[row], noisy and filtered, particles, rng)
        if recording.segments[row + 1] != recording.segments[row]:
            continue
        states = law.step(states, recording.actions[row], rng).astype(float)
        if row in scored:
            predictions.append(predict(law, states, noisy, rng))
        states = _update(law, states, recording.observations[row + 1], noisy, filtered, rng)
    return np.array(predictions)


def scored_rows(law: Law, recording: Recording) -> npt.NDArray[np.int64]:
    """Return the rows whose next row is predicted for the floors.

    Transitions across segments are left out, and so are the first `law.warm_up`
    transitions of each segment.
    """
    segments = recording.segments
    rows = np.arange(len(segments))
    first = np.searchsorted(segments, segments)
    inside = np.append(segments[1:] == segments[:-1], False)
    return rows[inside & (rows - first >= law.warm_up)]


def wrong_shares(predictions: Array, recorded: Array) -> Array:
    """Return the share of wrong values of each column, after rounding to codes."""
    return np.asarray((np.rint(predictions) != recorded).mean(axis=0))


def rmses(law: Law, predictions: Array, recorded: Array) -> Array:
    """Return the root mean squared error of each observation column."""
    squares = ((predictions - recorded) ** 2).mean(axis=0)
    labels = np.array([column.form == "label" for column in law.observations])
    return np.sqrt(np.where(labels, wrong_shares(predictions, recorded), squares))


def _update(
    law: Law,
    states: Array,
    recorded: Array,
    noisy: bool,
    filtered: bool,
    rng: np.random.Generator,
) -> Array:
    """Return states that take the new recorded row into account."""
    if filtered or not noisy:
        weights = log_likelihood(law.observations, recorded, law.observe(states))
        states = _resample(states, weights, rng)
    if noisy and filtered:
        return _jitter(law, states, rng)
    return law.place(states, np.tile(recorded, (len(states), 1)))
