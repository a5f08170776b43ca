"""Wrong values of a table of transitions, with the names and labels of its columns."""

from collections.abc import Iterator, Sequence

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import components
from cwm_cli.evaluation.residuals import action_names, names_of
from cwm_cli.text import clean


def worst_values(
    rows: Dataset, predictions: Columns, count: int, places: np.ndarray | None = None
) -> list[str]:
    """Locate and write the wrong values with the largest errors, one for each row.

    Args:
        rows: Recorded rows of a table; values within their tolerances are right.
        predictions: One answer for each row.
        count: Maximum number of values.
        places: Row numbers of the rows in the dataset; by default they are counted from 0.

    Returns:
        Texts such as "row 312 (episode 2, step 40): level_m is 9.9, predicted 1.2, with
        level_m = 1.1, valve = open".
    """
    (leaf, *_) = rows.observation_space.leaves("next_observations")
    recorded = rows.columns[leaf.name].reshape(len(rows), -1).astype(np.float64)
    predicted = predictions[leaf.name].reshape(len(rows), -1).astype(np.float64)
    wrong = ~components(predictions, rows)[0] & ~rows.columns["terminations"][:, None]
    spread = recorded.std(axis=0)
    size = np.abs(predicted - recorded) / np.where(spread > 0, spread, 1.0)
    size = np.where(wrong, np.nan_to_num(size, nan=np.inf), -1.0)
    order = np.argsort(-size.max(axis=1), kind="stable")
    chosen = [row for row in order[:count].tolist() if size[row].max() >= 0]
    episodes = rows.columns["episodes"]
    texts = []
    for row in chosen:
        part = int(np.argmax(size[row]))
        step = row - int(np.argmax(episodes == episodes[row]))
        number = row if places is None else int(places[row])
        name, *labels = _columns(rows, "observed")[part]
        values = (_text(each[row, part], labels) for each in (recorded, predicted))
        texts.append(
            f"row {number:,} (episode {episodes[row]}, step {step}): {name} is "
            f"{', predicted '.join(values)}, with {', '.join(_inputs(rows, row))}"
        )
    return [clean(text) for text in texts]


def _inputs(rows: Dataset, row: int) -> Iterator[str]:
    """Yield the components of the observation and the action of a row, with names and labels."""
    for stem, space, key in (
        ("observations", rows.observation_space, "observed"),
        ("actions", rows.action_space, "acted"),
    ):
        values = np.concatenate(
            [rows.columns[leaf.name][row].reshape(-1) for leaf in space.leaves(stem)]
        )
        most = 6  # columns of a wide table
        for (name, *labels), value in list(zip(_columns(rows, key), values, strict=True))[:most]:
            yield f"{name} = {_text(float(value), labels)}"


def _columns(rows: Dataset, key: str) -> Sequence[Sequence[str]]:
    """Return name and labels of each column of the observation (`observed`) or action (`acted`)."""
    known: Sequence[Sequence[str]] = rows.metadata.get("env_args", {}).get(key, ())
    if key == "observed":
        return known or [[name] for name in names_of(rows)]
    size = sum(leaf.space.size for leaf in rows.action_space.leaves("actions"))
    return known if len(known) == size else [[name] for name in action_names(rows, size)]


def _text(value: float, labels: Sequence[str]) -> str:
    """Write a value, as its label if it has one."""
    if labels and value == int(value) and 0 <= value < len(labels):
        return labels[int(value)]
    return f"{value:.6g}"
