"""Whether plans are those of the planner: decisions are made again, on the trusted side.

The planner runs in the process of the program, which is fast, and where a program can answer in
its place. So of every plan some decisions are made again by a planner here, which asks a second
process of the program for each step of the model. What it was told there is asked a third
time, of processes that only predict. The program never knows which decisions those are.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from math import comb
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset, Transition
from cwm_cli.data.spaces import Columns
from cwm_cli.planning import Decider, Moment, Unsuited, find_planner
from cwm_cli.planning.model import key
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.sandbox.pool import SandboxError
from cwm_cli.worlds.messages import PlanningJob, states_of
from cwm_cli.worlds.remote import AGREEMENT, INSTEAD, Broke, Forged, RemoteModel, ToldStep

SHARE = 0.1
"""Of the time of planning, that making decisions again takes once the first were."""

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
    """Makes some decisions of episodes that are over again, and has what they rest on confirmed.

    It takes about a share of the time of planning; at least once it is done however long
    it takes, unless the share is 0.
    """

    sandbox: Sandbox
    job: PlanningJob
    share: float = SHARE
    _decided: dict[int, list[Decision]] = field(default_factory=dict)
    _model: RemoteModel | None = None
    _most: int = 0
    _windows: int = 0
    _seconds: float = 0.0

    def add(self, decision: Decision) -> None:
        """Take in a decision, to make it again perhaps when its episode is over."""
        if self.share:
            self._decided.setdefault(decision.moment.episode, []).append(decision)

    def confirm(self, episode: int, seconds: float) -> int:
        """Make decisions of an episode again whose planning took so long; say how many.

        `Forged` when one is another one now, or rests on what the program says otherwise.
        """
        windows = self._parts(self._decided.pop(episode, []))
        confirmed = 0
        for window in self._drawn(windows, seconds):
            if self._model is None:
                self._model = RemoteModel(self.sandbox, self.job)
            began = time.perf_counter()
            try:
                confirmed += self._confirm(window)
            except (Broke, SandboxError):
                confirmed += self._once_more(window)
            self._seconds += time.perf_counter() - began
            self._windows += 1
        return confirmed

    def close(self) -> None:
        """End the process that is asked."""
        model, self._model = self._model, None
        if model is not None:
            model.close()

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

    def _drawn(self, windows: list[list[Decision]], seconds: float) -> list[list[Decision]]:
        """Draw windows, none of which the program can foresee.

        The one where it says to have taken the most steps is among them, unless that is no more
        than decisions took here.
        """
        if not windows:
            return []
        number = 1.0
        if self._windows:
            number = self.share * seconds * self._windows / self._seconds
        whole = int(number) + (secrets.randbelow(10**6) < 1e6 * (number % 1))
        places = set(secrets.SystemRandom().sample(range(len(windows)), min(whole, len(windows))))
        largest = [max(decision.steps for decision in window) for window in windows]
        if max(largest) > MOST_TIMES * self._most:
            places.add(largest.index(max(largest)))
        return [windows[place] for place in sorted(places)]

    def _once_more(self, window: list[Decision]) -> int:
        """Try again with a new process; a program that fails only here is refused."""
        self.close()
        self._model = RemoteModel(self.sandbox, self.job)
        try:
            return self._confirm(window)
        except Broke as broke:
            where = _where(window[0].moment)
            words = printable(broke.failure.message.splitlines()[0], 200)
            raise Forged(f"made again, {where} failed ({words}): {INSTEAD}") from broke

    def _confirm(self, window: list[Decision]) -> int:
        """Make the decisions of a window again, and ask again for what they rest on."""
        model, job = self._model, self.job
        assert model is not None
        model.forget()
        planners = [find_planner(name)(**options) for name, options in job.planners]
        planners = planners[window[0].planner :]
        decider = Decider(planners, model, seed=job.seed)
        there, back, told = states_of(job), states_of(job), list[ToldStep]()
        asked = model.asked
        for decision in window:
            moment = decision.moment
            [state] = back.decode(there.encode([0], [moment.state]), 1)
            before = model.asked
            try:
                [plan] = decider.plan([moment._replace(state=state)])
            except Unsuited as reason:
                raise Forged(f"{_where(moment)} was not planned: it {reason}: {INSTEAD}") from None
            if decider.passed_over or not self._equal(plan, decision.plan):
                raise Forged(self._other(moment, decision.plan, plan))
            self._most = max(self._most, model.asked - before)
            told += self._rests_on(model)
        claimed, asked = sum(decision.steps for decision in window), model.asked - asked
        if claimed > MOST_TIMES * asked:
            words = f"{claimed:,} steps of the model where {asked:,} were asked for"
            raise Forged(f"{_where(window[0].moment)} and those after it count {words}: {INSTEAD}")
        self._ask_again(told)
        return len(window)

    def _rests_on(self, model: RemoteModel) -> list[ToldStep]:
        """Return what a decision rests on: single steps, the best of what was played, and more."""
        played, model.played = model.played, []
        told, model.told = model.told, []
        if model.deterministic and played:
            best = max(played, key=lambda tried: tried.returned)
            for tried in (best, secrets.choice(played)):
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
        words = f"the program answered {first} in place of the planner, which decides {second}"
        return f"in {_where(moment)} {words}: {INSTEAD}"

    def _ask_again(self, told: list[ToldStep]) -> None:
        """Have processes that only predict say what follows on some of what was told."""
        model = self._model
        assert model is not None
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
            answers = [self._predicted(rows, seed) for seed in range(1 if certain else DRAWS)]
            wrong = np.zeros(int(asked.sum()), bool)
            for name in answers[0]:
                again = np.array([each[name][asked] for each in answers])
                alike = _alike if certain else _likely
                wrong |= ~alike(again, rows.columns[name][asked])
        if wrong.any():
            said = f"{int(wrong.sum())} of {len(wrong)} steps that plans rest on"
            raise Forged(f"asked again the program answers {said} otherwise: {INSTEAD}")

    def _rows(self, told: list[ToldStep]) -> tuple[list[Transition], np.ndarray]:
        """Return what was told as rows, and which of these are asked again: all."""
        rows = [self._row(number, each) for number, each in enumerate(told)]
        return rows, np.ones(len(rows), bool)

    def _told_otherwise(self, rows: Dataset, chances: list[float | None]) -> np.ndarray:
        """Return which rows are none of the outcomes that are told now, or less or more likely."""
        again = self.sandbox.ask(self.job.program, rows)
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
        columns, failure = self.sandbox.predict(self.job.program, rows, seed=seed)
        self._refuse(failure)
        if VALID in columns:
            columns = columns | {VALID: columns[VALID] == 1}  # what is no action counts for nothing
        return columns

    def _refuse(self, failure: Failure | None) -> None:
        """Raise `Forged` when the program fails."""
        if failure is not None:
            words = printable(failure.message.splitlines()[0], 200)
            raise Forged(
                f"the program fails when it is asked again what follows ({words}): {INSTEAD}"
            )


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
