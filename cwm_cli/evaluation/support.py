"""Data support of a program: which of its steps recorded rows support, and plans that use it.

A step is supported if it was recorded, or if the program predicts it by rules that recorded rows
confirm. A rule is a path of branches through the program's text. Rows support a rule if they took
the same path and looked up the same keys. Real numbers must also be within the recorded range, or
near it if no recorded episode terminated and the rules that the program uses there are confirmed.

A planner finds and exploits the few situations where a program overestimates the reward. Therefore
planning uses a changed program: an unsupported step leads to the worst recorded return (`careful`),
or to the best (`curious`, as in R-max: Brafman and Tennenholtz, 2002). The change is made in the
text of the program, so that translated forms and checks apply to it as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import TOLERANCE, match
from cwm_cli.planning.planner import Moment
from cwm_cli.translation.instrumentation import LOOKUP
from cwm_cli.worlds.confined_trails import UNKNOWN, TrailsJob
from cwm_cli.worlds.contract import component_names
from cwm_cli.worlds.model import (
    Confirmation,
    ImaginedEpisodes,
    Plan,
    Planning,
    PlanningSession,
    Predictions,
    WorldModel,
)
from cwm_cli.worlds.program import ProgramModel

if TYPE_CHECKING:
    from cwm_cli.envs.tasks import Task
    from cwm_cli.planning.model import EpisodeHistory

MIN_ROWS = 3
"""Rows that a rule needs as support.

By the rule of three, n correct rows without a wrong one bound the error rate by 3 / n (95 %
confidence). Below three rows the bound is 1. A key of a table needs one row only, because a table
always returns the same value for a key.
"""

MIN_CELL_SHARE = 0.05
"""Share of the cells with a path and an action that recorded rows must show.

Rows of one policy may show a path only where an action is right: the program of a taxi that is
always driven well may let passengers get out everywhere.
"""

EXTRAPOLATION = 0.5
"""Largest distance from the recorded range at which confirmed rules are supported, as a fraction of
the range of each component."""

MAX_PROBED_COMPONENTS = 64
"""Do not probe rules beyond the recorded range for more components: 12,800 steps take a second."""

DISCOUNT = 0.99
"""Discount of the returns of recorded rows: the default of planning."""

Mode = Literal["careful", "curious", "ignore"]


@dataclass(frozen=True)
class Doubt:
    """Options for programs that the data support only in part."""

    doubt: Mode = "careful"
    """Value of steps that the data do not support. careful: as bad as the worst recorded return;
    curious: as good as the best; ignore: as the program predicts.

    A step is supported if it was recorded, or if the same rules of the program predicted every
    recorded row that they were used for correctly. Real numbers must also be within the recorded
    range, or near it if no recorded episode terminated.
    """
    stop: bool = True
    """Stop if the program predicts most recorded rows correctly, but less than half of that share
    of the steps in play."""


def doubting(model: ProgramModel, rows: Dataset, mode: Mode) -> DoubtedModel | None:
    """Return a program that plans with its data support in mind.

    Args:
        model: The program.
        rows: Recorded rows.
        mode: Treatment of unsupported steps: "ignore", "careful" or "curious".

    Returns:
        The program; None if its support cannot be determined.
    """
    support = find_support(survey(model, rows), rows) if len(rows) and _is_plain(model) else None
    if support is None:
        return None
    if mode == "ignore":
        return DoubtedModel(model, model, model, support)
    best = mode == "curious"
    seen = extreme_return(rows, best=best)
    change = partial(add_doubt, model.text, support, best=best, valid=rows.has_valid_actions)
    changed = replace(model, text=change(seen))
    if support.cells is not None:
        return DoubtedModel(model, changed, model, support)
    # From unsupported observations it plans with steps that do not end, to find a way back.
    outside = replace(model, text=change(seen._replace(ends=False)))
    return DoubtedModel(model, changed, outside if seen.ends else changed, support)


class ProgramSurvey(NamedTuple):
    """The rules that a program uses in recorded rows and in all cells.

    A cell is an observation with an action. An event is a branch that the program takes, or a key
    that it looks up.

    Attributes:
        right: Mask of the rows that the program predicts correctly.
        rows: Events of each row (rows, events), None if unknown.
        cells: Events of each cell, None if unknown or if there are too many cells.
        lines: Line of each branching site, None if unknown.
        probes: Events of probes near the recorded range (see `_probes`), None if unknown.
    """

    right: np.ndarray
    rows: np.ndarray | None = None
    cells: np.ndarray | None = None
    lines: np.ndarray | None = None
    probes: np.ndarray | None = None


def survey(model: ProgramModel, rows: Dataset, *, cells: bool = True) -> ProgramSurvey:
    """Run a program on rows, and on all cells if these are few, and record its events.

    The result is empty for programs with memory or with outcome probabilities.
    """
    predictions = model.predict(rows) if _is_plain(model) else None
    if predictions is None or predictions.failure is not None:
        return ProgramSurvey(np.zeros(len(rows), bool))
    losses = match(predictions.likeliest(), rows).losses(rows.columns["terminations"])
    right: np.ndarray = losses == 0
    columns, count = rows.select("observations", "actions"), len(rows)
    has_cells = is_enumerable(rows.observation_space, rows.action_space)
    more = None
    if cells and not _has_texts(rows):
        more = _all_cells(rows.observation_space, rows.action_space) if has_cells else _probes(rows)
    if more is not None:
        columns = {name: np.concatenate([columns[name], more[name]]) for name in columns}
    reply: Any = model.sandbox.run(TrailsJob.of(model.text, rows, columns=columns))
    if reply.failure is not None or not np.all(reply.slots["status"]):
        return ProgramSurvey(right)
    # copies, because the memory of the slots is used again for other jobs
    events, lines = np.array(reply.slots["events"]), np.array(reply.slots["lines"])
    others = None if more is None else events[count:]
    return ProgramSurvey(
        right,
        events[:count],
        cells=others if has_cells else None,
        lines=lines,
        probes=None if has_cells else others,
    )


def _is_plain(model: ProgramModel) -> bool:
    return not (model.abilities.tells or model.abilities.remembers)


def _has_texts(rows: Dataset) -> bool:
    """Return whether a part of the observation or the action is a text."""
    spaces = rows.observation_space, rows.action_space
    return any(leaf.space.kind == "text" for space in spaces for leaf in space.leaves(""))


def find_support(found: ProgramSurvey, rows: Dataset) -> Support | None:
    """Return the supported cells, or the range of the rows if there are too many cells.

    None if the support is unknown, as for texts.
    """
    if _has_texts(rows):
        return None
    spaces = rows.observation_space, rows.action_space
    values, size = _values(rows), spaces[0].size
    if not is_enumerable(*spaces):
        below, above = _extrapolation(found, _real_extent(spaces, values))
        low, high = values.min(axis=0), values.max(axis=0)
        low = low - below - TOLERANCE * (1 + np.abs(low))
        high = high + above + TOLERANCE * (1 + np.abs(high))
        bounds = {"low": low[:size], "high": high[:size]}
        return Support(*spaces, **bounds, action_low=low[size:], action_high=high[size:])
    if found.cells is None or found.rows is None:
        return None
    recorded = _cell_numbers(component_bounds(*spaces), values)
    right = np.zeros(len(found.cells), bool)
    right[recorded[found.right]] = True  # a cell is correct if any of its rows is
    chance = bool((right[recorded] & ~found.right).any())
    cells = _supported_paths(found, found.cells, right[recorded], chance=chance)
    # Enough recorded cells have to show a path with an action, which changes fastest.
    groups = [
        (cell % rows.action_space.count, *_rules(events)[:1])
        for cell, events in enumerate(found.cells)
    ]
    counts, shown = Counter(groups), Counter(groups[cell] for cell in np.flatnonzero(right))
    cells &= np.array([shown[group] >= MIN_CELL_SHARE * counts[group] for group in groups])
    # Recorded cells need no rule; a cell that the program predicts wrongly has no support.
    cells[recorded] = right[recorded]
    return Support(*spaces, cells=cells.reshape(-1, rows.action_space.count))


def _supported_paths(
    found: ProgramSurvey, cells: np.ndarray, right: np.ndarray, *, chance: bool
) -> np.ndarray:
    """Return the mask of cells whose path was right in enough rows, and so was each of its keys.

    Args:
        found: The events of rows.
        cells: (cells, events) the events of each cell.
        right: Mask of the rows that are predicted correctly.
        chance: Whether equal rows had other outcomes. Then it is enough that more rows of a rule
            are right than wrong; otherwise none may be wrong.
    """
    assert found.rows is not None
    counts = defaultdict[Any, list[int]](lambda: [0, 0])  # wrong and right rows of a path or a key
    for events, was_right in zip(found.rows, right.tolist(), strict=True):
        for rule in _rules(events):
            counts[rule][was_right] += 1

    def is_supported(rule: Any, least: int) -> bool:
        wrong_rows, right_rows = counts.get(rule, (0, 0))
        return right_rows >= least and (right_rows > wrong_rows if chance else not wrong_rows)

    supported = []
    for events in cells:
        path, *keys = _rules(events) or [None]
        supported.append(is_supported(path, MIN_ROWS) and all(is_supported(key, 1) for key in keys))
    return np.array(supported)


def _probes(rows: Dataset) -> Columns | None:
    """Return steps with one real component at a time beyond its recorded range, on both sides.

    A recorded row gives the other components. The order is (components, sides, probes).

    Returns:
        Columns of observations and actions. None if there are too many components, or if an episode
        terminated: there may be another cause just beyond the range, such as the end of a track.
        None also if all rewards are equal: then an end that no row shows is all that matters.
    """
    spaces = rows.observation_space, rows.action_space
    known = _values(rows)
    size = known.shape[1] if len(rows) else 0
    if not 0 < size <= MAX_PROBED_COMPONENTS or rows.columns["terminations"].any():
        return None
    if not np.ptp(rows.columns["rewards"]):
        return None
    chosen = known[_probed_rows(len(known))]
    low, high = known.min(axis=0), known.max(axis=0)
    shares = np.linspace(0, EXTRAPOLATION, len(chosen) + 1)[1:]
    beyond = np.outer(shares, _real_extent(spaces, known))
    probes = np.tile(chosen, (size, 2, 1, 1))
    for component in np.flatnonzero(high > low):
        probes[component, 0, :, component] = low[component] - beyond[:, component]
        probes[component, 1, :, component] = high[component] + beyond[:, component]
    return _columns_of(probes.reshape(-1, size), *spaces)


def _probed_rows(count: int) -> np.ndarray:
    """Return the numbers of at most 100 evenly spaced rows."""
    return np.linspace(0, count - 1, min(100, count)).astype(int)


def _extrapolation(found: ProgramSurvey, extent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far support reaches below and above the recorded range of each component.

    It does if every probe takes a path that is right in enough rows, and in none wrong. Probes
    of rows with a path that has no such support do not count.

    Args:
        found: Events of rows and probes.
        extent: (components) size of the recorded ranges, 0 for whole numbers.
    """
    if found.rows is None or found.probes is None:
        return np.zeros_like(extent), np.zeros_like(extent)
    chosen = found.rows[_probed_rows(len(found.rows))]
    counted = _supported_paths(found, chosen, found.right, chance=False)
    supported = _supported_paths(found, found.probes, found.right, chance=False)
    sides = supported.reshape(len(extent), 2, -1)[..., counted].all(axis=2) & counted.any()
    below, above = np.where(sides.T, EXTRAPOLATION * extent, 0.0)
    return below, above


def _values(rows: Dataset) -> np.ndarray:
    """Return the components of observations and actions of each row (rows, components)."""
    observations = _flat_columns(rows.observation_space, rows.columns, "observations")
    return np.hstack([observations, _flat_columns(rows.action_space, rows.columns, "actions")])


def _real_extent(spaces: tuple[Space, Space], values: np.ndarray) -> np.ndarray:
    """Return the size of the range of each component, 0 for whole numbers."""
    leaves = [leaf.space for space in spaces for leaf in space.leaves("")]
    is_real = np.repeat([leaf.is_float for leaf in leaves], [leaf.size for leaf in leaves])
    return np.where(is_real, np.ptp(values, axis=0), 0.0)


def _rules(events: np.ndarray) -> list[Any]:
    """Return the path of a row, as a tuple of branches, then its keys; nothing if unknown."""
    if events[0] == UNKNOWN:
        return []
    known = [event for event in events.tolist() if event]
    path = tuple(event for event in known if not event & LOOKUP)
    return [path, *(event for event in known if event & LOOKUP)]


@dataclass(frozen=True)
class Support:
    """The steps that recorded rows support.

    Args:
        observation_space: The observation space, without texts.
        action_space: The action space.
        cells: (observations, actions) bool, whether each step is supported, if there are few
            (see `is_enumerable`). The last component of an observation changes fastest.
        low: Without cells: the lower bound of each component of supported observations.
        high: Their upper bounds.
        action_low: Without cells: the lower bound of each component of supported actions.
        action_high: Their upper bounds.
    """

    observation_space: Space
    action_space: Space
    cells: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    action_low: np.ndarray | None = None
    action_high: np.ndarray | None = None

    def covers(self, observation: Any, action: Any) -> bool:
        """Return whether a step is supported."""
        if self.cells is not None:
            place = int(action) - int(self.action_space.low[0])
            return bool(self._cells_of(self.cells, observation)[place])
        action_range = self.action_low, self.action_high
        return self.has_supported_action(observation, None) and _is_within(
            action_range, _flat_value(self.action_space, action)
        )

    def has_supported_action(self, observation: Any, valid: Sequence[int] | None) -> bool:
        """Return whether any valid action is supported; `valid` is None if all are valid."""
        if self.cells is None:
            value = _flat_value(self.observation_space, observation)
            return _is_within((self.low, self.high), value)
        actions, low = self._cells_of(self.cells, observation), int(self.action_space.low[0])
        return bool(
            actions.any() if valid is None else any(actions[action - low] for action in valid)
        )

    def conditions(self) -> list[str]:
        """Return Python expressions of `here` and `action` that all hold for supported steps."""
        names = component_names(self.observation_space, "here")
        names += component_names(self.action_space, "action")
        bounds = component_bounds(self.observation_space, self.action_space)
        if self.cells is not None:
            index = "0"
            for name, (low, high) in zip(names, bounds, strict=True):
                index = f"({index}) * {int(high - low + 1)} + int({name}) - {int(low)}"
            return [f"SUPPORTED[{index}] == '1'"]
        if self.low is None or self.high is None:
            return []
        lows = [*self.low, *(() if self.action_low is None else self.action_low)]
        highs = [*self.high, *(() if self.action_high is None else self.action_high)]
        comparisons = []
        # Bounds of the space need no comparison.
        for name, (least, most), low, high in zip(names, bounds, lows, highs, strict=False):
            comparisons += [f"{name} >= {float(low)!r}"] * bool(low > least)
            comparisons += [f"{name} <= {float(high)!r}"] * bool(high < most)
        return comparisons

    def _cells_of(self, cells: np.ndarray, observation: Any) -> np.ndarray:
        """Return the mask of the supported actions of an observation."""
        value = _flat_value(self.observation_space, observation)
        [number] = _cell_numbers(component_bounds(self.observation_space), value)
        return np.asarray(cells[number])


class ExtremeReturn(NamedTuple):
    """The worst or best discounted return of recorded rows.

    Attributes:
        value: The return.
        ends: Whether its episode terminated.
        distance: Largest distance of a recorded reward from `reward_per_step`, on its better side
            for the worst return, on its worse side for the best. If all rewards are equal, their
            size, or 1 if they are 0.
    """

    value: float
    ends: bool
    distance: float = 0.0

    @property
    def reward_per_step(self) -> float:
        """The constant reward whose endless discounted sum is the return."""
        return (1 - DISCOUNT) * self.value


def extreme_return(rows: Dataset, *, best: bool) -> ExtremeReturn:
    """Return the lowest discounted return after any row, or the highest if `best`.

    An episode that did not terminate is assumed to continue with its mean reward.
    """
    returns = []
    for number in np.unique(rows.columns["episodes"]):
        own = rows.columns["episodes"] == number
        rewards = rows.columns["rewards"][own]
        ends = bool(rows.columns["terminations"][own][-1])
        value = 0.0 if ends else float(rewards.mean()) / (1 - DISCOUNT)
        for reward in rewards[::-1].tolist():
            value = reward + DISCOUNT * value
            returns.append(ExtremeReturn(value, ends))
    found = max(returns) if best else min(returns)
    distances = (rows.columns["rewards"] - found.reward_per_step) * (-1 if best else 1)
    distance = max(0.0, float(distances.max()))
    return found._replace(distance=distance or abs(float(rows.columns["rewards"][0])) or 1.0)


def add_doubt(
    program: str,
    support: Support,
    extreme: ExtremeReturn,
    *,
    best: bool = False,
    valid: bool = False,
) -> str:
    """Return a changed program, whose unsupported steps have the worst return, or the best.

    With cells, an unsupported step ends the episode, with the return as its reward. With bounds, a
    step outside them does the same if the episode of the extreme return terminated. Otherwise the
    step happens as predicted, but its reward is reduced by `extreme.distance` and at most
    `extreme.reward_per_step` (for `best`: raised, and at least). So of two unsupported steps the
    planner still prefers the better one. For example, plans in CartPole, whose worst episodes
    terminate, stay within the recorded part of the track. Plans for a car whose episodes are only
    truncated may reach a speed that no row shows.

    Args:
        program: The text of the program.
        support: The supported steps.
        extreme: The worst or best recorded return.
        best: Whether `extreme` is the best return.
        valid: Whether steps of the program return valid actions.
    """
    conditions = support.conditions()
    if not conditions:
        return program
    if support.cells is not None:
        cells = "".join("01"[int(cell)] for cell in support.cells.ravel())
        program += f"\nSUPPORTED = {cells!r}\n"
    if support.cells is not None or extreme.ends:
        before = f"return here, {float(extreme.value)!r}, True" + ", ()" * valid
        after = "answer"
    else:
        before = "pass"
        bound, sign = ("max", "+") if best else ("min", "-")
        reward = f"float(answer[1]) {sign} {float(extreme.distance)!r}"
        bound = f"{bound}({reward}, {float(extreme.reward_per_step)!r})"
        after = f"answer[0], {bound}, *answer[2:]"
    doubtful = f"not ({' and '.join(conditions)})"
    return f"{program}\n{_WRAPPER.format(doubtful, before, after)}"


# The wrapper follows the program, so that the line numbers of the program do not change.
_WRAPPER = """
if hasattr(Environment, "set_state"):

    class _Doubted(Environment):
        def set_state(self, observation):
            self.doubted_here = observation
            super().set_state(observation)

        def step(self, action):
            here = self.doubted_here
            doubtful = {0}
            if doubtful:
                {1}
            answer = super().step(action)
            self.doubted_here = answer[0]
            if doubtful:
                return {2}
            return answer

    Environment = _Doubted
"""


@dataclass(frozen=True)
class DoubtedModel(WorldModel):
    """A program that predicts unchanged and plans with changed programs (see `add_doubt`).

    Args:
        plain: The program itself, for predictions.
        doubted: The changed program, for plans.
        otherwise: The program for plans from observations without any supported action. There
            every step of `doubted` may end the episode, which leaves the planner no choice.
        support: The supported steps.
    """

    kind = "program"

    plain: WorldModel
    doubted: WorldModel
    otherwise: WorldModel
    support: Support

    def describe(self) -> str:
        """Return the name of the program."""
        return self.plain.describe()

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Return the predictions of the unchanged program."""
        return self.plain.predict(rows, seed=seed, draws=draws)

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Continue episodes in the changed program, in which plans are made."""
        return self.doubted.imagine(starts, rows, seed=seed)

    def open(self, planners: Sequence[Planning], task: Task) -> DoubtingSession:
        """Start planning with both programs for plans."""
        otherwise = self.otherwise.open(planners, task)
        is_same = self.doubted is self.otherwise
        doubted = otherwise if is_same else self.doubted.open(planners, task)
        return DoubtingSession(otherwise, doubted, self.support)


class DoubtingSession(PlanningSession):
    """Plans with a `DoubtedModel`; each plan records whether its first step is supported."""

    def __init__(
        self, otherwise: PlanningSession, doubted: PlanningSession, support: Support
    ) -> None:
        self._otherwise, self._doubted, self._support = otherwise, doubted, support

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return plans for moments of different episodes, in the order of the moments."""
        has_support = [
            self._support.has_supported_action(moment.state, moment.valid) for moment in moments
        ]
        plans: list[Plan] = [Plan([], None)] * len(moments)
        for session, supported in ((self._doubted, True), (self._otherwise, False)):
            places = [place for place, found in enumerate(has_support) if found is supported]
            if not places:
                continue
            before = session.steps
            new_plans = session.plan([moments[place] for place in places])
            self.steps += session.steps - before
            self.report = self._doubted.report or self._otherwise.report
            for place, plan in zip(places, new_plans, strict=True):
                state = moments[place].state
                covered = not plan.actions or self._support.covers(state, plan.actions[0])
                plans[place] = plan if covered else plan._replace(supported=False)
        return plans

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Confirm the plans of both sessions."""
        confirmations = self._doubted.confirm(seconds)
        if self._otherwise is self._doubted:
            return confirmations
        others = self._otherwise.confirm(seconds)
        return {
            episode: Confirmation(
                one.decisions + others[episode].decisions, one.verified and others[episode].verified
            )
            for episode, one in confirmations.items()
        }

    def close(self) -> None:
        """Close both sessions."""
        try:
            self._doubted.close()
        finally:
            self._otherwise.close()


def is_enumerable(observation_space: Space, action_space: Space) -> bool:
    """Return whether there are at most 12,000 pairs of observation and action.

    A program steps through 12,000 pairs in about a second.
    """
    if action_space.kind != "discrete":
        return False
    return observation_space.cardinality * action_space.count <= 12_000


def component_bounds(*spaces: Space) -> list[tuple[float, float]]:
    """Return the lower and upper bound of every component of some spaces."""
    leaves = [leaf.space for space in spaces for leaf in space.leaves("")]
    return [pair for leaf in leaves for pair in zip(leaf.low, leaf.high, strict=True)]


def _all_cells(observation_space: Space, action_space: Space) -> Columns:
    """Return columns of every observation with every action; the last component varies fastest."""
    bounds = component_bounds(observation_space, action_space)
    counts = [int(high - low) + 1 for low, high in bounds]
    grid = np.indices(counts).reshape(len(counts), -1).T
    grid = grid + np.array([int(low) for low, _ in bounds])
    return _columns_of(grid, observation_space, action_space)


def _columns_of(values: np.ndarray, observation_space: Space, action_space: Space) -> Columns:
    """Return columns of observations and actions from component values (rows, components)."""
    columns: Columns = {}
    for name, space in (("observations", observation_space), ("actions", action_space)):
        for leaf in space.leaves(name):
            own, values = values[:, : leaf.space.size], values[:, leaf.space.size :]
            columns[leaf.name] = own.reshape(len(own), *leaf.space.shape).astype(leaf.space.dtype)
    return columns


def _cell_numbers(bounds: Sequence[tuple[float, float]], numbers: np.ndarray) -> np.ndarray:
    """Return the index in `_all_cells` of each row of component values (rows, components)."""
    lows, highs = np.array(bounds, np.int64).T
    offsets = tuple((numbers.astype(np.int64) - lows).T)
    # Values outside the space get the nearest cell here; the planning session reports them later.
    return np.asarray(np.ravel_multi_index(offsets, tuple(highs - lows + 1), mode="clip"))


def _flat_columns(space: Space, columns: Columns, name: str) -> np.ndarray:
    """Return the components of a field as real numbers (rows, components)."""
    leaves = [columns[leaf.name] for leaf in space.leaves(name)]
    return np.hstack([leaf.reshape(len(leaf), -1).astype(float) for leaf in leaves])


def _flat_value(space: Space, value: Any) -> np.ndarray:
    return _flat_columns(space, space.pack("value", [value]), "value")


def _is_within(bounds: tuple[np.ndarray | None, np.ndarray | None], value: np.ndarray) -> bool:
    low, high = bounds
    return low is None or high is None or bool(np.all((low <= value) & (value <= high)))
