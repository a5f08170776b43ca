"""The choice between planners by a trial in the model that they plan in."""

import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.tasks import Task
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment, Unsuited, find_planner
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.runs.observer import Observer
from cwm_cli.worlds.model import Planning, PlanningSession, Stuck, WorldModel


class PlannerTrial(NamedTuple):
    """The imagined episodes of a planner.

    Args:
        planner: The planner.
        mean: Mean predicted return. If the trial stopped early, its upper bound.
        is_complete: Whether the trial did not stop early.
        has_ends: Whether an episode terminated.
    """

    planner: Planning
    mean: float
    is_complete: bool = True
    has_ends: bool = False

    def __str__(self) -> str:
        return f"{self.planner.name} {'' if self.is_complete else 'at most '}{self.mean:.4g}"


class _Trials(NamedTuple):
    """The model, and the first observations of the episodes that all planners play in it."""

    model: WorldModel
    task: Task
    rows: Dataset
    starts: Sequence[Any]


def choose_by_trial(
    model: WorldModel,
    planners: Sequence[Planning],
    task: Task,
    rows: Dataset,
    observer: Observer,
) -> Planning | None:
    """Return the planner with the highest return in imagined episodes.

    All planners play the same episodes in the model, from the first observations of recorded
    episodes. A planner stops as soon as it can no longer reach the return of a planner before it,
    if no later reward exceeds all recorded and predicted ones. Reserve planners play only if
    episodes terminate, in the data and in the model.

    Args:
        model: The model to plan in, which also predicts the steps.
        planners: The planners, in order: of equal returns the first one is taken.
        task: The task, which limits the steps.
        rows: Recorded rows.
        observer: Receives a note with the predicted returns.

    Returns:
        The planner; None if fewer than two can plan with the model, and for models with memory
        or valid actions.
    """
    if model.remembers or rows.has_valid_actions:
        return None
    episodes = 3
    first = np.sort(np.unique(rows.columns["episodes"], return_index=True)[1])[:episodes]
    starts = [rows.observation_space.unpack("observations", rows.columns, row) for row in first]
    trials, found = _Trials(model, task, rows, starts), list[PlannerTrial]()
    is_reserve = {p.name: find_planner(p.address or p.name).RESERVE for p in planners}
    if not rows.columns["terminations"].any():
        planners = [p for p in planners if not is_reserve[p.name]] or planners
    began, is_noted = time.monotonic(), False
    for planner in planners:
        if is_reserve[planner.name] and found and not any(trial.has_ends for trial in found):
            continue
        if planner is planners[-1] and not found:  # no other planner can plan with the model
            return None
        if time.monotonic() - began > 3 and not is_noted:
            observer.note("comparing planners in imagined episodes")
            is_noted = True
        to_beat = max((trial.mean for trial in found), default=-np.inf)
        try:
            with model.open([planner], task) as session:
                trial = _play(planner, session, trials, to_beat)
        except (Unsuited, Stuck, CwmError):
            continue
        found.append(trial)
    if len(found) < 2:
        return None
    best = max(found, key=lambda trial: trial.mean)
    others = ", ".join(str(trial) for trial in found if trial is not best)
    observer.note(f"mean predicted return in {len(starts)} imagined episodes: {best} ({others})")
    return best.planner


def _play(
    planner: Planning, session: PlanningSession, trials: _Trials, to_beat: float
) -> PlannerTrial:
    """Play an imagined episode from each start, all in parallel."""
    rows, starts, limit = trials.rows, trials.starts, min(trials.task.limit, 200)
    states, plans = dict(enumerate(starts)), [deque[Any]() for _ in starts]
    decisions: Counter[int] = Counter()
    total, highest = 0.0, float(rows.columns["rewards"].max())
    has_ends = False
    histories = [EpisodeHistory((start,)) for start in starts]
    with closing(trials.model.imagine(histories, rows, seed=trials.task.seed)) as inside:
        for left in reversed(range(limit)):
            planless = [number for number in states if not plans[number]]
            moments = [Moment(n, decisions[n], states[n], left + 1) for n in planless]
            found = session.plan(moments) if moments else []
            for number, plan in zip(planless, found, strict=True):
                if plan.failure is not None:
                    raise CwmError(plan.failure.message)
                plans[number].extend(plan.actions)
                decisions[number] += 1
            actions = [plans[number].popleft() for number in states]
            step = inside.step(rows.action_space.pack("actions", actions))
            total += float(step.rewards.sum())
            highest = max(highest, float(step.rewards.max()))
            lasting, numbers = np.flatnonzero(~step.terminated), list(states)
            has_ends = has_ends or len(lasting) < len(states)
            if not len(lasting):
                break
            inside.keep(lasting)
            states = {
                numbers[place]: rows.observation_space.unpack(
                    "observations", step.observations, place
                )
                for place in lasting.tolist()
            }
            # Negative rewards cost least if the episode ends with the next step.
            bound = total + len(states) * max(highest, highest * left)
            if left and bound <= to_beat * len(starts):
                return PlannerTrial(planner, bound / len(starts), is_complete=False)
    return PlannerTrial(planner, total / len(starts), has_ends=has_ends)
