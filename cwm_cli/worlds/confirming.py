"""Confirm outside the sandbox that the planner made the plans, by repeating decisions.

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
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset, Transition
from cwm_cli.data.spaces import Columns
from cwm_cli.planning import Decider, Moment, Planner, Unsuited, find_planner
from cwm_cli.planning.model import key
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.sandbox.pool import SandboxError
from cwm_cli.worlds.messages import PlanningJob, states_of
from cwm_cli.worlds.model import Confirmation
from cwm_cli.worlds.remote import (
    AGREEMENT,
    OutOfTime,
    ProgramFailed,
    RemoteModel,
    ReportedStep,
    TamperingError,
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

MAX_STEP_RATIO = 4
"""The program may report at most this many times as many steps as the repetition takes.

The steps of episodes that are planned together are divided evenly, though some end earlier.
"""


def confirmed_share(episodes: int) -> float:
    """Return the probability that a whole window is confirmed, 1 for a single episode.

    If there are few episodes, the probability is higher: one episode on average.
    """
    return max(SHARE, 1 / episodes)


def confirmed_length(count: int, share: float = SHARE) -> int:
    """Draw how many of the first decisions of a window of `count` decisions are confirmed."""
    rng = secrets.SystemRandom()
    return count if rng.random() < share else ceil(count * (1 - rng.random()) ** EXPONENT)


class Decision(NamedTuple):
    """A plan for a moment.

    Args:
        moment: The moment.
        plan: The planned actions.
        planner: The index of the planner in the job.
        steps: The number of model steps that the plan took.
        life: The number of the process, which is replaced after a failure.
    """

    moment: Moment
    plan: list[Any]
    planner: int
    steps: int
    life: int


@dataclass
class Confirmer:
    """Repeats random decisions of finished episodes, and confirms the model steps they rest on.

    The number of repeated decisions does not depend on time, which the program controls. An
    episode whose decisions cannot be confirmed in time is not verified. With `share` 0 nothing is
    confirmed.
    """

    sandbox: Sandbox
    job: PlanningJob
    share: float = SHARE
    _decisions: dict[int, list[Decision]] = field(default_factory=dict)
    _model: RemoteModel | None = None
    _planners: list[Planner] = field(default_factory=list)
    _allowed: float = 0.0
    _deadline: float = inf
    _limit: float = 0.0
    _max_steps: int = 0

    def add(self, decision: Decision) -> None:
        """Add a decision, which may be repeated when its episode is over."""
        if self.share:
            self._decisions.setdefault(decision.moment.episode, []).append(decision)

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Repeat decisions of finished episodes.

        Args:
            seconds: The planning time of each episode, by the number of the episode.

        Raises:
            TamperingError: If a decision differs, or a model step that it rests on.
        """
        self._allowed = SECONDS + TIMES * sum(seconds.values())
        self._deadline = time.monotonic() + self._allowed
        episodes = [self._split_windows(self._decisions.pop(number, [])) for number in seconds]
        reported, counts = list[ReportedStep](), dict.fromkeys(seconds, 0)
        try:
            parts = [
                [window[: confirmed_length(len(window), self.share)] for window in windows]
                for windows in episodes
            ]
            for batch in self._batches(parts):
                reported += self._repeat(batch)
                for window in batch:
                    counts[window[0].moment.episode] += len(window)
            for windows in filter(None, episodes):
                most, largest = max(
                    ((max(decision.steps for decision in window), window) for window in windows),
                    key=lambda counted: counted[0],
                )
                # Far more steps than repeated decisions took were not taken by the planner.
                if most > MAX_STEP_RATIO * self._max_steps:
                    reported += self._repeat([largest])
                    counts[largest[0].moment.episode] += len(largest)
            self._confirm_steps(reported)
        except OutOfTime:
            self.close()  # not all steps of this process were confirmed
            return dict.fromkeys(seconds, Confirmation(0, verified=False))
        return {episode: Confirmation(count) for episode, count in counts.items()}

    def close(self) -> None:
        """End the stepping process."""
        # unset first, so that no caller uses the model if `close` raises
        model, self._model = self._model, None
        if model is not None:
            model.close()

    def _open_model(self) -> RemoteModel:
        """Return the stepping process, a new one if the limits of the last are too short."""
        if self._model is not None and self._limit < self._allowed / 2:
            self.close()
        if self._model is None:
            self._limit = self._allowed
            self._model = RemoteModel(self._limited(self._allowed), self.job)
            self._planners = [find_planner(name)(**options) for name, options in self.job.planners]
        self._model.deadline = self._deadline
        return self._model

    def _limited(self, seconds: float) -> Sandbox:
        """Return the sandbox with a shorter wall-clock limit."""
        sandbox = copy(self.sandbox)  # a shallow copy shares the workers
        limits = sandbox.limits
        sandbox.limits = replace(limits, wall_seconds=min(limits.wall_seconds, seconds))
        return sandbox

    def _split_windows(self, decisions: list[Decision]) -> list[list[Decision]]:
        """Split decisions into windows; the planner has no memory at the start of a window."""
        lengths = [find_planner(name).SEGMENT for name, _ in self.job.planners]
        windows: list[list[Decision]] = []
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
                windows.append([])
            windows[-1].append(decision)
            before = decision
        return windows

    def _batches(self, episodes: list[list[list[Decision]]]) -> list[list[list[Decision]]]:
        """Group windows to repeat together: one per episode, if the planner allows it."""
        batches: dict[tuple[int, int, int], list[list[Decision]]] = {}
        for number, windows in enumerate(episodes):
            for place, window in enumerate(windows):
                planner = window[0].planner
                # In a batch, the draws of one episode would shift the draws of the next episode.
                alone = self.job.draws or find_planner(self.job.planners[planner][0]).ALONE
                batches.setdefault((planner, place, number if alone else -1), []).append(window)
        return list(batches.values())

    def _repeat(self, windows: list[list[Decision]]) -> list[ReportedStep]:
        """Repeat windows, a second time in a new process if the first fails.

        Return the steps that the windows rest on.
        """
        try:
            return self._repeat_once(windows)
        except (ProgramFailed, SandboxError):
            self._check_time()
            self.close()
        try:
            return self._repeat_once(windows)
        except ProgramFailed as error:
            self._check_time()
            where = _where(windows[0][0].moment)
            words = printable(error.failure.message.splitlines()[0], 200)
            raise TamperingError(f"{where} failed when it was repeated ({words})") from error

    def _check_time(self) -> None:
        """Raise `OutOfTime` after a failure near the deadline, which itself ends processes."""
        if time.monotonic() > self._deadline - 1:
            raise OutOfTime

    def _repeat_once(self, windows: list[list[Decision]]) -> list[ReportedStep]:
        """Repeat windows of different episodes; return the steps that they rest on.

        The steps of a program with memory are confirmed immediately, since they need its places.
        """
        model, job = self._open_model(), self.job
        model.forget()
        decider = Decider(self._planners[windows[0][0].planner :], model, seed=job.seed)
        # Encode and decode each state, so that the planner gets the values that a program gets.
        encoder, decoder, reported = states_of(job), states_of(job), list[ReportedStep]()
        requested = np.zeros(len(windows))
        # Windows of several episodes are planned together, which saves calls of the process.
        for decisions in zip_longest(*windows):
            places = [place for place, decision in enumerate(decisions) if decision]
            due = [decision for decision in decisions if decision]
            moments = [decision.moment for decision in due]
            states = encoder.encode([0] * len(due), [moment.state for moment in moments])
            pairs = zip(moments, decoder.decode(states, len(due)), strict=True)
            before = model.requested
            try:
                plans = decider.plan([moment._replace(state=state) for moment, state in pairs])
            except Unsuited as reason:
                where = _where(moments[0])
                raise TamperingError(
                    f"{where} cannot come from the planner (it {reason})"
                ) from None
            for decision, plan in zip(due, plans, strict=True):
                if decider.passed_over or not self._is_equal(plan, decision.plan):
                    played, planned = (
                        np.array2string(np.asarray(actions[0]), precision=4)
                        for actions in (decision.plan, plan)
                    )
                    words = f"returned {played} instead of the planner's action {planned}"
                    where = _where(decision.moment)
                    raise TamperingError(f"in {where} the program {words}")
            share = (model.requested - before) / len(due)
            self._max_steps = max(self._max_steps, ceil(share))
            requested[places] += share
            reported += self._take_reported_steps(model, len(due))
        for window, steps in zip(windows, requested, strict=True):
            claimed = sum(decision.steps for decision in window)
            # planners keep tables, so steps of this window may have been taken in another one
            if claimed > MAX_STEP_RATIO * (steps + self._max_steps):
                words = f"{claimed:,} model steps instead of {steps:,.0f}"
                where = _where(window[0].moment)
                raise TamperingError(f"{where} and the following ones report {words}")
        if model.remembers:
            self._confirm_steps(reported)
            reported = []
        return reported

    def _take_reported_steps(self, model: RemoteModel, decisions: int) -> list[ReportedStep]:
        """Return the steps that decisions rest on, including the best and random rollouts."""
        played, model.played = model.played, []
        games, model.random_games = model.random_games, []
        if games:
            for _ in range(decisions):
                model.repeat_random_game(secrets.choice(games))
        reported, model.reported = model.reported, []
        # A planner follows the best rollout, so a program gains most by inventing its return.
        if model.deterministic and played:
            best = max(played, key=lambda rollout: rollout.returned)
            for rollout in (best, *(secrets.choice(played) for _ in range(decisions))):
                reported += model.replay(rollout)
        return reported

    def _is_equal(self, plan: list[Any], other: list[Any]) -> bool:
        """Return whether actions are equal, real numbers within 1e-6 of their range.

        Rounding may differ between a batch of several episodes and a single episode.
        """
        space = self.job.action_space
        if len(plan) != len(other):
            return False
        columns, others = space.pack("actions", plan), space.pack("actions", other)
        for name, leaf in space.leaves("actions"):
            extent = np.reshape(np.subtract(leaf.high, leaf.low), leaf.shape)
            tolerance = 1e-6 * extent if leaf.is_float else 0
            if not (np.abs(columns[name].astype(float) - others[name]) <= tolerance).all():
                return False
        return True

    def _confirm_steps(self, reported: list[ReportedStep]) -> None:
        """Compare up to 1000 reported steps with predictions of processes that only predict."""
        if not reported:
            return
        model = self._open_model()
        if self.job.draws and not model.remembers and not model.tells:
            # only one of several steps with equal inputs, so that each result is drawn again
            inputs = [(key(step.observation), key(step.action)) for step in reported]
            reported = list(dict(zip(inputs, reported, strict=True)).values())
        sample = secrets.SystemRandom().sample(reported, min(1000, len(reported)))
        if model.remembers:
            transitions, checked = self._episodes(model, reported)
        else:
            transitions = [self._transition(number, step) for number, step in enumerate(sample)]
            checked = np.ones(len(sample), bool)
        if not transitions:
            return
        rows = Dataset.of(
            transitions,
            observation_space=self.job.observation_space,
            action_space=self.job.action_space,
        )
        if abilities_of(self.job.program).tells:
            probabilities: list[float | None] = [None] * len(rows)
            if not model.remembers:
                probabilities = [step.probability for step in sample]
            differs = self._differs_from_outcomes(rows, probabilities)[checked]
        else:
            differs = self._differs_from_predictions(rows, checked, model)
        if differs.any():
            words = f"{int(differs.sum())} of {len(differs)} steps used in plans"
            raise TamperingError(f"the program predicts {words} differently when repeated")

    def _differs_from_predictions(
        self, rows: Dataset, checked: np.ndarray, model: RemoteModel
    ) -> np.ndarray:
        """Return a mask of the checked rows that differ from new predictions."""
        draws = 1 if model.deterministic else 20
        if model.remembers:
            predictions = [self._predict(rows, seed) for seed in range(draws)]
        else:  # all draws in one call, as each call starts processes
            tiled = self._predict(rows[np.tile(np.arange(len(rows)), draws)], 0)
            predictions = [
                {name: column[len(rows) * n :][: len(rows)] for name, column in tiled.items()}
                for n in range(draws)
            ]
        differs = np.zeros(int(checked.sum()), bool)
        agrees = _agrees if model.deterministic else _may_be_drawn
        for name in predictions[0]:
            repeated = np.array([columns[name][checked] for columns in predictions])
            differs |= ~agrees(repeated, rows.columns[name][checked])
        return differs

    def _differs_from_outcomes(
        self, rows: Dataset, probabilities: list[float | None]
    ) -> np.ndarray:
        """Return a mask of rows that are not among the outcomes that the program lists now.

        A row also differs if its probability does; None is not compared.
        """
        repeated = self._sandbox_in_time().ask(self.job.program, rows)
        self._raise_failure(repeated.failure)
        assert repeated.probabilities is not None
        found = repeated.probabilities > 0
        for name, column in repeated.columns.items():
            recorded = rows.columns[name][:, None]
            same = np.asarray((column == 1 if name == VALID else column) == recorded)
            if column.dtype.kind == "f":
                same = np.isclose(column, recorded, AGREEMENT, AGREEMENT, equal_nan=True)
            found &= same.reshape(*found.shape, -1).all(axis=2)
        reported = np.array([np.nan if p is None else p for p in probabilities])[:, None]
        found &= np.isnan(reported) | (np.abs(repeated.probabilities - reported) <= AGREEMENT)
        return np.asarray(~found.any(axis=1))

    def _episodes(
        self, model: RemoteModel, reported: list[ReportedStep]
    ) -> tuple[list[Transition], np.ndarray]:
        """Return the paths to some reported steps of a program with memory, as episodes.

        Each episode is a history that happened, followed by steps that the program predicted. The
        program is then corrected with its own predictions, which must not change its memory. If
        the program is random, only first steps after a history are included.

        Returns:
            The transitions, and a mask of the predicted ones. No episode is added after 4000 rows.
        """
        rows, predicted, seen = list[Transition](), list[bool](), set[Any]()
        unknown = () if self.job.valid else None
        for number, last in enumerate(secrets.SystemRandom().sample(reported, len(reported))):
            if len(rows) >= 4000:
                break
            # One path checks all places on it. A random program need not return there again.
            same = last.end if model.deterministic else (last.start, key(last.action))
            if same in seen or not (model.deterministic or model.is_root(last.start)):
                continue
            history, steps = model.path_to(last)
            seen.update([same, *(step.end for step in steps)])
            past = zip(*history[:2], history.rewards, history.observations[1:], strict=False)
            rows += [
                Transition(o, a, after, r, False, episode=number, valid=unknown)
                for o, a, r, after in past
            ]
            rows += [self._transition(number, step) for step in steps]
            predicted += [False] * len(history.actions) + [True] * len(steps)
        return rows, np.array(predicted, bool)

    def _transition(self, episode: int, reported: ReportedStep) -> Transition:
        after, reward, terminated, valid = reported.step
        return Transition(
            reported.observation,
            reported.action,
            after,
            reward,
            terminated,
            episode=episode,
            valid=(valid or ()) if self.job.valid else None,
        )

    def _predict(self, rows: Dataset, seed: int) -> Columns:
        columns, failure = self._sandbox_in_time().predict(self.job.program, rows, seed=seed)
        self._raise_failure(failure)
        if VALID in columns:
            # other values than 0 and 1 mark invalid answers
            columns = columns | {VALID: columns[VALID] == 1}
        return columns

    def _sandbox_in_time(self) -> Sandbox:
        """Return the sandbox, limited to the remaining time."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return self._limited(max(left, 1.0))

    def _raise_failure(self, failure: Failure | None) -> None:
        """Raise `OutOfTime` for a failure near the deadline, `TamperingError` for others."""
        if failure is not None:
            self._check_time()
            words = printable(failure.message.splitlines()[0], 200)
            raise TamperingError(f"the program fails when steps are repeated ({words})")


def _agrees(predictions: np.ndarray, reported: np.ndarray) -> np.ndarray:
    """Return a mask of the rows where a prediction (n, rows, ...) agrees with the report."""
    same = np.asarray(predictions == reported)
    if reported.dtype.kind == "f":
        same = np.isclose(predictions, reported, AGREEMENT, AGREEMENT, equal_nan=True)
    return np.asarray(same.reshape(*same.shape[:2], -1).all(axis=2).any(axis=0))


def _may_be_drawn(predictions: np.ndarray, reported: np.ndarray) -> np.ndarray:
    """Return a mask of the rows whose report may be a draw like the n predictions (n, rows, ...).

    An honest draw is outside the range of the n predictions with a probability of at most
    2 / (n + 1). Rows outside are rejected only if such a large number of rows would be outside by
    chance with a probability below 1e-9. Texts are always accepted.
    """
    from scipy.stats import binom

    rows = len(reported)
    if reported.dtype.kind not in "fiub":
        return np.ones(rows, bool)
    room = AGREEMENT * (1 + np.abs(reported.astype(float)))
    outside = (reported > predictions.max(axis=0) + room) | (
        reported < predictions.min(axis=0) - room
    )
    outside = outside.reshape(rows, -1)
    # the upper tail of the binomial distribution: P(X >= number)
    numbers = np.arange(rows + 2)
    tail = binom.sf(numbers - 1, rows, 2 / (1 + len(predictions)))
    rejected = outside.sum(axis=0) >= numbers[tail < 1e-9].min()
    return np.asarray(~outside[:, rejected].any(axis=1))


def _where(moment: Moment) -> str:
    return f"decision {moment.decision} of episode {moment.episode}"
