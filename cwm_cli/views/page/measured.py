"""What a page shows of the best model of a run that nobody knows before it has been asked again.

The model predicts every recorded row, and follows recorded episodes on its own predictions; a
program does so in the sandbox, as for `cwm evaluate`. Where it cannot, a line says why.
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
from cwm_cli.evaluation import FollowedEpisode, Score
from cwm_cli.evaluation.mismatches import wrong_parts
from cwm_cli.problems.feedback import Diagnosis
from cwm_cli.problems.feedback.diagnosis import ComparedQuantities
from cwm_cli.problems.feedback.separation import Quantity
from cwm_cli.runs.charts import ChartLine, LineChart, rounded, table, thinned
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import ModelRun, ProgramRun
from cwm_cli.runs.progress import score_parts
from cwm_cli.runs.report import Section
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import Run
from cwm_cli.text import clean
from cwm_cli.worlds.contract import component_names

ROLLOUTS, EPISODES = 10, 3
"""Rollouts that the open-loop error is the mean of, and episodes that are drawn whole."""

PARTS: Mapping[Part, str] = {"train": "train", "test": "held-out"}

CLOSE_TO_GUESSING = 0.2
"""From this error on it helps to see how wrong guessing would be."""

MOST_COMPONENTS = 8
"""Components of an observation that are drawn as lines: of more, those that are furthest off."""

FEW_CELLS = 12
"""Whole numbers up to so many are drawn as lines, more of them as cells."""

MOST_CELLS, MOST_FRAMES = 400, 40
"""Larger pictures are not drawn cell by cell; of a long episode so many steps are."""

MOST_DOTS = 400
"""Rows on the map of mistakes, of each of the two kinds."""

BINS = 6
"""Cells of a map, to either side, by which it is measured how well two components tell right
from wrong: few enough that chance fills them."""

MOST_MAPPED = 12
"""Components among which the two of a map are chosen."""

KIND_WORDS = {
    "observation": "observation",
    "reward": "reward",
    "terminated": "end of the episode",
    "valid_actions": "valid actions",
}


def measured_sections(run: Run[Any, Any], observer: Observer = SILENT) -> list[Section]:
    """Return the parts of the page for which the best model of a run predicts once more.

    None for runs that have no model of an environment, or none yet.
    """
    is_program = isinstance(run, ProgramRun) and (run.has_program or run.has_trained)
    is_other = isinstance(run, ModelRun) and not isinstance(run, ProgramRun) and run.has_model
    if not (is_program or is_other):
        return []
    assert isinstance(run, ModelRun)
    try:
        found = evaluate(run, rollout_count=ROLLOUTS, trajectory_count=EPISODES, observer=observer)
    except (CwmError, OSError) as error:
        return [_unable(str(error))]
    if found.failure is not None:
        return [_unable(f"the program failed: {found.failure.message}")]
    known = isinstance(run, SearchRun) and bool(run.scores())
    names = _names(run, found)
    return [
        *([] if known else _parts(found)),
        *_followed(found, names),
        *_mistakes(found, names),
    ]


def _unable(reason: str) -> Section:
    """Say why nothing could be measured."""
    line = f"It could not be asked again for this page: {clean(reason, limit=300)}"
    return Section("notes", "What the model predicts", {"lines": [line]})


def _names(run: ModelRun[Any, Any], found: EvaluationResult) -> list[str]:
    """Name the components of an observation, as its documentation does where it does."""
    space = next(iter(found.rows.values())).observation_space
    documented = documented_names(getattr(run.header, "description", ""), space)
    return [clean(name, limit=40) for name in documented or component_names(space, "observation")]


def _parts(found: EvaluationResult) -> Iterator[Section]:
    """Yield the parts of the scores."""
    scores: dict[str, Score] = {}
    for part, score in {"train": found.scores.train, "held-out": found.scores.test}.items():
        if score is not None:
            scores[part] = score
    if scores:
        yield Section("bars", "Parts of the score", score_parts(scores))


# --- what it makes of whole episodes


def _followed(found: EvaluationResult, names: Sequence[str]) -> Iterator[Section]:
    """Yield how the model fares along recorded episodes, on its own predictions."""
    if not found.trajectories:
        return
    where = "held-out" if "test" in found.rows else "train"
    chance = found.trajectories[0].draws > 1
    about = (
        f"From the first observation of {where} episodes on, the model gets the recorded actions "
        "and its own predictions, nothing else."
    )
    if chance:
        draws = found.trajectories[0].draws
        about += f" Chance decides: the line is the median of {draws} draws, the band 5 to 95 %."
    broke = [each.steps for each in found.rollouts if each.error is None]
    if broke:
        about += f" Some rollouts broke down before step {broke[0]}."
    groups = [_episode(each, names) for each in found.trajectories]
    if drift := _drift(found):
        groups.append({"title": "", "sections": [drift]})
    key = [{"name": "recorded", "tone": "quiet"}, {"name": "predicted", "tone": 0}]
    data = {"key": key, "groups": groups}
    yield Section("groups", "Predicted and recorded episodes", data, about)


def _drift(found: EvaluationResult) -> list[Any] | None:
    """Return the chart of the open-loop error, as `cwm evaluate --rollouts` has it."""
    known = [(each.steps, each.error) for each in found.rollouts if each.error is not None]
    if len(known) < 2:
        return None
    most = max(error for _, error in known)
    guess = {"as wrong as guessing the mean": 1.0 if most > CLOSE_TO_GUESSING else None}
    label = "mean error (standard deviations)"
    drawn = LineChart("steps", label, [ChartLine.of("", known)], log_x=True, rules=guess).data()
    return [f"Error over the steps of {ROLLOUTS} rollouts, over all components", "chart", drawn]


class _Leaf(NamedTuple):
    """A component along an episode: what was recorded (steps + 1,), and predicted (.., draws)."""

    name: str
    recorded: np.ndarray
    predicted: np.ndarray
    is_real: bool


def _episode(trajectory: FollowedEpisode, names: Sequence[str]) -> dict[str, Any]:
    """Return the panels of an episode: a chart for each component, or its cells."""
    rows = trajectory.rows
    leaves = [leaf.space for leaf in rows.observation_space.leaves("observations")]
    as_cells = any(s.kind == "text" or (not s.is_float and s.size > FEW_CELLS) for s in leaves)
    if as_cells:
        panels = list(_cells(trajectory))
    else:
        components = list(_components(trajectory, names))
        panels = [[each.name, "chart", _lines(each)] for each in _furthest(components)]
    panels += _rewards(trajectory)
    count = len(rows)
    title = f"Episode {int(rows.columns['episodes'][0])}, {count} step{'' if count == 1 else 's'}"
    return {"title": title, "about": _told(trajectory), "sections": panels}


def _components(trajectory: FollowedEpisode, names: Sequence[str]) -> Iterator[_Leaf]:
    """Yield each number of an observation along an episode, from its start on."""
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
    """Return at most so many components: those that are furthest off, in their order."""

    def off(each: _Leaf) -> float:
        steps = len(each.predicted)
        spread = each.recorded.std() or 1.0
        error = np.abs(each.predicted - each.recorded[:steps, None]) / spread
        return float(np.nan_to_num(error[np.isfinite(error)].mean() if error.size else 0.0))

    ranked = sorted(range(len(components)), key=lambda place: -off(components[place]))
    return [components[place] for place in sorted(ranked[:MOST_COMPONENTS])]


def _lines(each: _Leaf) -> dict[str, Any]:
    """Return the chart of a component: what was recorded, and what was predicted."""
    steps = list(range(len(each.recorded)))
    recorded = ChartLine("recorded", steps, each.recorded.tolist(), tone="quiet", wide=True)
    predicted = _predicted(each.predicted, range(len(each.predicted)))
    return LineChart(
        "step", "", [recorded, predicted], staircase=not each.is_real, legend=False
    ).data()


def _predicted(values: np.ndarray, steps: range) -> ChartLine:
    """Return what was predicted (steps, draws): a line, with a band where there are draws."""
    if values.shape[1] == 1:
        return ChartLine("predicted", list(steps), _numbers(values[:, 0]), tone=0)
    low, middle, high = _quantiles(values)
    return ChartLine("predicted", list(steps), middle, low, high, tone=0)


def _quantiles(values: np.ndarray) -> list[list[float | None]]:
    """Return the 5 %, 50 % and 95 % quantiles of draws that go on; None where none does."""
    kept = np.isfinite(values).any(axis=1)
    found = np.full((3, len(values)), np.nan)
    if kept.any():
        found[:, kept] = np.nanquantile(values[kept], [0.05, 0.5, 0.95], axis=1, method="nearest")
    return [_numbers(line) for line in found]


def _numbers(values: np.ndarray) -> list[float | None]:
    """Return finite numbers, and None for others."""
    return [float(value) if np.isfinite(value) else None for value in values.tolist()]


def _rewards(trajectory: FollowedEpisode) -> Iterator[list[Any]]:
    """Yield the chart of the rewards along an episode, unless they are all one and the same."""
    recorded = trajectory.rows.columns["rewards"]
    said = np.where(trajectory.alive, trajectory.columns["rewards"], np.nan)
    if len(np.unique(np.concatenate([recorded, said[np.isfinite(said)]]))) < 2:
        return
    steps = list(range(1, len(recorded) + 1))
    line = ChartLine("recorded", steps, recorded.tolist(), tone="quiet", wide=True)
    lines = [line, _predicted(said, range(1, len(said) + 1))]
    yield ["reward", "chart", LineChart("step", "", lines, staircase=True, legend=False).data()]


def _told(trajectory: FollowedEpisode) -> str:
    """Say when an episode ended, where the model says otherwise, and why it stopped."""
    ends = trajectory.columns["ends"]
    alive, words = trajectory.alive, list[str]()
    terminated = bool(trajectory.rows.columns["terminations"][-1])
    if trajectory.draws == 1 and ends.any():
        at = int(np.argmax(ends[:, 0])) + 1
        if at < len(trajectory.rows) or not terminated:
            words.append(f"The model ends the episode at step {at}, the recording goes on.")
    elif trajectory.draws == 1 and terminated and trajectory.steps == len(trajectory.rows):
        words.append(f"The episode ended at step {trajectory.steps}, which the model does not say.")
    elif trajectory.draws > 1 and trajectory.steps:
        left = int((alive[-1] & ~ends[-1]).sum())
        words.append(f"{left} of {trajectory.draws} draws go on after step {trajectory.steps}.")
    if trajectory.failure:
        words.append(
            f"It stopped after step {trajectory.steps}: {clean(trajectory.failure, limit=160)}"
        )
    return " ".join(words)


def _cells(trajectory: FollowedEpisode) -> Iterator[list[Any]]:
    """Yield the cells of an episode step by step, and how many differ."""
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
        columns = _columns(rows)
        more = " of what changes" if columns else ""
        more += " (one of the draws)" if trajectory.draws > 1 else ""
        frames = _moving(frames)
        yield [f"Step by step{more}", "cells", {"columns": columns, "frames": frames}]


def _moving(frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the lines of many that stay as they are, and are predicted so, in all frames."""
    if len(frames[0]["rows"]) <= FEW_CELLS:
        return [*frames]
    moving = {
        line["name"]
        for frame in frames
        for line in frame["rows"]
        if line["before"] != line["after"] or line.get("said", line["after"]) != line["after"]
    }
    return [
        frame | {"rows": [line for line in frame["rows"] if line["name"] in moving]}
        for frame in frames
    ]


def _columns(rows: Dataset) -> list[str] | None:
    """Name the columns of a table of objects, where observations are one."""
    schema = rows.metadata.get("objects")
    if schema is None:
        return None
    return [*ObjectSchema.from_json(schema).names]


def _frame(trajectory: FollowedEpisode, step: int) -> dict[str, Any]:
    """Return what was recorded and predicted after a step, line by line."""
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
    ended = "" if alive else "; the model had ended the episode"
    return {"name": f"step {step + 1}, action {clean(words, limit=60)}{ended}", "rows": lines}


def _values(line: np.ndarray, rows: Dataset, *, is_table: bool) -> list[Any]:
    """Return the cells of a line; of an object what its numbers stand for."""
    values = [value if isinstance(value, str) else rounded(value) for value in line.tolist()]
    if not is_table:
        return values
    schema = ObjectSchema.from_json(rows.metadata["objects"])
    meant = [schema.classes, *(each.values for each in schema.fields)]
    return [
        known[value] if known and isinstance(value, int) and 0 <= value < len(known) else value
        for known, value in zip(meant, values, strict=False)
    ]


# --- what it is wrong about


def _mistakes(found: EvaluationResult, names: Sequence[str]) -> Iterator[Section]:
    """Yield what is predicted wrongly: of which kinds, under which conditions, and where."""
    counts = {part: len(rows) for part, rows in found.rows.items()}
    every = " and ".join(f"{count:,} {PARTS[part]}" for part, count in counts.items())
    part = found.wrong
    if part is None:
        line = f"None: all {every} rows are predicted rightly in every part."
        if any(each.answers and each.answers.shape != "certain" for each in found.found.values()):
            line = f"None: what followed was held possible in all {every} rows."
        yield Section("notes", "Mismatches", {"lines": [line]})
        return
    yield Section("table", "Mismatches by kind", _kinds(found), f"Of {every} rows.")
    diagnosis = found.diagnosis()
    if diagnosis is None:
        return
    where = (
        f"Of the {PARTS[part]} rows. A condition is sought that tells wrong rows from right ones."
    )
    if diagnosis.groups:
        yield Section("table", "Where it is wrong", _groups(diagnosis, names), where)
    if diagnosis.numbers:
        yield Section("table", "How far numbers are off", _off(diagnosis, names))
    if diagnosis.kinds:
        yield Section("table", "Wrong rewards and ends", _wrong_kinds(diagnosis))
    if drawn := error_map(diagnosis, names):
        yield drawn


def _kinds(found: EvaluationResult) -> dict[str, Any]:
    """Count the rows that are wrong in each part of a transition."""
    masks: dict[Part, dict[str, np.ndarray]] = {}
    for part, each in found.found.items():
        assert each.answers is not None
        wrong = each.rows < 1  # of chance, where nothing that was held possible came about
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
    """Write documented names behind the expressions of components in a text."""
    for place, expression in reversed(list(enumerate(diagnosis.comparison.names))):
        if place < len(names) and names[place] != expression:
            text = text.replace(expression, f"{expression} ({names[place]})")
    return text


def _groups(diagnosis: Diagnosis, names: Sequence[str]) -> dict[str, Any]:
    """Write the conditions under which rows are wrong."""
    lines = (
        [
            _named(", ".join(group.parts), names, diagnosis),
            _named(group.condition, names, diagnosis) or "everywhere",
            group.wrong,
            group.rows,
            group.wrong_elsewhere,
            group.elsewhere,
        ]
        for group in diagnosis.groups
    )
    heads = ["wrong", "where", "wrong there", "of rows", "wrong elsewhere", "of other rows"]
    return table(heads, lines, words=2)


def _off(diagnosis: Diagnosis, names: Sequence[str]) -> dict[str, Any]:
    """Write how far off each number is."""
    lines = (
        [_named(each.name, names, diagnosis), each.right, each.median, each.log_error]
        for each in diagnosis.numbers
    )
    heads = ["number", "share right", "median error (typical changes)", "log10 of the error"]
    return table(heads, lines)


def _wrong_kinds(diagnosis: Diagnosis) -> dict[str, Any]:
    """Write which rewards and ends were predicted instead of which."""
    lines = ([each.part, each.recorded, each.predicted, each.times] for each in diagnosis.kinds)
    return table(["wrong", "recorded", "predicted", "rows"], lines)


def error_map(diagnosis: Diagnosis, names: Sequence[str]) -> Section | None:
    """Return the map of right and wrong rows over the two numbers that tell them apart best.

    None where there are no two numbers, or all rows are alike.
    """
    wrong = diagnosis.comparison.wrong
    known = [
        each._replace(name=_named(each.name, names, diagnosis))
        for each in ComparedQuantities(diagnosis.comparison).asked
        if not each.labels and np.isfinite(each.values).all() and np.ptp(each.values) > 0
    ][:MOST_MAPPED]
    if len(known) < 2 or not wrong.any():
        return None
    across, up = max(combinations(known, 2), key=lambda pair: told_apart(wrong, *pair))
    rng = np.random.default_rng(0)
    places = [each.values + _jitter(each, rng) for each in (across, up)]
    clouds = []
    told = []
    for name, mask, tone in (("right", ~wrong, "quiet"), ("wrong", wrong, "bad")):
        rows = np.flatnonzero(mask)
        kept = rows[thinned(len(rows), MOST_DOTS)]
        if len(kept) < len(rows):
            told.append(f"{len(kept)} of {len(rows):,} {name} ones")
        x, y = (place[kept].tolist() for place in places)
        clouds.append(ChartLine(name, x, y, loose=True, tone=tone))
    note = f"Of the rows {' and '.join(told)} are drawn, evenly spread." if told else ""
    if not (across.is_real and up.is_real):
        note += " Whole numbers are moved apart a little, so that rows do not hide each other."
    about = "A dot for each row, over the two numbers that tell wrong rows from right ones best."
    drawn = LineChart(across.name, up.name, clouds, note=note.strip()).data()
    return Section("chart", "Map of right and wrong rows", drawn, about)


def told_apart(wrong: np.ndarray, *quantities: Quantity) -> float:
    """Return how many bits quantities tell of a row being wrong, less what chance would tell.

    Each is cut into a few ranges with as many rows; whole numbers of few values stay as they are.
    """
    cells = np.zeros(len(wrong), np.int64)
    for each in quantities:
        values, codes = np.unique(each.values, return_inverse=True)
        if len(values) > BINS:
            edges = np.unique(np.quantile(each.values, np.linspace(0, 1, BINS + 1)[1:-1]))
            codes = np.searchsorted(edges, each.values, side="right")
        cells = cells * (int(codes.max()) + 1) + codes.reshape(-1)
    _, cells = np.unique(cells, return_inverse=True)
    count = np.bincount(cells).astype(float)
    share = np.bincount(cells, wrong) / count
    bits = _entropy(np.array([wrong.mean()]))[0] - (count * _entropy(share)).sum() / len(wrong)
    return float(bits - (len(count) - 1) / (2 * len(wrong) * np.log(2)))


def _entropy(share: np.ndarray) -> np.ndarray:
    """Return the entropy of shares, in bits."""
    other = 1 - share
    found: np.ndarray = -(
        share * np.log2(np.where(share > 0, share, 1))
        + other * np.log2(np.where(other > 0, other, 1))
    )
    return found


def _jitter(quantity: Quantity, rng: np.random.Generator) -> np.ndarray:
    """Return by how much to move values apart: whole numbers a little, real ones not at all."""
    whole = bool((quantity.values == np.round(quantity.values)).all())
    moved: np.ndarray = rng.uniform(-0.3, 0.3, len(quantity.values)) * whole
    return moved
