"""Confirm that the planner made the plans: make decisions again, on the trusted side.

The planner runs in the process of the program, which is fast, but a program can answer there in
place of the planner. Therefore a planner here makes some decisions of every episode again. It asks
a second process of the program for each step of the model, and processes that only predict confirm
these steps. A program cannot foresee which decisions are made again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import ceil, comb, inf
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset, Transition
from cwm_cli.data.spaces import Columns
from cwm_cli.planning import Decider, Moment, Planner, Unsuited, find_planner
from cwm_cli.planning.model import key
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.sandbox.pool import SandboxError
from cwm_cli.worlds.messages import PlanningJob, states_of
from cwm_cli.worlds.model import Confirmation
from cwm_cli.worlds.remote import (
    AGREEMENT,
    INSTEAD,
    Broke,
    Forged,
    OutOfTime,
    RemoteModel,
    ToldStep,
)

SHARE = 0.1
"""Least probability that a whole window of decisions is confirmed; otherwise its first part is.

A planner that keeps a tree or a plan remembers all decisions of a window, so a decision can only
be made again after the earlier ones. The part is the first n * U ** EXPONENT of n decisions, with
a secret U that is uniform on (0, 1). A program that forges the last 1 - x of a window is caught
with probability p = 1 - (1 - SHARE) * x ** (1 / EXPONENT): 1 for x = 0, 0.51 for x = 0.05, 0.22
for x = 0.5, 0.12 for x = 0.9. It escapes from w such windows with probability (1 - p) ** w. On
average a quarter of all decisions is confirmed.
"""

EXPONENT = 5.0
"""Larger values confirm fewer decisions, and fewer of the last ones in a window."""

SECONDS, TIMES = 30.0, 5.0
"""Wall-clock limit of a confirmation: constant seconds, and a multiple of the planning time.

Confirming a decision of an honest program takes 2 to 7 times as long as planning it.
"""

TOLERANCE = 1e-6
"""By how much actions may differ, as a share of their range.

A batch of several episodes may be rounded otherwise than that of one.
"""

MOST_TIMES = 4
"""How many times as many steps as were asked for here may be said to have been taken there.

Those of episodes that are planned for together are shared out evenly, though some end sooner.
"""

CHECKED = 1000
"""Transitions of a window that are asked again, at most."""

MOST_ROWS = 4000
"""Rows after which no more episodes are asked again: a program with memory needs what was before.
"""


DRAWS = 20
"""How often a program that draws random numbers predicts what it was asked before."""


def confirmed_share(episodes: int) -> float:
    """Return the probability that a whole window is confirmed, 1 for a single episode.

    Of few episodes a larger share is confirmed, one episode on average.
    """
    return max(SHARE, 1 / episodes)


def confirmed_length(count: int, share: float = SHARE) -> int:
    """Draw how many of the first decisions of a window of `count` decisions are confirmed."""
    rng = secrets.SystemRandom()
    return count if rng.random() < share else ceil(count * (1 - rng.random()) ** EXPONENT)


class Decision(NamedTuple):
    """What was planned at a moment, by which planner of a list, in how many steps of the model.

    `life` tells processes that came one after the other.
    """

    moment: Moment
    plan: list[Any]
    planner: int
    steps: int
    life: int


@dataclass
class Confirmer:
    """Makes random decisions of finished episodes again, and confirms their steps of the model.

    How many does not depend on time, which the program controls: an episode whose decisions
    cannot be confirmed in time is not verified. With the share 0 nothing is confirmed.
    """

    sandbox: Sandbox
    job: PlanningJob
    share: float = SHARE
    _decided: dict[int, list[Decision]] = field(default_factory=dict)
    _model: RemoteModel | None = None
    _planners: list[Planner] = field(default_factory=list)
    _allowed: float = 0.0
    _deadline: float = inf
    _limit: float = 0.0
    _most: int = 0

    def add(self, decision: Decision) -> None:
        """Take in a decision, to make it again perhaps when its episode is over."""
        if self.share:
            self._decided.setdefault(decision.moment.episode, []).append(decision)

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Make decisions of episodes again, given the planning seconds of each.

        Raises:
            Forged: If a decision differs, or rests on steps that the program answers otherwise.
        """
        self._allowed = SECONDS + TIMES * sum(seconds.values())
        self._deadline = time.monotonic() + self._allowed
        windows = [self._parts(self._decided.pop(each, [])) for each in seconds]
        told, made = list[ToldStep](), dict.fromkeys(seconds, 0)
        try:
            drawn = [
                [window[: confirmed_length(len(window), self.share)] for window in each]
                for each in windows
            ]
            for batch in self._batches(drawn):
                told += self._confirm(batch)
                for window in batch:
                    made[window[0].moment.episode] += len(window)
            for window in filter(None, map(self._largest, windows)):
                told += self._confirm([window])
                made[window[0].moment.episode] += len(window)
            self._ask_again(told)
        except OutOfTime:
            self.close()  # the answers of this process were not all asked again
            return dict.fromkeys(seconds, Confirmation(0, verified=False))
        return {episode: Confirmation(count) for episode, count in made.items()}

    def close(self) -> None:
        """End the process that is asked."""
        model, self._model = self._model, None
        if model is not None:
            model.close()

    def _asked(self) -> RemoteModel:
        """Return the stepping process, a new one if the limits of the last are too short."""
        if self._model is not None and self._limit < self._allowed / 2:
            self.close()
        if self._model is None:
            self._limit = self._allowed
            self._model = RemoteModel(self._limited(self._allowed), self.job)
            self._planners = [find_planner(name)(**how) for name, how in self.job.planners]
        self._model.deadline = self._deadline
        return self._model

    def _limited(self, seconds: float) -> Sandbox:
        """Return the sandbox with a shorter wall-clock limit."""
        sandbox = copy(self.sandbox)  # which shares the workers
        limits = sandbox.limits
        sandbox.limits = replace(limits, wall_seconds=min(limits.wall_seconds, seconds))
        return sandbox

    def _parts(self, decisions: list[Decision]) -> list[list[Decision]]:
        """Cut decisions into parts, before the first of which the planner remembers nothing."""
        lengths = [find_planner(name).SEGMENT for name, _ in self.job.planners]

        parts: list[list[Decision]] = []
        before: Decision | None = None
        for decision in decisions:
            number = decision.moment.decision
            follows = (
                before is not None
                and number == before.moment.decision + 1
                and number % lengths[decision.planner]
                and (decision.life, decision.planner) == (before.life, before.planner)
            )
            if not follows:
                parts.append([])
            parts[-1].append(decision)
            before = decision
        return parts

    def _batches(self, episodes: list[list[list[Decision]]]) -> list[list[list[Decision]]]:
        """Group windows to make again together: one of each episode if that is faster."""
        batches: dict[tuple[int, int, int], list[list[Decision]]] = {}
        for number, windows in enumerate(episodes):
            for place, window in enumerate(windows):
                planner = window[0].planner
                alone = self.job.draws or find_planner(self.job.planners[planner][0]).ALONE
                batches.setdefault((planner, place, number if alone else -1), []).append(window)
        return list(batches.values())

    def _largest(self, windows: list[list[Decision]]) -> list[Decision] | None:
        """Return the window of the largest step count if decisions here took far fewer steps."""
        counts = [max(decision.steps for decision in window) for window in windows]
        if not counts or max(counts) <= MOST_TIMES * self._most:
            return None
        return windows[counts.index(max(counts))]

    def _confirm(self, windows: list[list[Decision]]) -> list[ToldStep]:
        """Make windows again, with a new process if that fails; refuse a program that fails here.

        Return the steps that the windows rest on.
        """
        try:
            return self._remade(windows)
        except (Broke, SandboxError):
            self._check_time()
            self.close()
        try:
            return self._remade(windows)
        except Broke as broke:
            self._check_time()
            where = _where(windows[0][0].moment)
            words = printable(broke.failure.message.splitlines()[0], 200)
            raise Forged(f"{where} failed when it was repeated ({words}): {INSTEAD}") from broke

    def _check_time(self) -> None:
        """Raise `OutOfTime` if a failure comes with the deadline, which ends processes."""
        if time.monotonic() > self._deadline - 1:
            raise OutOfTime

    def _remade(self, windows: list[list[Decision]]) -> list[ToldStep]:
        """Make windows of different episodes again; return the steps that they rest on.

        Those of a program with memory are asked again here, since they need its places.
        """
        model, job = self._asked(), self.job
        model.forget()
        decider = Decider(self._planners[windows[0][0].planner :], model, seed=job.seed)
        there, back, told = states_of(job), states_of(job), list[ToldStep]()
        asked = np.zeros(len(windows))
        for decisions in zip_longest(*windows):
            places = [place for place, decision in enumerate(decisions) if decision]
            some = [decision for decision in decisions if decision]
            moments = [decision.moment for decision in some]
            states = there.encode([0] * len(some), [moment.state for moment in moments])
            pairs = zip(moments, back.decode(states, len(some)), strict=True)
            before = model.asked
            try:
                plans = decider.plan([moment._replace(state=state) for moment, state in pairs])
            except Unsuited as reason:
                where = _where(moments[0])
                raise Forged(
                    f"{where} cannot come from the planner (it {reason}): {INSTEAD}"
                ) from None
            for decision, plan in zip(some, plans, strict=True):
                if decider.passed_over or not self._equal(plan, decision.plan):
                    raise Forged(self._other(decision.moment, decision.plan, plan))
            share = (model.asked - before) / len(some)
            self._most = max(self._most, ceil(share))
            asked[places] += share
            told += self._rests_on(model, len(some))
        for window, steps in zip(windows, asked, strict=True):
            claimed = sum(decision.steps for decision in window)
            # planners keep tables, so that steps may have been asked for in another window
            if claimed > MOST_TIMES * (steps + self._most):
                words = f"{claimed:,} model steps instead of {steps:,.0f}"
                where = _where(window[0].moment)
                raise Forged(f"{where} and the following ones report {words}: {INSTEAD}")
        if model.remembers:
            self._ask_again(told)
            told = []
        return told

    def _rests_on(self, model: RemoteModel, decisions: int) -> list[ToldStep]:
        """Return steps that decisions rest on: single steps, the best and random rollouts."""
        played, model.played = model.played, []
        told, model.told = model.told, []
        if model.deterministic and played:
            best = max(played, key=lambda tried: tried.returned)
            for tried in (best, *(secrets.choice(played) for _ in range(decisions))):
                told += model.walk(tried)
        return told

    def _equal(self, plan: list[Any], other: list[Any]) -> bool:
        """Whether actions are the same, real numbers within the tolerance."""
        space = self.job.action_space
        if len(plan) != len(other):
            return False
        if not space.is_float:
            return plan == other
        room = TOLERANCE * (np.array(space.high) - np.array(space.low)).reshape(space.shape)
        pairs = zip(plan, other, strict=True)
        return all(bool((np.abs(np.asarray(a) - np.asarray(b)) <= room).all()) for a, b in pairs)

    def _other(self, moment: Moment, played: list[Any], planned: list[Any]) -> str:
        """Say that what was played is not what is planned."""
        first, second = (
            np.array2string(np.asarray(plan[0]), precision=4) for plan in (played, planned)
        )
        words = f"the program returned {first} instead of the planner's action {second}"
        return f"in {_where(moment)} {words}: {INSTEAD}"

    def _ask_again(self, told: list[ToldStep]) -> None:
        """Have processes that only predict say what follows on some of what was told."""
        if not told:
            return
        model = self._asked()
        if self.job.draws and not model.remembers and not model.tells:
            # of equal questions one, so that what chance decides is decided anew
            told = list({(key(each.observation), key(each.action)): each for each in told}.values())
        picked = secrets.SystemRandom().sample(told, min(CHECKED, len(told)))
        given, asked = self._trails(model, told) if model.remembers else self._rows(picked)
        if not given:
            return
        rows = Dataset.of(
            given,
            observation_space=self.job.observation_space,
            action_space=self.job.action_space,
        )
        certain = model.deterministic
        if abilities_of(self.job.program).tells:
            chances: list[float | None] = [None] * len(rows)
            if not model.remembers:
                chances = [each.probability for each in picked]
            wrong = self._told_otherwise(rows, chances)[asked]
        else:
            times = 1 if certain else DRAWS
            if model.remembers:
                answers = [self._predicted(rows, seed) for seed in range(times)]
            else:  # all draws in one call, as each call starts processes
                tiled = self._predicted(rows[np.tile(np.arange(len(rows)), times)], 0)
                answers = [
                    {name: column[len(rows) * n :][: len(rows)] for name, column in tiled.items()}
                    for n in range(times)
                ]
            wrong = np.zeros(int(asked.sum()), bool)
            for name in answers[0]:
                again = np.array([each[name][asked] for each in answers])
                alike = _alike if certain else _likely
                wrong |= ~alike(again, rows.columns[name][asked])
        if wrong.any():
            said = f"{int(wrong.sum())} of {len(wrong)} steps used in plans"
            raise Forged(f"the program predicts {said} differently when repeated: {INSTEAD}")

    def _rows(self, told: list[ToldStep]) -> tuple[list[Transition], np.ndarray]:
        """Return what was told as rows, and which of these are asked again: all."""
        rows = [self._row(number, each) for number, each in enumerate(told)]
        return rows, np.ones(len(rows), bool)

    def _told_otherwise(self, rows: Dataset, chances: list[float | None]) -> np.ndarray:
        """Return which rows are none of the outcomes that are told now, or less or more likely."""
        again = self._in_time().ask(self.job.program, rows)
        self._refuse(again.failure)
        assert again.probabilities is not None
        found = again.probabilities > 0
        for name, column in again.columns.items():
            said = rows.columns[name][:, None]
            same = np.asarray((column == 1 if name == VALID else column) == said)
            if column.dtype.kind == "f":
                same = np.isclose(column, said, AGREEMENT, AGREEMENT, equal_nan=True)
            found &= same.reshape(*found.shape, -1).all(axis=2)
        told = np.array([np.nan if chance is None else chance for chance in chances])[:, None]
        found &= np.isnan(told) | (np.abs(again.probabilities - told) <= AGREEMENT)
        return np.asarray(~found.any(axis=1))

    def _trails(
        self, model: RemoteModel, told: list[ToldStep]
    ) -> tuple[list[Transition], np.ndarray]:
        """Return how some of what was told came about, as episodes: what happened, and then that.

        What the program predicted comes about there, which has to be nothing new to it. Where
        chance decides, only what was told of where an episode really stood is asked again.
        """
        rows, asked, seen = list[Transition](), list[bool](), set[Any]()
        unknown = () if self.job.valid else None
        for number, each in enumerate(secrets.SystemRandom().sample(told, len(told))):
            if len(rows) >= MOST_ROWS:
                break
            alike = each.end if model.deterministic else (each.start, key(each.action))
            if alike in seen or not (model.deterministic or model.is_root(each.start)):
                continue
            history, steps = model.trail(each)
            seen.update([alike, *(step.end for step in steps)])
            past = zip(*history[:2], history.rewards, history.observations[1:], strict=False)
            rows += [
                Transition(o, a, after, r, False, episode=number, valid=unknown)
                for o, a, r, after in past
            ]
            rows += [self._row(number, step) for step in steps]
            asked += [False] * len(history.actions) + [True] * len(steps)
        return rows, np.array(asked, bool)

    def _row(self, number: int, told: ToldStep) -> Transition:
        step = told.step
        valid = (step.valid or ()) if self.job.valid else None
        said = step.observation, step.reward, step.terminated
        return Transition(told.observation, told.action, *said, episode=number, valid=valid)

    def _predicted(self, rows: Dataset, seed: int) -> Columns:
        """Return what the program predicts; `Forged` when it fails at that."""
        columns, failure = self._in_time().predict(self.job.program, rows, seed=seed)
        self._refuse(failure)
        if VALID in columns:
            columns = columns | {VALID: columns[VALID] == 1}  # what is no action counts for nothing
        return columns

    def _in_time(self) -> Sandbox:
        """Return the sandbox, limited to the remaining time."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return self._limited(max(left, 1.0))

    def _refuse(self, failure: Failure | None) -> None:
        """Raise `Forged` when the program fails, `OutOfTime` when it only took too long."""
        if failure is not None:
            self._check_time()
            words = printable(failure.message.splitlines()[0], 200)
            raise Forged(f"the program fails when steps are repeated ({words}): {INSTEAD}")


def _alike(answers: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Return for each row whether the only answer agrees with what was told."""
    [again] = answers
    same = np.asarray(again == told)
    if told.dtype.kind == "f":
        same = np.isclose(again, told, rtol=AGREEMENT, atol=AGREEMENT, equal_nan=True)
    return np.asarray(same.reshape(len(same), -1).all(axis=1))


def _likely(answers: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Return for each row whether what was told may be drawn as the answers are; not for texts.

    What is drawn alike lies beyond all of them in no more than 2 rows of 1 + their number. Only
    where it does so more often than chance would once in a thousand million are those rows
    another draw.
    """
    rows = len(told)
    if told.dtype.kind not in "fiub":
        return np.ones(rows, bool)
    room = AGREEMENT * (1 + np.abs(told.astype(float)))
    beyond = (told > answers.max(axis=0) + room) | (told < answers.min(axis=0) - room)
    beyond = beyond.reshape(rows, -1)
    chance, likely, most = 2 / (1 + len(answers)), 0.0, rows
    while likely < 1e-9:
        likely += comb(rows, most) * chance**most * (1 - chance) ** (rows - most)
        most -= 1
    return np.asarray(~beyond[:, beyond.sum(axis=0) > most + 1].any(axis=1))


def _where(moment: Moment) -> str:
    return f"decision {moment.decision} of episode {moment.episode}"
