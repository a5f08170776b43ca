"""Residuals of one-step predictions: their size in each component, and their causes.

Residuals are white if they are correlated neither with the observation, the action or earlier
residuals, nor with the residuals of similar rows. A program with white residuals at the noise
level explains everything except noise.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import ndtr

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation.component_scores import ComponentScore
from cwm_cli.evaluation.history import MAX_P_VALUE, RecordedPast
from cwm_cli.evaluation.metric import MOST_CLASSES, Evaluation, close
from cwm_cli.evaluation.noise import (
    NoiseLevel,
    label_columns,
    outliers,
    prediction_inputs,
    rounding_unit,
)

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions

MIN_SHARE = 0.03
"""Smaller shares of the squared residuals do not count as dependence, however significant: they
change the error by 1.5 %."""

MAX_SENSOR_SHARE = 0.1
"""The same for earlier errors, and for a component of the observation that has the noise of a
sensor: they change the error by 5 %, so that it stays within `MAX_EXCESS`."""

MAX_FILTER_GAIN = 0.15
"""If earlier rows lower the noise by more than this share, a program needs memory to filter it."""

SIMILAR = "observation and action together"
"""Name of the dependence if similar rows have similar residuals."""

LAGS = 3
"""Earlier residuals that are compared."""


def component_scores(
    predictions: "Predictions | Columns",
    rows: Dataset,
    levels: Mapping[int, NoiseLevel],
    *,
    names: Sequence[str] = (),
    remembers: bool = False,
) -> tuple[ComponentScore, ...]:
    """Measure predictions of each component, and of rewards with more than 20 values.

    Args:
        predictions: One or several answers for each row; numbers are compared by their mean.
        rows: The recorded rows, in the order of their episodes.
        levels: Noise levels by component, which may be estimated from other rows.
        names: Names of the components, by default from the table or the space.
        remembers: Whether the program has memory, so that it can use earlier rows.

    Returns:
        A score per component; empty without rows that go on, and for texts.
    """
    going = ~rows.columns["terminations"]
    is_text = any(leaf.space.kind == "text" for leaf in rows.observation_space.leaves(""))
    if is_text or not going.any():
        return ()
    history = RecordedPast(rows)
    context = _Context(history, going, names or names_of(rows), remembers=remembers)
    labels = label_columns(rows)
    scores = []
    for column in _columns(predictions, rows, history, labels):
        level = levels.get(column.number)
        scores.append(context.score(column, level))
    return tuple(scores)


def with_components(
    found: Evaluation,
    rows: Dataset,
    levels: Mapping[int, NoiseLevel],
    *,
    names: Sequence[str] = (),
    remembers: bool = False,
) -> Evaluation:
    """Add the measures of each component to the score of an evaluation that succeeded."""
    if found.answers is None or found.score.components is not None:
        return found
    measures = component_scores(found.answers, rows, levels, names=names, remembers=remembers)
    return found._replace(score=found.score.model_copy(update={"components": measures}))


def names_of(rows: Dataset) -> tuple[str, ...]:
    """Return the names of the components: the columns of a table, or numbers."""
    observed = rows.metadata.get("env_args", {}).get("observed", ())
    size = sum(leaf.space.size for leaf in rows.observation_space.leaves(""))
    if len(observed) == size:
        return tuple(str(name) for name, *_ in observed)
    return tuple(f"component {number}" for number in range(size))


def action_names(rows: Dataset, size: int) -> tuple[str, ...]:
    """Return the names of the parts of an action."""
    acted = rows.metadata.get("env_args", {}).get("acted", ())
    if len(acted) == size:
        return tuple(str(name) for name, *_ in acted)
    return ("the action",) if size == 1 else tuple(f"action {n}" for n in range(size))


class _Column(NamedTuple):
    """A component: recorded values, the guess without a model, and predictions (rows,).

    `key` names its tolerance.
    """

    number: int
    recorded: np.ndarray
    guess: np.ndarray
    predicted: np.ndarray
    is_label: bool = False
    key: str = "reward"


def _columns(
    predictions: "Predictions | Columns",
    rows: Dataset,
    history: RecordedPast,
    labels: Mapping[int, tuple[str, ...]],
) -> Iterator[_Column]:
    """Yield the components of the next observation, and the reward if it has many values."""
    if isinstance(predictions, dict):
        answers = [(predictions, np.ones(len(rows)))]
    else:
        answers = list(predictions.answers())
    number = 0
    for leaf in rows.observation_space.leaves("next_observations"):
        mean = _expected([(columns[leaf.name], shares) for columns, shares in answers])
        for place in range(leaf.space.size):
            is_label = number in labels
            yield _Column(
                number,
                history.after[:, number],
                history.before[:, number],
                most_likely_labels(answers, leaf.name, place) if is_label else mean[:, place],
                is_label,
                str(number),
            )
            number += 1
    rewards = rows.columns["rewards"]
    if rows.has_rewards and len(np.unique(rewards)) > MOST_CLASSES:
        mean = _expected([(columns["rewards"], shares) for columns, shares in answers])
        yield _Column(number, rewards, np.full(len(rows), rewards.mean()), mean[:, 0])


def most_likely_labels(
    answers: Sequence[tuple[Columns, np.ndarray]], name: str, place: int
) -> np.ndarray:
    """Return the most probable value of a label in each row (rows,).

    Args:
        answers: Columns of predictions, with the probability of each row (rows,).
        name: Column of the label.
        place: Position of the label in the column.
    """
    rows = len(answers[0][1])
    values = np.stack([columns[name].reshape(rows, -1)[:, place] for columns, _ in answers])
    shares = np.stack([shares for _, shares in answers])
    known = np.unique(values)
    votes = [np.where(values == value, shares, 0.0).sum(axis=0) for value in known]
    return np.asarray(known[np.argmax(votes, axis=0)], np.float64)


def _expected(answers: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the mean of several answers (rows, components), by their shares (rows,)."""
    total: np.ndarray = np.sum(
        [
            np.where(shares[:, None] > 0, values.reshape(len(shares), -1), 0) * shares[:, None]
            for values, shares in answers
        ],
        axis=0,
    )
    return total


class _Context:
    """What the residuals of rows may depend on."""

    def __init__(
        self, history: RecordedPast, going: np.ndarray, names: Sequence[str], *, remembers: bool
    ) -> None:
        self.history, self.going, self.remembers = history, going, remembers
        self.tolerances = history.rows.tolerances
        size = history.before.shape[1]
        self.names = [*names[:size], "reward"]
        self.inputs = list(zip(self.names[:size], history.before.T, strict=True))
        acted = action_names(history.rows, history.actions.shape[1])
        for name, values in zip(acted, history.actions.T, strict=True):
            some = np.unique(values)
            if 2 < len(some) <= 8:  # perhaps labels
                self.inputs += [(name, (values == value).astype(float)) for value in some]
            else:
                self.inputs.append((name, values))
        points = prediction_inputs(history)
        _, near = cKDTree(points).query(points, k=min(8, len(points)))
        self._near = near[:, 1:] if len(points) > 1 else near[:, :0]

    def score(self, column: _Column, level: NoiseLevel | None) -> ComponentScore:
        """Measure the predictions of a component."""
        going = self.going
        recorded, predicted = column.recorded[going], column.predicted[going]
        fields: dict[str, Any] = {
            "name": self.names[column.number],
            "number": column.number,
            "rows": int(going.sum()),
        }
        tolerance = self.tolerances.get(column.key)
        right = close(predicted, recorded, tolerance)
        is_exact = bool(right.all())
        is_whole = bool(np.all(recorded == np.rint(recorded)))
        if is_whole and not column.is_label:
            right = np.abs(predicted - recorded) < 0.5  # a mean is rounded
        share = float(right.mean())
        if level is not None:
            noise, filtered = (level.reachable(remembers=each) for each in (self.remembers, True))
            fields["noise"] = noise
            if filtered < (1 - MAX_FILTER_GAIN) * noise:
                fields["filtered"] = filtered
        is_sensor = level is not None and level.is_sensor
        unit = level.unit if level is not None else rounding_unit(recorded)
        fields |= {"exact": is_exact, "unit": unit, "is_sensor": is_sensor}
        fields |= {"right": share} if is_whole else {}
        if not np.isfinite(predicted).all():
            return ComponentScore(**fields, explained=0.0, is_white=False)
        if column.is_label:
            _, counts = np.unique(recorded, return_counts=True)
            common = float(counts.max() / counts.sum())
            usual = max(common, float(np.mean(column.guess[going] == recorded)))
            explained, found = _share(1 - share, 1 - usual), []
        else:
            residual = column.recorded - column.predicted
            square = float(np.mean(residual[going] ** 2))
            explained = _share(square, float(np.mean((recorded - column.guess[going]) ** 2)))
            fields |= {"rmse": square**0.5, "r2": _share(square, float(recorded.var()))}
            noise = fields.get("noise", 0.0) if level is not None and level.is_noisy else 0.0
            found = [] if is_exact else self._dependences(residual, noise, is_sensor=is_sensor)
            fields |= _without_outliers(residual[going])
            if not found and level is not None and not is_exact:
                fields["noise"] = min(fields["noise"], fields["rmse"])
        return ComponentScore(
            **fields,
            explained=explained,
            is_white=not found,
            depends_on=tuple(dict.fromkeys(name for name, _ in found)),
            p_value=min((p for _, p in found), default=1.0),
        )

    def _dependences(
        self, residual: np.ndarray, noise: float, *, is_sensor: bool
    ) -> list[tuple[str, float]]:
        """Return the names and p-values of the causes of residuals, the strongest first.

        The cause of errors below the noise level is compared with the noise.
        """
        going, step = self.going, self.history.step
        square = float(np.mean(residual[going] ** 2))
        part = square / max(square, noise**2, 1e-300)
        if (far := outliers(residual[going])).any():  # a few values must not decide
            bound = np.abs(residual[going][~far]).max()
            residual = np.clip(residual, -bound, bound)
        # The noise of sensors is part of the observation, so that it biases the residuals of the
        # true law, unless memory filters it (errors in variables).
        biased = set(self.names[: self.history.before.shape[1]] if is_sensor else [])
        biased -= set(self.names if self.remembers else [])
        tests = [(name, _correlation(residual[going], x[going])) for name, x in self.inputs]
        tests.append(("a constant offset", _offset(residual[going])))
        if self.remembers:
            for lag in range(1, LAGS + 1):
                later = np.flatnonzero(going & (step >= lag))
                own = _correlation(residual[later], residual[later - lag])
                name = f"the error {lag} step{'s' * (lag > 1)} earlier"
                biased.add(name)
                tests.append((name, own))
        tests.append((SIMILAR, self._similar(residual)))
        found = []
        for name, (share, p_value) in tests:
            corrected = min(1.0, p_value * len(tests))
            least = MAX_SENSOR_SHARE if name in biased else MIN_SHARE
            if corrected < MAX_P_VALUE and share * part > least:
                found.append((share, name, corrected))
        # A named cause is more useful than the test of similar rows, which has no name.
        found.sort(key=lambda one: (one[1] == SIMILAR, -one[0]))
        return [(name, p) for _, name, p in found]

    def _similar(self, residual: np.ndarray) -> tuple[float, float]:
        """Return the share of the squared residuals that similar rows have in common.

        The residuals of distant rows are uncorrelated, so that the mean product with the nearest
        row is normal with variance 1 / rows, twice that if all pairs are mutual.
        """
        place = np.arange(len(residual))
        # Rows nearby in time are similar, too, and share the noise of a sensor.
        apart = (np.abs(self._near - place[:, None]) > LAGS) & self.going[self._near]
        some = np.flatnonzero(self.going & apart.any(axis=1))
        if len(some) < 2:
            return 0.0, 1.0
        other = self._near[some, apart[some].argmax(axis=1)]
        centred = residual - residual[self.going].mean()
        square = float(np.mean(centred[self.going] ** 2))
        if square <= 0:
            return 0.0, 1.0
        share = float(np.mean(centred[some] * centred[other])) / square
        # Heavy tails make the mean product less certain than for normal residuals.
        spread = float(np.std(centred[some] * centred[other])) / square
        z = share / (max(1.0, spread) * np.sqrt(2 / len(some)))
        return share, float(ndtr(-z))


def _correlation(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the squared correlation of two columns, and its p-value for large numbers of rows."""
    if len(one) < 10 or one.std() <= 0 or other.std() <= 0:
        return 0.0, 1.0
    size = float(np.corrcoef(one, other)[0, 1])
    # Fisher's transformation is normal with variance 1 / (rows - 3).
    z = abs(np.arctanh(np.clip(size, 1e-12 - 1, 1 - 1e-12))) * np.sqrt(len(one) - 3)
    return size**2, float(2 * ndtr(-z))


def _without_outliers(residual: np.ndarray) -> dict[str, float]:
    """Return the number of outliers, and the root mean square error without them."""
    far = outliers(residual)
    if not far.any():
        return {}
    return {"outliers": int(far.sum()), "typical": float(np.sqrt(np.mean(residual[~far] ** 2)))}


def _offset(residual: np.ndarray) -> tuple[float, float]:
    """Return the share of the squared residuals that their mean explains, and its p-value."""
    square = float(np.mean(residual**2))
    if square <= 0 or len(residual) < 10:
        return 0.0, 1.0
    z = abs(residual.mean()) * np.sqrt(len(residual)) / max(residual.std(), 1e-300)
    return float(residual.mean() ** 2 / square), float(2 * ndtr(-z))


def _share(left: float, total: float) -> float:
    """Return 1 - left / total; 1 or 0 if nothing was to be explained."""
    if total <= 0:
        return 1.0 if left <= 0 else 0.0
    return 1 - left / total
