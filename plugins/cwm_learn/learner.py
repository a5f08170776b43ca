"""The learning loop: act, compare predictions with outcomes, rewrite the program, certify it.

A `Learner` gets actions from an `Actor` and programs from a `ProgramWriter`, and depends on neither
tables nor policies. It predicts each step before taking it. It only resets and steps the
environment, so the environment need not be a simulator.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.tasks import Task, random_action, reward_number, seeds_of
from cwm_cli.planning.model import Step, close, key
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.search.contracts import total
from cwm_cli.worlds.remote import OutOfTime, ProgramFailed
from cwm_learn.actors.base import Actor, Aim, Intent, Knowledge, OpenQuestion
from cwm_learn.certificate import (
    MIN_CLEAN_EPISODES,
    MIN_PASSED_PROBES,
    Certificate,
    EpisodeRecord,
    Verification,
)
from cwm_learn.imagination import SearchImagination
from cwm_learn.journal_replay import LearnerJournal
from cwm_learn.outcomes import MismatchEvent, OutcomeCounts, StepEvent, wrong_parts
from cwm_learn.question_collector import QuestionCollector
from cwm_learn.questions import Questions
from cwm_learn.records import ProgramRecord
from cwm_learn.rewriting import ProgramRewriter
from cwm_learn.runs import Budget, LearnRun, dataset_value
from cwm_learn.writing import EXCEPTIONS

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.sandbox import Sandbox
    from cwm_cli.search.models import InFlight
    from cwm_learn.doubting import DoubtingModel
    from cwm_learn.optimism import RuleInventor
    from cwm_learn.writing import ProgramWriter, WrittenProgram

MAX_IDLE_EPISODES = 50
"""Stop after this many consecutive episodes without a target and without a mismatch."""

MAX_EMPTY_EPISODES = 2
"""Consecutive episodes that may end without a target; later ones continue with random actions."""

T = TypeVar("T")

Stop = Literal["certified", "return", "steps", "seconds", "idle"]
"""Reason to stop: certified, target return reached, a budget spent, or no reachable target left."""


class PlayedEpisode(NamedTuple):
    """Return and length of an evaluation episode, and the step of its first mismatch, from 1."""

    returned: float
    length: int
    mismatch: int | None


@dataclass
class _Episode:
    """Statistics of the running episode.

    `is_random` is set if a step was random because the actor had no target.
    """

    promised: float | None = None
    aims: Counter[str] = field(default_factory=Counter)
    returned: float = 0.0
    mismatched: int = 0
    is_random: bool = False
    last: Transition | None = None

    @property
    def had_target(self) -> bool:
        """Whether the actor had a target for every step so far."""
        return bool(self.aims) and not self.is_random


@dataclass
class Learner:
    """Learns an environment while acting in it; a live view may read its attributes at any time.

    The observer receives this object, then a `StepEvent` for each step, and `MismatchEvent`,
    `EpisodeRecord`, `ProgramRecord`, `RecordedQuestion` and `Certificate` events. A continued run
    is repeated first (`JournalReplay`), without events for the observer. Between episodes, `play`
    measures the present play without learning from it.
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
    initial_program: str = ""
    """Program to start with, "" for none."""
    rule_inventor: RuleInventor | None = None
    """Invents rules that would make a mission possible; None without a language model."""
    doubting_model: DoubtingModel | None = None
    """Has a language model name possible mistakes of the program; None without one."""

    steps: int = field(default=0, init=False)
    """Environment steps in this run."""
    intent: Intent | None = field(default=None, init=False)
    """The last decision."""
    episodes: list[EpisodeRecord] = field(default_factory=list, init=False)
    programs: list[ProgramRecord] = field(default_factory=list, init=False)
    verification: Verification = field(default_factory=Verification, init=False)
    mismatches: Counter[str] = field(default_factory=Counter, init=False)
    """Number of wrong predictions by part of the transition."""
    planning_seconds: float = field(default=0.0, init=False)
    """Time for decisions and predictions."""
    writing_seconds: float = field(default=0.0, init=False)
    learning_seconds: float = field(default=0.0, init=False)
    """Time of the actor to process new programs."""

    def __post_init__(self) -> None:
        self._deterministic_actor = type(self.actor)
        self._outcomes = OutcomeCounts()
        self._completions_without_program = 0
        self._idle_episodes = 0
        self._noted: set[str] = set()
        self._has_diverged = False  # whether the environment deviates from a repeated episode
        self._deadline: float | None = inf  # of an evaluation; None while learning
        self._episode_number = -1
        for row in self.run.initial_rows:
            if row.episode != self._episode_number:
                self.known.starts.append(row.observation)
            self._episode_number = max(self._episode_number, row.episode)
            self._add_row(row)
        self.env = self.task.make()
        self.env.action_space.seed(seeds_of(self.known.seed, 0)[1])
        self.journal = LearnerJournal(self.run, self.observer, self)
        kind = self._deterministic_actor
        self.writer.seconds_left = self.seconds_left
        if self.writer.model:
            self.writer.model.seconds_left = self.seconds_left
        self._rewriter = ProgramRewriter(self.known, kind, self.writer, self.journal)
        self._collector = QuestionCollector(
            self.known, self.writer, self.journal, self.env.action_space, self.doubting_model
        )

    def learn(self) -> Stop:
        """Learn until there is a reason to stop; return the reason."""
        self.journal.begin()
        self._deadline = None
        try:
            if self.known.rows and not self._has_too_few_rows:
                self._write_program()
            while not (reason := self._stop_reason()):
                self._play_episode()
            return reason
        finally:
            self._deadline = inf
            self.journal.end()

    def play(self, seeds: Iterable[int], seconds: float = inf) -> Iterator[PlayedEpisode]:
        """Play an episode per seed without learning from it; call only between episodes.

        The time limit of learning does not apply. After `seconds`, no episode is yielded any more.
        """
        before, self._deadline = self._deadline, time.monotonic() + seconds
        with closing(self.task.make()) as env, ExitStack() as stack, suppress(OutOfTime):
            stack.callback(setattr, self, "_deadline", before)
            for seed in seeds:
                env.action_space.seed(int(seed))
                returned, mismatch, length = 0.0, None, 0
                observation = self._observation(env.reset(seed=int(seed))[0])
                for left in range(self.known.limit, 0, -1):
                    if self.seconds_left() <= 0:
                        return
                    allowed = self.task.allowed(env)
                    intent = self._choose(observation, left, "exploit", allowed)
                    intent = intent or self._choose(observation, left, None, allowed)
                    action = intent.action if intent else random_action(env.action_space, allowed)
                    predicted = self._predict(observation, action)
                    row = self._step_env(env, observation, action)
                    length, returned = length + 1, returned + row.reward
                    if mismatch is None and not (predicted and self.actor.matches(predicted, row)):
                        mismatch = length
                    observation = row.next_observation
                    if row.terminated or row.truncated:
                        break
                yield PlayedEpisode(returned, length, mismatch)

    def close(self) -> None:
        """Close the environment and the process of the program."""
        self.env.close()
        if self.known.imagination is not None:
            self.known.imagination.close()

    @property
    def questions(self) -> Questions:
        """All questions, open and answered."""
        return self._collector.questions

    @property
    def certificate(self) -> Certificate | None:
        """The certificate for the present program; None before there is enough play."""
        return self.verification.certificate

    @property
    def rows_to_explain(self) -> Dataset:
        """The rows that a program has to predict.

        These are all rows if the program is stochastic, otherwise those without randomness.
        """
        ignored = () if self._is_stochastic else self.known.random_rows
        return self.run.dataset_of([r for n, r in enumerate(self.known.rows) if n not in ignored])

    @property
    def usage(self) -> tuple[int, float | None]:
        """Number of completions and their cost in US dollars, None if unknown."""
        costs = [record.cost for record in self.programs]
        known = [cost for cost in costs if cost is not None]
        count = (
            sum(record.completions for record in self.programs) + self._completions_without_program
        )
        return count, sum(known) if len(known) == len(costs) else None

    @property
    def in_flight(self) -> InFlight | None:
        """Requests to the language model without an answer yet; None without a model."""
        return self.writer.model.in_flight if self.writer.model else None

    @property
    def known_steps(self) -> int:
        """Number of steps in the run, including recorded ones that are not repeated yet."""
        return max(self.steps, self.journal.replay.steps)

    @property
    def _used_completions(self) -> int:
        return self.writer.model.used if self.writer.model else 0

    @property
    def _has_too_few_rows(self) -> bool:
        return len(self.known.rows) < self.actor.WARMUP_STEPS

    @property
    def _is_stochastic(self) -> bool:
        return self.writer.contract == "chance"

    # --- an episode

    def _play_episode(self) -> None:
        """Act until the episode ends, no target is left in it, or a budget is spent."""
        number = self._episode_number = self.journal.replay.begin_episode(self._episode_number + 1)
        self._has_diverged = False
        seed, _ = seeds_of(self.known.seed, number)
        observation = self._observation(self.env.reset(seed=seed)[0])
        self.known.starts.append(observation)
        self._invent_rules(observation)
        aim, episode = self.verification.next_aim, _Episode()
        try:
            self._act(observation, aim, episode)
        except OutOfTime:
            self._guard(self.actor.rebuild, None)  # drops an unfinished search
        is_idle = not episode.mismatched and not episode.had_target
        self._idle_episodes = self._idle_episodes + 1 if is_idle else 0
        replay = self.journal.replay
        is_dropped = replay.leaves(number) and not replay.has_end(number)
        if episode.last is not None and not is_dropped and not self._has_diverged:
            self._finish_episode(episode, episode.last)

    def _act(self, observation: Any, aim: Aim | None, episode: _Episode) -> None:
        """Act until the end of an episode, or until a budget is spent."""
        for left in range(self.known.limit, 0, -1):
            intent = self._decide(observation, left, aim)
            if intent is None and aim is not None and not episode.aims:
                if aim == "probe":  # no probe is possible from this start
                    self.verification.passed_probes += 1
                aim = "verify" if aim == "probe" else None
                intent = self._decide(observation, left, aim)
                intent = intent or self._decide(observation, left, None)
            if self._is_abandoned(episode, intent):
                break
            if intent is None:
                intent = self._random_intent("no known target", self.task.allowed(self.env))
                episode.is_random = True
            row = self._step(observation, intent, episode)
            observation = row.next_observation
            if row.terminated or row.truncated or self._is_budget_spent:
                break
            if self._rewriter.is_due(self.actor, is_mid_episode=True):
                self._write_program()
                if self._is_budget_spent:
                    break

    def _is_abandoned(self, episode: _Episode, intent: Intent | None) -> bool:
        """Return whether to end the episode before the next step.

        A repeated episode ends where the journal ends it, or where the environment diverges from
        it. Any other episode ends if the actor has no target.
        """
        replay, number = self.journal.replay, self._episode_number
        is_recorded = replay.has_row(number)
        may_end = episode.had_target or self._idle_episodes < MAX_EMPTY_EPISODES
        if intent is None and not is_recorded and may_end:
            return True
        return replay.leaves(number) or (self._has_diverged and not is_recorded)

    def _decide(self, observation: Any, left: int, aim: Aim | None) -> Intent | None:
        """Return the next intent; write a program first if there are enough rows for one."""
        allowed = self.task.allowed(self.env)
        if not self.known.program:
            if self._has_too_few_rows:
                return self._random_intent("warming up", allowed)
            self._write_program()
        self.intent = self._choose(observation, left, aim, allowed)
        return self.intent

    def _choose(
        self, observation: Any, left: int, aim: Aim | None, allowed: tuple[int, ...] | None
    ) -> Intent | None:
        """Return the intent of the actor, a random one if the program fails or it is invalid."""
        began = time.perf_counter()
        try:
            intent = self.actor.choose(observation, left, aim)
        except ProgramFailed as error:
            self._record_failure(error.failure)
            return self._random_intent("the program failed", allowed)
        finally:
            self.planning_seconds += time.perf_counter() - began
        if intent is None or allowed is None or intent.action in allowed:
            return intent
        return self._random_intent(f"{intent.action} is not allowed here", allowed)

    def _random_intent(self, reason: str, allowed: tuple[int, ...] | None) -> Intent:
        return Intent(random_action(self.env.action_space, allowed), "explore", reason)

    def _step(self, observation: Any, intent: Intent, episode: _Episode) -> Transition:
        """Predict a step, take it, and process its outcome."""
        began, planned = time.perf_counter(), self.planning_seconds
        recorded = self.journal.replay.row(self._episode_number)
        if recorded is not None and key(recorded.action) != key(intent.action):
            intent = intent._replace(action=recorded.action)
        predicted = self._predict(observation, intent.action)
        self.planning_seconds += time.perf_counter() - began
        row = self._repeat_step(recorded) if recorded else self._new_step(observation, intent)
        self.steps += 1
        agreed = predicted is not None and self.actor.matches(predicted, row)
        by_chance = self._add_row(row)
        self._collector.answer(row, self.steps)
        if self.known.program:
            self._guard(lambda: self.actor.observe(row), None)
            if not agreed:
                self._record_mismatch(row, predicted, by_chance)
                episode.mismatched += 1
        if not episode.aims:
            episode.promised = intent.promised_return
        episode.aims[intent.aim] += 1
        episode.returned += row.reward
        episode.last = row
        seconds = time.perf_counter() - began + self.planning_seconds - planned
        self.journal.report(StepEvent(self.steps, intent, row, predicted, agreed, seconds))
        return row

    def _new_step(self, observation: Any, intent: Intent) -> Transition:
        """Take a step in the environment; decisions after it are not in the journal."""
        if not self.journal.replay.is_over:
            self.journal.replay.clear()
            self.journal.resume()
        row = self._step_env(self.env, observation, intent.action)
        self.journal.add_step(row)
        return row

    def _repeat_step(self, recorded: Transition) -> Transition:
        """Return a recorded step; the environment takes it too if its episode continues.

        An environment that diverges from the record cannot continue the episode.
        """
        is_unfinished = self._episode_number == self.journal.replay.unfinished
        if is_unfinished or self.task.valid is not None:
            row = self._step_env(self.env, recorded.observation, recorded.action)
            same = close(row.next_observation, recorded.next_observation)
            if not same and is_unfinished and not self._has_diverged:
                self._has_diverged = True
                self.observer.note(
                    "the environment did not repeat its observations: the current episode is "
                    "discarded"
                )
        self.journal.resume()
        return recorded

    def _predict(self, observation: Any, action: Any) -> Step | None:
        """Return the predicted step; None without a program, or if it fails."""
        if not self.known.program:
            return None
        try:
            return self.actor.predict(observation, action)
        except ProgramFailed as error:
            self._record_failure(error.failure)
            return None

    def _step_env(self, env: gym.Env[Any, Any], observation: Any, action: Any) -> Transition:
        """Return the transition of a step in an environment."""
        found, reward, terminated, truncated, _ = env.step(deepcopy(action))
        return Transition(
            observation,
            dataset_value(self.known.action_space, action),
            self._observation(found),
            reward_number(reward),
            bool(terminated),
            bool(truncated),
            self._episode_number,
            valid=self.task.allowed(env),
        )

    def _observation(self, value: Any) -> Any:
        return dataset_value(self.known.observation_space, value)

    def _add_row(self, row: Transition) -> bool:
        """Add a row; return True if the same (observation, action) had several outcomes."""
        self.known.rows.append(row)
        return self._outcomes.add(len(self.known.rows) - 1, row, self.known.random_rows)

    def _record_mismatch(self, row: Transition, predicted: Step | None, by_chance: bool) -> None:
        """Count a wrong prediction; one by chance does not cause a rewrite of the program."""
        parts = wrong_parts(predicted, row)
        self.mismatches.update(parts)
        self._rewriter.new_mismatches += not by_chance
        if by_chance and "chance" not in self._noted and self.writer.contract == "plain":
            self._noted.add("chance")
            self.journal.note(
                "the same action at the same observation had a different outcome: randomness, or "
                "hidden state; the most common outcome is used as the rule"
            )
        self.journal.report(MismatchEvent(self.steps, row, predicted, parts, by_chance))

    def _finish_episode(self, episode: _Episode, last: Transition) -> None:
        """Record an episode, then rewrite or probe the program, update questions, and certify."""
        length = episode.aims.total()
        record = self.journal.append(
            EpisodeRecord(
                number=self._episode_number,
                steps=self.steps,
                returned=episode.returned,
                length=length,
                aims=dict(episode.aims),
                promised=episode.promised,
                mismatched=episode.mismatched,
                terminated=last.terminated,
                whole=last.terminated or last.truncated or length == self.known.limit,
                chance=self._is_stochastic,
            )
        )
        self.episodes.append(record)
        self.verification.add(record)
        self.journal.report(record)
        if self.seconds_left() <= 0:  # a continued run does the rest
            return
        is_first_clean = self.verification.episodes == MIN_CLEAN_EPISODES and record.is_play
        if self._rewriter.is_due(self.actor, is_mid_episode=False):
            self._write_program()
        elif is_first_clean and not (self._rewriter.new_mismatches or self._is_stochastic):
            rows, programs = self.rows_to_explain, len(self.programs)
            self.writing_seconds += self._collector.find_disputes(rows, programs, self.steps)
        self._update_actor_questions()
        self._collector.ask_about_disputes(self.steps)
        self.verification.is_probed = self.verification.is_clean and self._has_no_doubts()
        self._certify()

    # --- certificates and questions

    def _has_no_doubts(self) -> bool:
        """Return whether the program passed enough probes, or no probe is left."""
        if self.verification.passed_probes >= MIN_PASSED_PROBES:
            return True
        settled = self._guard(lambda: self.actor.is_settled, default=False)
        return settled and not self.known.disputed and not self.known.targets

    def _update_actor_questions(self) -> None:
        asked = self._guard(self.actor.questions, None)
        if asked is not None:
            self._collector.update(asked, "play", self.steps)

    def _certify(self) -> None:
        """Update the certificate; write only the first one to the journal."""
        if self._is_certifiable:
            is_first = self.certificate is None
            found = self.verification.certify([each.text for each in self.questions.open])
            if is_first and found is not None:
                self.journal.append(found)
                self.journal.report(found)

    @property
    def _is_certifiable(self) -> bool:
        return not self._rewriter.new_mismatches and self.verification.is_certifiable

    @property
    def _is_budget_spent(self) -> bool:
        replay = self.journal.replay
        if replay.has_row(self._episode_number):
            return False
        return self.steps >= self.budget.steps or self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Return the seconds until the time limit of learning or of an evaluation."""
        if self._deadline is not None:
            return self._deadline - time.monotonic()
        if self.budget.seconds is None or not self.journal.replay.is_over:
            return inf
        return self.budget.seconds - self.run.elapsed

    def _stop_reason(self) -> Stop | None:
        """Return the reason to stop, None to continue."""
        if not self.journal.replay.is_over:
            return None
        if self.budget.is_reached(self.episodes):
            return "return"
        if self.budget.certified and self._is_certifiable:
            self._certify()
            return "certified"
        if self._is_budget_spent:
            return "steps" if self.steps >= self.budget.steps else "seconds"
        return "idle" if self._idle_episodes >= MAX_IDLE_EPISODES else None

    # --- the program

    def _write_program(self) -> None:
        """Write a program for all rows, ask questions about it, and act on it from now on."""
        self._rewriter.detect_randomness()
        completions, rows = self._used_completions, self.rows_to_explain
        program = self.known.program or self.initial_program
        written, seconds = self._rewriter.write(rows, [program] if program else [])
        began = time.perf_counter()
        is_new, named = written.program != self.known.program, list[OpenQuestion]()
        self._collector.ask_about_rows(written, rows, self._outcomes.contradicted, self.steps)
        if is_new and self._collector.may_ask_model(len(self.programs)):
            # The prompt lists open questions, so drop answered questions first.
            self._update_actor_questions()
            named, usage = self._collector.ask_model(written, rows)
            written = written._replace(usage=total([written.usage, usage]))
        seconds += time.perf_counter() - began
        self.writing_seconds += seconds
        self._rewriter.restart(written)
        if is_new:
            self._adopt(written, rows, seconds, self._used_completions - completions)
        if not self.known.rows[-1].terminated:
            self._invent_rules(self.known.rows[-1].next_observation)
        self._collector.pursue(named, self.steps)

    def _invent_rules(self, observation: Any) -> None:
        """Add invented rules to the program if they make a mission without any reward possible."""
        if self.rule_inventor is None or not self.known.program or self._rewriter.new_mismatches:
            return
        began, rows, used = time.perf_counter(), self.rows_to_explain, self._used_completions
        written = self.rule_inventor.invent(self.known.program, rows, observation)
        completions = self._used_completions - used
        if written is None:
            self._completions_without_program += completions
        else:
            seconds = time.perf_counter() - began
            self.writing_seconds += seconds
            self._adopt(written, rows, seconds, completions)

    def _adopt(
        self, written: WrittenProgram, rows: Dataset, seconds: float, completions: int
    ) -> None:
        """Record another program, act on it, and restart its verification."""
        record = ProgramRecord(
            number=len(self.programs) + 1,
            steps=self.steps,
            rows=len(rows),
            origin=written.origin,
            lines=written.program.count("\n"),
            unexplained=int(written.unexplained.sum()),
            wrong=int(written.wrong.sum()),
            seconds=round(seconds, 3),
            completions=completions + self._completions_without_program,
            cost=written.usage.cost,
        )
        self._completions_without_program = 0
        if self.journal.replay.is_over:
            self.run.save_program(record, written.program)
        record = self.journal.append(record)
        self.programs.append(record)
        if self.journal.replay.is_over:
            self.run.write_best(written.program)
        self.journal.report(record)
        self._act_on(written.program, rows)
        self.verification.restart(self.steps)

    def _act_on(self, program: str, rows: Dataset) -> None:
        """Simulate with another program from now on, and prepare the actor for it."""
        began = time.perf_counter()
        if self.known.imagination is not None:
            self.known.imagination.close()
        self.known.program = program
        if not self.actor.KEEPS_EXCEPTIONS:
            program = program.partition(EXCEPTIONS)[0]
        self.known.imagination = SearchImagination(
            self.sandbox, program, rows, seed=self.known.seed
        )
        self.known.imagination.seconds_left = self.seconds_left
        self.known.disputed.clear()
        kind: type[Actor] | None = self._deterministic_actor
        if self._is_stochastic:
            kind = self.actor.stochastic_variant()
        if kind is not None and type(self.actor) is not kind:
            self.actor = kind(self.known)
        self._guard(self.actor.rebuild, None)
        self.learning_seconds += time.perf_counter() - began

    def _guard(self, call: Callable[[], T], default: T) -> T:
        """Return the result of a call of the actor, the default if it fails or the time is over."""
        try:
            return call()
        except OutOfTime:
            return default
        except ProgramFailed as error:
            self._record_failure(error.failure)
            return default

    def _record_failure(self, failure: Failure) -> None:
        """Count a failure of the program as a mismatch, and report each message once."""
        self._rewriter.new_mismatches += 1
        words = printable(failure.message.splitlines()[0], 200)
        if words not in self._noted:
            self._noted.add(words)
            self.journal.note(f"the program failed during planning: {words}", "Warning")
