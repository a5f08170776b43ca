"""The loop of learning: act on a program, compare it with the world, write it anew, trust it last.

A `Learner` asks an `Actor` what to do and a `ProgramWriter` for programs, and knows nothing of
tables or policies. Every step is predicted before it is taken. It only resets and steps, as with a
machine that is no simulation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space, UnfitError
from cwm_cli.envs.tasks import Task, random_action, reward_number, seeds_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.finding import find_contract
from cwm_cli.evaluation.missing_data import find_gaps
from cwm_cli.planning.model import Step, close, key
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.search.contracts import Usage, total
from cwm_cli.worlds.remote import ProgramFailed
from cwm_learn.actors.base import Actor, Aim, Intent, Knowledge, OpenQuestion
from cwm_learn.certificate import Certificate, EpisodeRecord, Verification
from cwm_learn.doubting import EVERY, MOST_OPEN
from cwm_learn.imagination import SearchImagination
from cwm_learn.journal_replay import JournalReplay
from cwm_learn.questions import Questions, Source
from cwm_learn.runs import (
    Budget,
    ComparisonRecord,
    LearnRecord,
    LearnRun,
    ProgramRecord,
    StepsTaken,
    WritingRecord,
)
from cwm_learn.writing import EXCEPTIONS

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.sandbox import Sandbox
    from cwm_cli.search.models import InFlight
    from cwm_learn.doubting import UnsureModel
    from cwm_learn.optimism import Optimist
    from cwm_learn.writing import ProgramWriter, WrittenProgram

SYNCED = 10
"""Steps that a crash may lose at most; writing each one down would take longer than taking it."""

FRESH = 0.1
"""In mid-episode a program is written anew after so many more rows, as a share: that way the time
it takes grows with the rows and not with their square. Between episodes it is written at once."""

FRESH_REMEMBERED = 0.25
"""The same, then too, for actors that remember what the program has wrong: rules from few more rows
lead them astray more often than they help."""

FRESH_WRONG = 0.3
"""The same for a program that has all rows wrong, and less for others: what explains few lacks
rows, and writing it takes longest. With 1 arms of two links were understood 27 steps later."""

FRESH_CHANCE = 0.5
"""The same where chance decides: no single row says that chances are wrong, only many do."""

TRUSTED = 3
"""Clean episodes of play after which the program is doubted on purpose."""

DOUBTS = 5
"""Attempts to find it wrong that have to come to nothing before it is certified."""

OTHERS = 1
"""Other programs that are compared: writing each takes as long as writing the first."""

MOST_ASKED, MOST_DISPUTED = 300, 20
"""Situations at which programs are compared, and the most of what they differ in that is tried."""

IDLE = 50
"""Episodes in a row with nothing to go for: those from the third on are played at random, and when
all of them went as predicted nothing is left to do."""

T = TypeVar("T")
R = TypeVar("R", bound=LearnRecord)

Stop = Literal["certified", "return", "steps", "seconds", "idle"]
"""Why learning ended: a certificate, a return that was to be reached, a budget that is spent, or
that nothing unknown could be reached any more."""


class Stepped(NamedTuple):
    """A step that was taken: what it was for, what was predicted, and whether it came about.

    `seconds` is how long it was thought about.
    """

    steps: int
    intent: Intent
    row: Transition
    predicted: Step | None
    agreed: bool
    seconds: float


class Mismatched(NamedTuple):
    """A prediction that was wrong, and in which parts.

    It was so `by_chance` where the same came out otherwise before.
    """

    steps: int
    row: Transition
    predicted: Step | None
    parts: tuple[str, ...]
    by_chance: bool


class PlayedEpisode(NamedTuple):
    """What an episode of play came to, and at which of its steps a prediction was first wrong."""

    returned: float
    length: int
    mismatch: int | None


class OutcomeCounts:
    """What came of each action at each observation, to tell chance from what is not known yet."""

    def __init__(self) -> None:
        self._seen: dict[Any, dict[Any, list[int]]] = {}

    def take(self, number: int, row: Transition, chance: set[int]) -> bool:
        """Take note of a row; whether the same had another outcome before.

        Of outcomes that contradict each other the most common stands; the numbers of the other
        rows go to `chance`.
        """
        done = (key(row.observation), key(row.action))
        led = (key(row.next_observation), row.reward, row.terminated)
        found = self._seen.setdefault(done, {})
        found.setdefault(led, []).append(number)
        if len(found) == 1:
            return False
        usual = max(found.values(), key=len)
        for numbers in found.values():
            (chance.difference_update if numbers is usual else chance.update)(numbers)
        return True

    @property
    def contradicted(self) -> int:
        """How many actions at an observation came out in more than one way."""
        return sum(len(found) > 1 for found in self._seen.values())


@dataclass
class Learner:
    """Learns an environment while acting in it; its attributes may be drawn at any time.

    The observer is told this object, then a `Stepped` for every step, a `Mismatched`, an
    `EpisodeRecord`, a `ProgramRecord`, a `RecordedQuestion` or a `Certificate` as they come.
    Between episodes `play` tells how well it plays by now, without learning from that.
    A continued run is repeated first (`JournalReplay`), without events for the observer.
    """

    title: str
    task: Task
    known: Knowledge
    actor: Actor
    writer: ProgramWriter
    sandbox: Sandbox
    run: LearnRun
    budget: Budget = field(default_factory=Budget)
    observer: Observer = SILENT
    begins_with: str = ""
    """The program to begin with, "" for none."""
    optimist: Optimist | None = None
    """Who invents what would make a mission possible, where a language model is asked."""
    questioner: UnsureModel | None = None
    """Who has a language model name what it is unsure of, where one is asked."""

    steps: int = field(default=0, init=False)
    """Of the environment, in this run."""
    intent: Intent | None = field(default=None, init=False)
    """What was decided last."""
    episodes: list[EpisodeRecord] = field(default_factory=list, init=False)
    programs: list[ProgramRecord] = field(default_factory=list, init=False)
    questions: Questions = field(default_factory=Questions, init=False)
    verification: Verification = field(default_factory=Verification, init=False)
    certificate: Certificate | None = field(default=None, init=False)
    mismatches: Counter[str] = field(default_factory=Counter, init=False)
    """Predictions that were wrong, by part of the transition."""
    planning_seconds: float = field(default=0.0, init=False)
    writing_seconds: float = field(default=0.0, init=False)
    learning_seconds: float = field(default=0.0, init=False)
    """For deciding, for writing programs, and for what actors make of those."""
    _outcomes: OutcomeCounts = field(default_factory=OutcomeCounts, init=False, repr=False)
    _in_vain: int = field(default=0, init=False, repr=False)
    _unsaved: list[Transition] = field(default_factory=list, init=False, repr=False)
    _pending: int = field(default=0, init=False, repr=False)
    _fitted: int = field(default=0, init=False, repr=False)
    _wrong: float = field(default=0.0, init=False, repr=False)
    _idle: int = field(default=0, init=False, repr=False)
    _doubts: int = field(default=0, init=False, repr=False)
    _doubted: bool = field(default=False, init=False, repr=False)
    _compared: int = field(default=0, init=False, repr=False)
    _offered: list[str] = field(default_factory=list, init=False, repr=False)
    _told: set[str] = field(default_factory=set, init=False, repr=False)
    _is_elsewhere: bool = field(default=False, init=False, repr=False)
    """Whether the environment deviated from the observations of a repeated episode."""

    def __post_init__(self) -> None:
        self._began = self.run.began()
        self._earlier = list(self.run.earlier() or ())
        self._carrier, self._kind = replace(self.writer, model=None), type(self.actor)
        self.env = self.task.make()
        self.env.action_space.seed(seeds_of(self.known.seed, 0)[1])
        self._offered = [self.begins_with] if self.begins_with else []
        self._number = -1
        for row in self._began:
            if row.episode != self._number:
                self.known.starts.append(row.observation)
            self._number = max(self._number, row.episode)
            self._take(row)
        self.replay, self._seconds_before = JournalReplay(self.run), self.run.elapsed

    def learn(self) -> Stop:
        """Learn until the budget says that it is enough; return why it ended."""
        if self.replay.is_over:
            self.observer.begins(self)
        try:
            if self.known.rows and not self._too_few:
                self._write()
            while not (why := self._over()):
                self._episode()
            return why
        finally:
            self._sync()
            if self.replay.is_over:
                self.observer.ends()

    def play(self, seeds: Iterable[int]) -> Iterator[PlayedEpisode]:
        """Play an episode for each seed, without learning from any; only between other episodes."""
        space = self.known.observation_space
        with closing(self.task.make()) as env:
            for seed in seeds:
                env.action_space.seed(int(seed))
                total, met, length = 0.0, None, 0
                observation = _plain(space, env.reset(seed=int(seed))[0])
                for left in range(self.known.limit, 0, -1):
                    allowed = self.task.allowed(env)
                    intent = self._choose(observation, left, "exploit", allowed)
                    intent = intent or self._choose(observation, left, None, allowed)
                    action = intent.action if intent else random_action(env.action_space, allowed)
                    predicted = self._predicted(observation, action)
                    row, over = self._taken(env, observation, action)
                    length, total = length + 1, total + row.reward
                    if met is None and not (predicted and self.actor.matches(predicted, row)):
                        met = length
                    observation = row.next_observation
                    if over:
                        break
                yield PlayedEpisode(total, length, met)

    def close(self) -> None:
        """Let go of the environment and of the process of the program."""
        self.env.close()
        if self.known.imagination is not None:
            self.known.imagination.close()

    def dataset(self, *, certain: bool = False) -> Dataset:
        """Return all rows, or those that chance did not decide."""
        left_out = self.known.random_rows if certain else ()
        return self._rows([r for n, r in enumerate(self.known.rows) if n not in left_out])

    @property
    def usage(self) -> tuple[int, float | None]:
        """Completions of language models so far, and what they cost, None where that is unknown."""
        costs = [each.cost for each in self.programs]
        known = [cost for cost in costs if cost is not None]
        count = sum(each.completions for each in self.programs) + self._in_vain
        return count, sum(known) if len(known) == len(costs) else None

    @property
    def in_flight(self) -> InFlight | None:
        """Requests to the language model that have no answer yet; None without a model."""
        return self.writer.model.in_flight if self.writer.model else None

    @property
    def _used(self) -> int:
        return self.writer.model.used if self.writer.model else 0

    @property
    def _too_few(self) -> bool:
        return len(self.known.rows) < self.actor.WARMUP_STEPS

    @property
    def known_steps(self) -> int:
        """The number of steps in the run, including recorded ones that are not repeated yet."""
        return max(self.steps, self.replay.steps)

    # --- a continued run

    def _append(self, record: R) -> R:
        """Write a record down; while a run is repeated, return the recorded one instead."""
        if not self.replay.is_over:
            return self._recorded(type(record)) or record
        self._sync()
        self.run.append(record)
        return record

    def _recorded(self, kind: type[R]) -> R | None:
        """Return the next record of the journal that is repeated, None if it is of another kind."""
        found = self.replay.record(kind)
        if found is not None:
            self._end_replay()
        return found

    def _advanced(self, event: object) -> None:
        """Pass an event to the observer, unless a run is repeated."""
        if self.replay.is_over:
            self.observer.advanced(event)

    def _note(self, words: str, kind: str = "Note") -> None:
        """Pass a note to the observer, unless a run is repeated."""
        if self.replay.is_over:
            self.observer.note(words, kind)

    def _end_replay(self) -> None:
        """Discount the time of the replay at its end, and start the observer."""
        if self.replay.is_over:
            self.run.restart_clock(self._seconds_before)
            self.observer.begins(self)

    # --- an episode

    def _episode(self) -> None:
        """Act until the episode is over, nothing is left to do in it, or the budget is spent."""
        self._number = self.replay.begin_episode(self._number + 1)
        self._is_elsewhere = False
        seed, _ = seeds_of(self.known.seed, self._number)
        observation = _plain(self.known.observation_space, self.env.reset(seed=seed)[0])
        self.known.starts.append(observation)
        self._hope(observation)
        aim, aims, returned, mismatched = self._aim(), Counter[str](), 0.0, 0
        promised, row, wandering = None, None, False
        for left in range(self.known.limit, 0, -1):
            intent = self._decide(observation, left, aim)
            if intent is None and aim is not None and not aims:
                self._doubts += aim == "probe"  # there is nothing to doubt from here
                aim = "verify" if aim == "probe" else None
                intent = self._decide(observation, left, aim) or self._decide(
                    observation, left, None
                )
            is_recorded = self.replay.has_row(self._number)
            if intent is None and not is_recorded and ((aims and not wandering) or self._idle < 2):
                break
            if self.replay.leaves(self._number) or (self._is_elsewhere and not is_recorded):
                break
            if intent is None:
                allowed, wandering = self.task.allowed(self.env), True
                intent = self._at_random("no known target", allowed)
            if not aims:
                promised = intent.promised_return
            row, agreed = self._step(observation, intent)
            observation = row.next_observation
            aims[intent.aim] += 1
            returned, mismatched = returned + row.reward, mismatched + (not agreed)
            if row.terminated or row.truncated or self._is_spent:
                break
            if self._due(FRESH):
                self._write()
        self._idle = 0 if mismatched or (aims and not wandering) else self._idle + 1
        is_dropped = self.replay.leaves(self._number) and not self.replay.has_end(self._number)
        if row is not None and not is_dropped and not self._is_elsewhere:
            played = EpisodeRecord(
                number=self._number,
                steps=self.steps,
                returned=returned,
                length=aims.total(),
                aims=dict(aims),
                promised=promised,
                mismatched=mismatched,
                terminated=row.terminated,
                whole=row.terminated or row.truncated or left == 1,
                chance=self.writer.contract == "chance",
            )
            self._finish(played)

    def _aim(self) -> Aim | None:
        """Return what an episode is for: what promises most, or trust, once it plays as it says."""
        clean = self.verification.episodes
        if clean < TRUSTED:
            return None
        return "verify" if self._doubted or self._doubts > clean - TRUSTED else "probe"

    def _decide(self, observation: Any, left: int, aim: Aim | None) -> Intent | None:
        """Return what to do, with a program as soon as there is enough to write one from."""
        allowed = self.task.allowed(self.env)
        if not self.known.program:
            if self._too_few:
                return self._at_random("warming up", allowed)
            self._write()
        self.intent = self._choose(observation, left, aim, allowed)
        return self.intent

    def _choose(
        self, observation: Any, left: int, aim: Aim | None, allowed: tuple[int, ...] | None
    ) -> Intent | None:
        """Ask the actor; where the program fails in its hands the action is random."""
        began = time.perf_counter()
        try:
            intent = self.actor.choose(observation, left, aim)
        except ProgramFailed as error:
            self._broke(error.failure)
            return self._at_random("the program failed", allowed)
        finally:
            self.planning_seconds += time.perf_counter() - began
        if intent is None or allowed is None or intent.action in allowed:
            return intent
        return self._at_random(f"{intent.action} is not allowed here", allowed)

    def _at_random(self, reason: str, allowed: tuple[int, ...] | None) -> Intent:
        """Return a random action, of those that are allowed."""
        return Intent(random_action(self.env.action_space, allowed), "explore", reason)

    def _step(self, observation: Any, intent: Intent) -> tuple[Transition, bool]:
        """Predict, take the step, and compare."""
        began, before = time.perf_counter(), self.planning_seconds
        recorded = self.replay.row(self._number)
        if recorded is not None and key(recorded.action) != key(intent.action):
            intent = intent._replace(action=recorded.action)
        predicted = self._predicted(observation, intent.action)
        self.planning_seconds += time.perf_counter() - began
        if recorded is None:
            if not self.replay.is_over:
                self.replay.clear()
                self._end_replay()
            row, _ = self._taken(self.env, observation, intent.action)
            self._unsaved.append(row)
        else:
            row = self._repeated(recorded)
        self.steps += 1
        agreed = predicted is not None and self.actor.matches(predicted, row)
        by_chance = self._take(row)
        if self.known.disputed:
            done = key(row.observation), key(row.action)
            left = [pair for pair in self.known.disputed if tuple(map(key, pair)) != done]
            self.known.disputed[:] = left
        if self.known.targets:
            self._answer(row)
        if self.known.program:
            self._unbroken(lambda: self.actor.observe(row), None)
            if not agreed:
                self._mismatch(row, predicted, by_chance)
        if len(self._unsaved) >= SYNCED:
            self._sync()
        seconds = time.perf_counter() - began + self.planning_seconds - before
        self._advanced(Stepped(self.steps, intent, row, predicted, agreed, seconds))
        return row, agreed or not self.known.program

    def _repeated(self, recorded: Transition) -> Transition:
        """Return a recorded step; the environment takes it again if its episode goes on.

        An environment that deviates cannot continue the episode.
        """
        if self._number == self.replay.unfinished or self.task.valid is not None:
            found, _ = self._taken(self.env, recorded.observation, recorded.action)
            same = close(found.next_observation, recorded.next_observation)
            if not same and self._number == self.replay.unfinished and not self._is_elsewhere:
                self._is_elsewhere = True
                self.observer.note(
                    "the environment did not repeat its observations: the current episode is "
                    "discarded"
                )
        self._end_replay()
        return recorded

    def _predicted(self, observation: Any, action: Any) -> Step | None:
        """Ask what follows; nothing where there is no program, or where it fails."""
        if not self.known.program:
            return None
        return self._unbroken(lambda: self.actor.predict(observation, action), None)

    def _unbroken(self, ask: Callable[[], T], otherwise: T) -> T:
        """Ask the actor something; go on otherwise where the program fails in its hands."""
        try:
            return ask()
        except ProgramFailed as error:
            self._broke(error.failure)
            return otherwise

    def _taken(
        self, env: gym.Env[Any, Any], observation: Any, action: Any
    ) -> tuple[Transition, bool]:
        """Take a step in an environment; whether the episode is over by that."""
        found, reward, terminated, truncated, _ = env.step(deepcopy(action))
        row = Transition(
            observation,
            _plain(self.known.action_space, action),
            _plain(self.known.observation_space, found),
            reward_number(reward),
            bool(terminated),
            bool(truncated),
            self._number,
            valid=self.task.allowed(env),
        )
        return row, row.terminated or row.truncated

    def _mismatch(self, row: Transition, predicted: Step | None, by_chance: bool) -> None:
        """Count a wrong prediction; what chance decided is nothing to write a program from."""
        parts = _wrong_parts(predicted, row)
        self.mismatches.update(parts)
        self._pending += not by_chance
        if by_chance and "chance" not in self._told and self.writer.contract == "plain":
            self._told.add("chance")
            self._note(
                "the same action at the same observation had a different outcome: randomness, or "
                "hidden state; the most common outcome is used as the rule"
            )
        self._advanced(Mismatched(self.steps, row, predicted, parts, by_chance))

    def _finish(self, played: EpisodeRecord) -> None:
        """Write an episode down, and draw conclusions from it."""
        played = self._append(played)
        self._count(played)
        self._advanced(played)
        if self._due(0.0):
            self._write()
        elif self.verification.episodes == TRUSTED and played.is_play:
            self._find_disputes()
        self._ask(self._unbroken(self.actor.questions, []), "play")
        self._ask(self._disputes(), "candidates")
        self._doubted = self.verification.episodes >= TRUSTED and self._is_doubted()
        self._certify()

    def _count(self, played: EpisodeRecord) -> None:
        """Count an episode for or against what may be promised."""
        self.episodes.append(played)
        changed = self.verification.changed
        self.verification.episode(played)
        if changed != self.verification.changed:
            self._distrust()
        elif "probe" in played.aims:
            self._doubts += 1

    def _distrust(self) -> None:
        """Begin anew to doubt: something changed."""
        self._doubts, self._doubted, self.certificate = 0, False, None

    # --- the program

    def _due(self, share: float) -> bool:
        """Whether the program is to be written anew, after so many more rows as a share.

        The more rows it has wrong, the more it takes.
        """
        share = max(
            FRESH_REMEMBERED if self.actor.OVERRIDES_PROGRAM else share, FRESH_WRONG * self._wrong
        )
        if self.known.random_rows and self._kind.stochastic_variant():
            return len(self.known.rows) - self._fitted >= FRESH_CHANCE * self._fitted
        return self._pending > 0 and len(self.known.rows) - self._fitted >= share * self._fitted

    def _write(self) -> None:
        """Have a program written that replays every row, and act on it from now on."""
        self._find_contract()
        before, rows, used = self.writing_seconds, self.explained, self._used
        known = [self.known.program] if self.known.program else self._offered
        found, began = self._written(rows, known), time.perf_counter()
        is_news, named = found.program != self.known.program, list[OpenQuestion]()
        self._ask([OpenQuestion(each) for each in find_gaps(rows, self.known.names)], "gaps")
        self._ask(self._unexplained(found, rows), "rows")
        if is_news and self._may_name:
            # The prompt lists open questions, so drop answered questions first.
            self._ask(self._unbroken(self.actor.questions, []), "play")
            named, usage = self._named(found, rows)
            found = found._replace(usage=total([found.usage, usage]))
        self.writing_seconds += time.perf_counter() - began
        seconds = self.writing_seconds - before
        self._fitted, self._pending = len(self.known.rows), 0
        self._wrong = float(found.wrong.mean()) if len(found.wrong) else 0.0
        if is_news:
            self._take_over(found, rows, seconds, self._used - used)
        if not self.known.rows[-1].terminated:
            self._hope(self.known.rows[-1].next_observation)
        self._pursue(named)

    def _find_contract(self) -> None:
        """Find out what the rows ask of programs, where the same came out otherwise at times."""
        if (
            self.known.random_rows
            and self.writer.contract == "plain"
            and self._kind.stochastic_variant()
        ):
            found = find_contract(self.dataset())
            if found.contract == "chance":
                self.writer.contract = "chance"
                self._note(f"outcomes are random: {found.words(self.known.names)}")
        self._carrier.contract = self.writer.contract

    @property
    def explained(self) -> Dataset:
        """The rows that programs are to explain: all, unless chance is no part of the contract."""
        return self.dataset(certain=self.writer.contract != "chance")

    def _written(self, rows: Dataset, known: Sequence[str]) -> WrittenProgram:
        """Have a program written that replays every row, and those of an earlier environment too.

        Those are forgotten as soon as one without them explains more of the rows here.
        """
        if not self._earlier:
            return self._written_by(self.writer, rows, known)
        first = 1 + max(row.episode for row in self._earlier)
        before = [row._replace(episode=row.episode - first) for row in self._earlier]
        found = self._written_by(self._carrier, self._rows([*before, *rows]), known)
        own = slice(len(before), None)
        found = found._replace(unexplained=found.unexplained[own], wrong=found.wrong[own])
        if not found.unexplained.any():
            return found
        alone = self._written_by(self.writer, rows, known)
        if alone.unexplained.sum() >= found.unexplained.sum():
            return found
        self._earlier.clear()
        self._note("rows of the previous environment contradict this one and are left out")
        return alone

    def _written_by(
        self, writer: ProgramWriter, rows: Dataset, known: Sequence[str]
    ) -> WrittenProgram:
        """Have a program written, or return the recorded one while a run is repeated."""
        recorded = self._recorded(WritingRecord)
        if recorded is not None:
            found = writer.repeated(recorded, rows, known)
        else:
            found, recorded = writer.recorded_writing(rows, known)
            self._append(recorded)
        self.writing_seconds += recorded.seconds
        return found

    def _hope(self, start: Any) -> None:
        """Act on what may make a mission possible that nobody was ever paid for."""
        if self.optimist is None or not self.known.program or self._pending:
            return
        began, rows, used = time.perf_counter(), self.explained, self._used
        found = self.optimist.invent(self.known.program, rows, start)
        if found is None:
            self._in_vain += self._used - used
        else:
            seconds = time.perf_counter() - began
            self.writing_seconds += seconds
            self._take_over(found, rows, seconds, self._used - used)

    def _take_over(
        self, found: WrittenProgram, rows: Dataset, seconds: float, completions: int
    ) -> None:
        """Write another program down, act on it, and begin anew to trust."""
        self._record(found, len(rows), seconds, completions)
        self._act_on(found.program, rows)
        self.verification.change(self.steps)
        self._distrust()

    def _record(self, found: WrittenProgram, rows: int, seconds: float, completions: int) -> None:
        """Write a program down."""
        record = ProgramRecord(
            number=len(self.programs) + 1,
            steps=self.steps,
            rows=rows,
            origin=found.origin,
            lines=found.program.count("\n"),
            unexplained=int(found.unexplained.sum()),
            wrong=int(found.wrong.sum()),
            seconds=round(seconds, 3),
            completions=completions + self._in_vain,
            cost=found.usage.cost,
        )
        self._in_vain = 0
        if self.replay.is_over:
            self.run.save_program(record, found.program)
        record = self._append(record)
        self.programs.append(record)
        if self.replay.is_over:
            self.run.write_best(found.program)
        self._advanced(record)

    def _act_on(self, program: str, rows: Dataset) -> None:
        """Imagine with another program from now on."""
        began = time.perf_counter()
        if self.known.imagination is not None:
            self.known.imagination.close()
        self.known.program = program
        if not self.actor.KEEPS_EXCEPTIONS:
            program = program.partition(EXCEPTIONS)[0]
        self.known.imagination = SearchImagination(
            self.sandbox, program, rows, seed=self.known.seed
        )
        self.known.disputed.clear()
        kind = self.actor.stochastic_variant() if self.writer.contract == "chance" else self._kind
        if kind is not None and type(self.actor) is not kind:
            self.actor = kind(self.known)
        self._unbroken(self.actor.rebuild, None)
        self.learning_seconds += time.perf_counter() - began

    def _broke(self, failure: Failure) -> None:
        """Go on although the program failed while it was imagined with."""
        self._pending += 1
        words = printable(failure.message.splitlines()[0], 200)
        if words not in self._told:
            self._told.add(words)
            self._note(f"the program failed during planning: {words}", "Warning")

    # --- what is not known

    def _find_disputes(self) -> None:
        """Ask another program that replays every row where it says otherwise than this one."""
        if self._pending or self._compared == len(self.programs):
            return
        self._compared = len(self.programs)
        if self.writer.contract == "chance":
            return
        began, rows = time.perf_counter(), self.dataset(certain=True)
        compared = self._recorded(ComparisonRecord)
        if compared is None:
            others = self.writer.others(rows, [self.known.program], most=OTHERS)
            self._append(ComparisonRecord(programs=tuple(others)))
        else:
            others = list(compared.programs)
        untried = self._untried()
        if others and len(untried):
            mine, _ = self.sandbox.predict(self.known.program, untried, seed=self.known.seed)
            said = replace(untried, columns=untried.columns | mine)
            differ = np.any([self.writer.wrong(each, said) for each in others], axis=0)
            found = [said.row(int(place)) for place in np.flatnonzero(differ)[:MOST_DISPUTED]]
            self.known.disputed[:] = [(row.observation, row.action) for row in found]
        self.writing_seconds += time.perf_counter() - began

    def _disputes(self) -> list[OpenQuestion]:
        """Ask about what programs disagree on; what was tried by now is settled."""
        return [
            OpenQuestion(
                f"two programs that fit all rows predict different outcomes of action {action} "
                f"at {place}",
                place,
                action,
                "which program is right",
                1.0,
            )
            for place, action in ((self.known.describe(o), a) for o, a in self.known.disputed)
        ]

    @property
    def _may_name(self) -> bool:
        """Whether a language model is to name questions on the next program."""
        if self.questioner is None or len(self.programs) % EVERY or not self.questioner.model.left:
            return False
        return len(self._still_named) < MOST_OPEN

    @property
    def _still_named(self) -> list[OpenQuestion]:
        """What a language model asked and nobody answered."""
        return [each.question for each in self.questions.open if each.source == "model"]

    def _named(self, found: WrittenProgram, rows: Dataset) -> tuple[list[OpenQuestion], Usage]:
        """Ask a language model what the program may predict wrongly."""
        if self.questioner is None:
            return [], Usage()
        verb = "allows" if self.writer.contract == "chance" else "predicts"
        right = len(rows) - int(found.wrong.sum())
        replayed = f"It {verb} {right:,} of {len(rows):,} recorded outcomes."
        # The recorded section states the gaps of the rows already.
        asked = [each.text for each in self.questions.open if each.source != "gaps"]
        recorded = self.writer.recorded(rows)
        return self.questioner.name(found.program, replayed, recorded, asked)

    def _pursue(self, named: Sequence[OpenQuestion]) -> None:
        """Write down what a language model asks, and go for what can be gone for."""
        asked = [*self._still_named, *named]
        self._ask(asked, "model")
        found = [self.questioner.pursued(each) for each in asked] if self.questioner else []
        self.known.targets[:] = [each for each in found if each is not None]

    def _answer(self, row: Transition) -> None:
        """Write down what came of the questions that a step answers."""
        there, pays = self.known.describe(row.next_observation), f"reward {row.reward:g}"
        told = f"step {self.steps:,} led to {there}, {pays}" + ", the end" * row.terminated
        waiting = list(self.known.targets)
        self.known.targets[:] = [each for each in waiting if not each.is_answered(row)]
        for each in waiting:
            if each.is_answered(row):
                answered = self.questions.answer(each.question, "model", told)
                self._append(answered)
                self._advanced(answered)

    def _untried(self) -> Dataset:
        """Return actions that were not tried where it has been; what follows is made up."""
        rng, space = np.random.default_rng([self.known.seed, self.steps]), self.env.action_space
        tried = {(key(row.observation), key(row.action)) for row in self.known.rows}
        chosen = rng.permutation(len(self.known.rows))[:MOST_ASKED]
        places = {key(o): o for o in (self.known.rows[n].next_observation for n in chosen)}
        low, actions = self.known.action_space.low, self.known.action_space
        rows = []
        for place, observation in places.items():
            if actions.kind == "discrete":
                several = [int(low[0]) + n for n in range(actions.count)]
            else:
                several = [_plain(actions, space.sample()) for _ in range(3)]
            rows += [
                Transition(observation, action, observation, 0.0, False)
                for action in several
                if (place, key(action)) not in tried
            ]
        return self._rows(rows)

    def _unexplained(self, found: WrittenProgram, rows: Dataset) -> list[OpenQuestion]:
        """Ask about rows that no rule gives, and about those that contradict each other."""
        asked = []
        if count := int(found.unexplained.sum()):
            row = rows.row(int(np.flatnonzero(found.unexplained)[-1]))
            asked.append(
                OpenQuestion(
                    f"no rule predicts {count} of {len(rows)} rows",
                    f"such as {self.known.describe(row.observation)}",
                    row.action,
                    "the same outcome again: a rule is missing; another outcome: randomness",
                    1.0,
                )
            )
        if count := self._outcomes.contradicted:
            asked.append(
                OpenQuestion(
                    f"{count} (observation, action) pairs had more than one outcome",
                    answers="randomness, or hidden state",
                )
            )
        return asked

    def _ask(self, asked: Iterable[OpenQuestion], source: Source) -> None:
        """Write down which questions are new, and which were answered."""
        for question in self.questions.update(asked, source, self.steps):
            self._append(question)
            self._advanced(question)

    def _certify(self) -> None:
        """Say what its play so far promises, once it is trusted and doubting it came to nothing."""
        if not self._is_certified:
            return
        is_news, untried = self.certificate is None, [each.text for each in self.questions.open]
        self.certificate = self.verification.certificate(untried)
        if is_news and self.certificate is not None:
            self._append(self.certificate)
            self._advanced(self.certificate)

    @property
    def _is_certified(self) -> bool:
        """Whether its play was trusted for long enough, and doubting it came to nothing."""
        return self.verification.enough and self._pending == 0 and self._doubted

    def _is_doubted(self) -> bool:
        """Whether doubting the program came to nothing, often enough or as nothing is left."""
        if self._doubts >= DOUBTS:
            return True
        settled = self._unbroken(lambda: self.actor.is_settled, otherwise=False)
        return settled and not self.known.disputed and not self.known.targets

    @property
    def _is_spent(self) -> bool:
        if self.replay.has_row(self._number):
            return False
        seconds = self.budget.seconds if self.replay.is_over else None
        return self.steps >= self.budget.steps or (
            seconds is not None and self.run.elapsed >= seconds
        )

    def _over(self) -> Stop | None:
        """Return why learning is over, None while it goes on."""
        if not self.replay.is_over:
            return None
        if self.budget.is_reached(self.episodes):
            return "return"
        if self.budget.certified and self._is_certified:
            self._certify()
            return "certified"
        if self._is_spent:
            return "steps" if self.steps >= self.budget.steps else "seconds"
        return "idle" if self._idle >= IDLE else None

    # --- rows

    def _take(self, row: Transition) -> bool:
        """Take note of a row; whether the same came out otherwise before."""
        self.known.rows.append(row)
        return self._outcomes.take(len(self.known.rows) - 1, row, self.known.random_rows)

    def _rows(self, rows: Sequence[Transition]) -> Dataset:
        return Dataset.of(
            rows,
            observation_space=self.known.observation_space,
            action_space=self.known.action_space,
            metadata=self._began.metadata,
        )

    def _sync(self) -> None:
        """Write down which steps were taken."""
        if self._unsaved:
            self.run.append(StepsTaken.of(self._rows(self._unsaved)))
            self._unsaved.clear()


def _plain(space: Space, value: Any) -> Any:
    """Return a copy of a value in the form of datasets.

    Raises:
        CwmError: The value is outside the space, for example NaN.
    """
    columns = space.pack("value", [value])
    try:
        for leaf in space.leaves("value"):
            leaf.space.check(columns[leaf.name])
    except UnfitError as error:
        raise CwmError(f"the environment returned an invalid value: {error.reason}") from error
    return space.unpack("value", columns, 0)


def _wrong_parts(predicted: Step | None, row: Transition) -> tuple[str, ...]:
    """Name the parts of a transition that were predicted wrongly; one that was not is all wrong."""
    if predicted is None:
        return ("unknown",)
    pairs = {
        "observation": row.terminated or close(predicted.observation, row.next_observation),
        "reward": close(float(predicted.reward), row.reward),
        "terminated": bool(predicted.terminated) == row.terminated,
    }
    return tuple(name for name, right in pairs.items() if not right) or ("observation",)
