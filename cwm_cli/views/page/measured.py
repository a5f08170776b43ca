"""Sections of a page with new predictions of the best model of a run.

The model predicts every recorded row, and follows recorded episodes on its own predictions; a
program does so in the sandbox, like `cwm evaluate`. If that fails, a line gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.evaluate import EvaluationResult, Part, evaluate
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.envs.documented import documented_names
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import FollowedEpisode
from cwm_cli.evaluation.mismatches import wrong_parts
from cwm_cli.problems.feedback import Diagnosis
from cwm_cli.problems.feedback.diagnosis import ComparedQuantities
from cwm_cli.problems.feedback.separation import Quantity
from cwm_cli.runs.programs import ModelRun, ProgramRun
from cwm_cli.runs.progress import score_parts
from cwm_cli.runs.report import ChartLine, LineChart, Section, rounded, table, table_of, thinned
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import Run
from cwm_cli.text import clean
from cwm_cli.views.tables import component_grid
from cwm_cli.worlds.contract import component_names

ROLLOUTS, EPISODES = 10, 3
"""Number of rollouts for the open-loop error, and of episodes on the page."""

PARTS: Mapping[Part, str] = {"train": "train", "test": "held-out"}

RECORDED, PREDICTED = 0, 1
"""Tones of recorded and predicted values: blue and wide, vermilion and dashed."""

FEW_CELLS = 12
"""Observations with more integers are drawn as cells, not as lines."""

COMPONENTS = (
    "Root mean square error of one-step predictions, estimated noise level, R\N{SUPERSCRIPT TWO}, "
    "share of the squared change explained beyond persistence, and what the errors depend on."
)

MOST_CELLS, MOST_FRAMES = 400, 40
"""Maximum number of cells of an observation on the page, and of steps of an episode."""

KIND_WORDS = {
    "observation": "observation",
    "reward": "reward",
    "terminated": "end of the episode",
    "valid_actions": "valid actions",
}


def measured_sections(run: Run[Any, Any]) -> list[Section]:
    """Return the sections with new predictions of the best model of a run.

    Empty for runs without a model of an environment.
    """
    is_program = isinstance(run, ProgramRun) and (run.has_program or run.has_trained)
    is_other = isinstance(run, ModelRun) and not isinstance(run, ProgramRun) and run.has_model
    if not (is_program or is_other):
        return []
    assert isinstance(run, ModelRun)
    try:
        found = evaluate(run, rollout_count=ROLLOUTS, trajectory_count=EPISODES)
    except (CwmError, OSError) as error:
        return [_unable(str(error))]
    if found.failure is not None:
        return [_unable(f"the program failed: {found.failure.message}")]
    known = isinstance(run, SearchRun) and bool(run.scores())
    space = next(iter(found.rows.values())).observation_space
    documented = documented_names(getattr(run.header, "description", ""), space)
    names = [
        clean(name.replace("`", ""), limit=40)
        for name in documented or component_names(space, "observation")
    ]
    sections = [*_measures(found), *_followed(found, names), *_mistakes(found, names)]
    scores = {"train": found.scores.train, "held-out": found.scores.test}
    scored = {part: score for part, score in scores.items() if score is not None}
    if known or not scored:
        return sections
    return [Section("bars", "Parts of the score", score_parts(scored)), *sections]


def _unable(reason: str) -> Section:
    """Return a section with the reason why there are no predictions."""
    line = f"There are no predictions on this page: {clean(reason, limit=300)}"
    return Section("notes", "Predictions", {"lines": [line]})


def _measures(found: EvaluationResult) -> Iterator[Section]:
    """Yield the measures of each component, for each part of a table of transitions."""
    for part, each in found.found.items():
        if components := each.score.components:
            title = f"Components, {PARTS[part]}"
            yield Section(
                "table", title, table_of(component_grid(components, found.text)), COMPONENTS
            )


# --- predicted episodes


def _followed(found: EvaluationResult, names: Sequence[str]) -> Iterator[Section]:
    """Yield the charts of recorded episodes with open-loop predictions."""
    if not found.trajectories:
        return
    where = "held-out" if "test" in found.rows else "train"
    chance = found.trajectories[0].draws > 1
    about = (
        f"The model starts at the first observation of {where} episodes and then gets only the "
        "recorded actions and its own predictions."
    )
    if chance:
        draws = found.trajectories[0].draws
        about += f" The line is the median of {draws} samples, the band is 5 to 95 %."
    broke = [each.steps for each in found.rollouts if each.error is None]
    if broke:
        about += f" Some rollouts failed before step {broke[0]}."
    groups = [_episode(each, names) for each in found.trajectories]
    known = [(each.steps, each.error) for each in found.rollouts if each.error is not None]
    if len(known) >= 2:
        # Guessing the mean is far off the scale of small errors: draw it from 0.2 on.
        is_close = max(error for _, error in known) > 0.2
        guess = {"error of guessing the mean": 1.0 if is_close else None}
        label = "mean error (standard deviations)"
        drawn = LineChart("steps", label, [ChartLine.of("", known)], log_x=True, rules=guess)
        drift = [f"Mean error of {ROLLOUTS} rollouts", "chart", drawn.data()]
        groups.append({"title": "", "sections": [drift]})
    key = [
        {"name": "recorded", "tone": RECORDED, "wide": True},
        {"name": "predicted", "tone": PREDICTED},
    ]
    data = {"key": key, "groups": groups}
    yield Section("groups", "Predicted and recorded episodes", data, about)


class _Leaf(NamedTuple):
    """A component along an episode: recorded (steps + 1,) and predicted (steps + 1, samples)."""

    name: str
    recorded: np.ndarray
    predicted: np.ndarray
    is_real: bool


def _episode(trajectory: FollowedEpisode, names: Sequence[str]) -> dict[str, Any]:
    """Return the panels of an episode: a chart per component, or its cells."""
    rows = trajectory.rows
    leaves = [leaf.space for leaf in rows.observation_space.leaves("observations")]
    if any(s.kind == "text" or (not s.is_float and s.size > FEW_CELLS) for s in leaves):
        panels = list(_cells(trajectory))
    else:
        panels = []
        for each in _furthest(list(_components(trajectory, names))):
            steps = list(range(len(each.recorded)))
            values = each.recorded.tolist()
            recorded = ChartLine("recorded", steps, values, tone=RECORDED, wide=True)
            predicted = _predicted(each.predicted, range(len(each.predicted)))
            lines, staircase = [recorded, predicted], not each.is_real
            drawn = LineChart("step", "", lines, staircase=staircase, legend=False)
            panels.append([each.name, "chart", drawn.data()])
    rewards = rows.columns["rewards"]
    said = np.where(trajectory.alive, trajectory.columns["rewards"], np.nan)
    if len(np.unique(np.concatenate([rewards, said[np.isfinite(said)]]))) > 1:
        steps = list(range(1, len(rewards) + 1))
        recorded = ChartLine("recorded", steps, rewards.tolist(), tone=RECORDED, wide=True)
        lines = [recorded, _predicted(said, range(1, len(said) + 1))]
        drawn = LineChart("step", "", lines, staircase=True, legend=False)
        panels.append(["reward", "chart", drawn.data()])
    count = len(rows)
    title = f"Episode {int(rows.columns['episodes'][0])}, {count} step{'' if count == 1 else 's'}"
    return {"title": title, "about": _difference_words(trajectory), "sections": panels}


def _components(trajectory: FollowedEpisode, names: Sequence[str]) -> Iterator[_Leaf]:
    """Yield each number of an observation along an episode."""
    rows, steps, place = trajectory.rows, trajectory.steps, 0
    alive = trajectory.alive
    for leaf in rows.observation_space.leaves("observations"):
        first = rows.columns[leaf.name][:1].reshape(1, -1)
        after = rows.columns[f"next_{leaf.name}"].reshape(len(rows), -1)
        recorded = np.concatenate([first, after]).astype(float)
        said = trajectory.columns[leaf.name].reshape(steps, trajectory.draws, -1).astype(float)
        said = np.where(alive[..., None], said, np.nan)
        begun = np.broadcast_to(
            first.astype(float)[:, None], (1, trajectory.draws, leaf.space.size)
        )
        predicted = np.concatenate([begun, said])
        for index in range(leaf.space.size):
            yield _Leaf(
                names[place], recorded[:, index], predicted[..., index], leaf.space.is_float
            )
            place += 1


def _furthest(components: Sequence[_Leaf]) -> list[_Leaf]:
    """Return the components with the largest errors, in their order."""

    def off(each: _Leaf) -> float:
        steps = len(each.predicted)
        spread = each.recorded.std() or 1.0
        error = np.abs(each.predicted - each.recorded[:steps, None]) / spread
        return float(np.nan_to_num(error[np.isfinite(error)].mean() if error.size else 0.0))

    ranked = sorted(range(len(components)), key=lambda place: -off(components[place]))
    # Maximum number of components drawn as lines; those with the largest errors are drawn.
    most_components = 8
    return [components[place] for place in sorted(ranked[:most_components])]


def _predicted(values: np.ndarray, steps: range) -> ChartLine:
    """Return the line of predictions (steps, samples), with a band for several samples."""
    if values.shape[1] == 1:
        return ChartLine("predicted", list(steps), _numbers(values[:, 0]), tone=PREDICTED)
    # No quantiles after all samples have ended.
    kept = np.isfinite(values).any(axis=1)
    found = np.full((3, len(values)), np.nan)
    if kept.any():
        found[:, kept] = np.nanquantile(values[kept], [0.05, 0.5, 0.95], axis=1, method="nearest")
    low, middle, high = map(_numbers, found)
    return ChartLine("predicted", list(steps), middle, low, high, tone=PREDICTED)


def _numbers(values: np.ndarray) -> list[float | None]:
    """Return the numbers, with None for NaN and infinity."""
    return [float(value) if np.isfinite(value) else None for value in values.tolist()]


def _difference_words(trajectory: FollowedEpisode) -> str:
    """Describe how the predicted end differs from the recorded end, and any failure."""
    ends = trajectory.columns["ends"]
    alive, words = trajectory.alive, list[str]()
    terminated = bool(trajectory.rows.columns["terminations"][-1])
    if trajectory.draws == 1 and ends.any():
        at = int(np.argmax(ends[:, 0])) + 1
        if at < len(trajectory.rows) or not terminated:
            words.append(f"The model ends the episode at step {at}; the recording continues.")
    elif trajectory.draws == 1 and terminated and trajectory.steps == len(trajectory.rows):
        words.append(f"The recorded episode ends at step {trajectory.steps}; the model continues.")
    elif trajectory.draws > 1 and trajectory.steps:
        left = int((alive[-1] & ~ends[-1]).sum())
        words.append(
            f"{left} of {trajectory.draws} samples continue after step {trajectory.steps}."
        )
    if trajectory.failure:
        words.append(
            f"The model fails after step {trajectory.steps}: {clean(trajectory.failure, limit=160)}"
        )
    return " ".join(words)


def _cells(trajectory: FollowedEpisode) -> Iterator[list[Any]]:
    """Yield the number of wrong cells over an episode, and the cells of each step."""
    rows = trajectory.rows
    leaves = list(rows.observation_space.leaves("observations"))
    differing = np.zeros(trajectory.steps)
    for leaf in leaves:
        recorded = rows.columns[f"next_{leaf.name}"][: trajectory.steps]
        said = trajectory.columns[leaf.name][:, 0]
        wrong = (said != recorded).reshape(trajectory.steps, -1).sum(axis=1)
        differing += np.where(trajectory.alive[:, 0], wrong, 0)
    if differing.any():
        line = ChartLine("", list(range(1, len(differing) + 1)), differing.tolist(), tone="bad")
        drawn = LineChart("step", "cells that differ", [line], staircase=True).data()
        yield ["", "chart", drawn]
    if sum(leaf.space.size for leaf in leaves) <= MOST_CELLS and trajectory.steps:
        frames = [_frame(trajectory, step) for step in thinned(trajectory.steps, MOST_FRAMES)]
        schema = rows.metadata.get("objects")
        columns = None if schema is None else [*ObjectSchema.from_json(schema).names]
        more = ", changing objects" if columns else ""
        more += " (one sample)" if trajectory.draws > 1 else ""
        if len(frames[0]["rows"]) > FEW_CELLS:
            # An observation of many lines is drawn without the lines that never change.
            moving = {
                line["name"]
                for frame in frames
                for line in frame["rows"]
                if line["before"] != line["after"]
                or line.get("said", line["after"]) != line["after"]
            }
            for frame in frames:
                frame["rows"] = [line for line in frame["rows"] if line["name"] in moving]
        yield [f"Step by step{more}", "cells", {"columns": columns, "frames": frames}]


def _frame(trajectory: FollowedEpisode, step: int) -> dict[str, Any]:
    """Return the recorded and predicted cells after a step, line by line."""
    rows, lines = trajectory.rows, list[dict[str, Any]]()
    alive = bool(trajectory.alive[step, 0])
    for leaf in rows.observation_space.leaves("observations"):
        values = [rows.columns[leaf.name][step], rows.columns[f"next_{leaf.name}"][step]]
        values += [trajectory.columns[leaf.name][step, 0]] if alive else []
        tables = [np.asarray(value) for value in values]
        if tables[0].ndim == 0:
            tables = [each.reshape(1, 1) for each in tables]
        tables = [each.reshape(len(each), -1) if each.ndim > 1 else each[None] for each in tables]
        name = leaf.name.rpartition(".")[2]
        is_table = name == OBJECTS and "objects" in rows.metadata
        for place in range(len(tables[0])):
            if is_table and not any(each[place].any() for each in tables):
                continue
            parts = [_values(each[place], rows, is_table=is_table) for each in tables]
            label = str(place) if len(tables[0]) > 1 else ("" if name == "observations" else name)
            line = {"name": label, "before": parts[0], "after": parts[1]}
            lines.append(line | ({"said": parts[2]} if alive else {}))
    action = rows.row(step).action
    words = np.array2string(action, precision=3) if isinstance(action, np.ndarray) else str(action)
    ended = "" if alive else "; the model has already ended the episode"
    return {"name": f"step {step + 1}, action {clean(words, limit=60)}{ended}", "rows": lines}


def _values(line: np.ndarray, rows: Dataset, *, is_table: bool) -> list[Any]:
    """Return the cells of a line; in a table of objects, the names of the numbers."""
    values = [value if isinstance(value, str) else rounded(value) for value in line.tolist()]
    if not is_table:
        return values
    schema = ObjectSchema.from_json(rows.metadata["objects"])
    meant = [schema.classes, *(each.values for each in schema.fields)]
    return [
        known[value] if known and isinstance(value, int) and 0 <= value < len(known) else value
        for known, value in zip(meant, values, strict=False)
    ]


# --- mistakes


def _mistakes(found: EvaluationResult, names: Sequence[str]) -> Iterator[Section]:
    """Yield tables of the mistakes by kind and by condition, and the map of mistakes."""
    counts = {part: len(rows) for part, rows in found.rows.items()}
    every = " and ".join(f"{count:,} {PARTS[part]}" for part, count in counts.items())
    part = found.wrong
    if part is None:
        line = f"None: every part of all {every} rows is predicted exactly."
        if any(each.answers and each.answers.shape != "certain" for each in found.found.values()):
            line = f"None: the recorded outcome is possible under the model in all {every} rows."
        yield Section("notes", "Mismatches", {"lines": [line]})
        return
    yield Section("table", "Mismatches by kind", _kinds(found), f"In {every} rows.")
    diagnosis = found.diagnosis()
    if diagnosis is None:
        return
    yield from _diagnosis_tables(diagnosis, names, PARTS[part])
    if drawn := error_map(diagnosis, names):
        yield drawn


def _kinds(found: EvaluationResult) -> dict[str, Any]:
    """Return the table of the number of wrong rows by part of a transition."""
    masks: dict[Part, dict[str, np.ndarray]] = {}
    for part, each in found.found.items():
        assert each.answers is not None
        wrong = each.rows < 1  # a stochastic model: no predicted outcome occurred
        kinds = wrong_parts(each.answers, found.rows[part])
        masks[part] = {"any part": wrong} | {kind: mask & wrong for kind, mask in kinds.items()}
    kinds_known = dict.fromkeys(kind for some in masks.values() for kind in some)
    heads = ["wrong in"]
    for part in masks:
        heads += [f"{PARTS[part]} rows", f"share of {PARTS[part]}"]
    lines = []
    for kind in kinds_known:
        line: list[Any] = [KIND_WORDS.get(kind, kind)]
        for some in masks.values():
            line += (
                [int(some[kind].sum()), float(some[kind].mean())] if kind in some else [None, None]
            )
        lines.append(line)
    return table(heads, lines)


def _named(text: str, names: Sequence[str], diagnosis: Diagnosis) -> str:
    """Append documented names to the expressions of components in a text."""
    for place, expression in reversed(list(enumerate(diagnosis.comparison.names))):
        if place < len(names) and names[place] != expression:
            text = text.replace(expression, f"{expression} ({names[place]})")
    return text


def _diagnosis_tables(diagnosis: Diagnosis, names: Sequence[str], part: str) -> Iterator[Section]:
    """Yield the tables of a diagnosis of the rows of a part, without empty tables."""
    if diagnosis.groups:
        heads = ["wrong part", "condition", "wrong rows", "rows"]
        heads += ["wrong elsewhere", "rows elsewhere"]
        groups: list[list[Any]] = [
            [
                _named(", ".join(group.parts), names, diagnosis),
                _named(group.condition, names, diagnosis) or "everywhere",
                *(group.wrong, group.rows, group.wrong_elsewhere, group.elsewhere),
            ]
            for group in diagnosis.groups
        ]
        where = f"Conditions that separate wrong from right {part} rows."
        yield Section("table", "Conditions of mistakes", table(heads, groups, words=2), where)
    if diagnosis.numbers:
        heads = ["number", "share exact", "median error (typical changes)", "log10 of the error"]
        numbers: list[list[Any]] = [
            [_named(each.name, names, diagnosis), each.right, each.median, each.log_error]
            for each in diagnosis.numbers
        ]
        yield Section("table", "Errors of numbers", table(heads, numbers))
    if diagnosis.kinds:
        heads = ["wrong part", "recorded", "predicted", "rows"]
        kinds: list[list[Any]] = [
            [each.part, each.recorded, each.predicted, each.times] for each in diagnosis.kinds
        ]
        yield Section("table", "Wrong rewards and ends", table(heads, kinds))


def error_map(diagnosis: Diagnosis, names: Sequence[str]) -> Section | None:
    """Return the map of right and wrong rows over the two numbers that separate them best.

    None without two numbers, or if all rows are right.
    """
    wrong = diagnosis.comparison.wrong
    # Maximum number of candidate components for the two axes of the map.
    most_mapped = 12
    known = [
        each._replace(name=_named(each.name, names, diagnosis))
        for each in ComparedQuantities(diagnosis.comparison).inputs
        if not each.labels and np.isfinite(each.values).all() and np.ptp(each.values) > 0
    ][:most_mapped]
    if len(known) < 2 or not wrong.any():
        return None
    across, up = max(combinations(known, 2), key=lambda pair: mistake_information(wrong, *pair))
    rng = np.random.default_rng(0)
    places = []
    for each in (across, up):
        is_whole = bool((each.values == np.round(each.values)).all())
        # Drawn for real numbers too, so that the map of the other axis stays the same.
        places.append(each.values + rng.uniform(-0.3, 0.3, len(each.values)) * is_whole)
    clouds = []
    told = []
    # Maximum number of dots of each kind, right and wrong, on the map of mistakes.
    most_dots = 400
    for name, mask, tone in (("right", ~wrong, 0), ("wrong", wrong, "bad")):
        rows = np.flatnonzero(mask)
        kept = rows[thinned(len(rows), most_dots)]
        if len(kept) < len(rows):
            told.append(f"{len(kept)} of {len(rows):,} {name} rows")
        x, y = (place[kept].tolist() for place in places)
        clouds.append(ChartLine(name, x, y, loose=True, tone=tone))
    note = f"Shown: {' and '.join(told)}, evenly spaced." if told else ""
    if not (across.is_real and up.is_real):
        note += " Integers are moved by small random amounts, so that dots do not overlap."
    about = "A mark for each row, over the two numbers that separate wrong from right rows best."
    drawn = LineChart(across.name, up.name, clouds, note=note.strip()).data()
    return Section("chart", "Map of right and wrong rows", drawn, about)


def mistake_information(wrong: np.ndarray, *quantities: Quantity) -> float:
    """Return the mutual information (bits) of quantities with the mistakes, corrected for bias.

    Quantities with many values are cut at quantiles. The bias correction is by Miller (1955).
    """
    cells = np.zeros(len(wrong), np.int64)
    # Bins per axis for the mutual information of two components with the mistakes; few, so that
    # most cells of the grid contain rows.
    bins = 6
    for each in quantities:
        values, codes = np.unique(each.values, return_inverse=True)
        if len(values) > bins:
            edges = np.unique(np.quantile(each.values, np.linspace(0, 1, bins + 1)[1:-1]))
            codes = np.searchsorted(edges, each.values, side="right")
        cells = cells * (int(codes.max()) + 1) + codes.reshape(-1)
    # Number the cells that contain rows, so that empty ones do not count for the bias.
    _, cells = np.unique(cells, return_inverse=True)
    count = np.bincount(cells).astype(float)
    share = np.bincount(cells, wrong) / count
    bits = _entropy(np.array([wrong.mean()]))[0] - (count * _entropy(share)).sum() / len(wrong)
    return float(bits - (len(count) - 1) / (2 * len(wrong) * np.log(2)))


def _entropy(share: np.ndarray) -> np.ndarray:
    """Return the binary entropy of shares, in bits."""
    other = 1 - share
    found: np.ndarray = -(
        share * np.log2(np.where(share > 0, share, 1))
        + other * np.log2(np.where(other > 0, other, 1))
    )
    return found
