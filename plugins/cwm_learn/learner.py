"""The learning loop: act, compare predictions with outcomes, rewrite the program, certify it.

A `Learner` gets actions from an `Actor` and programs from a `ProgramWriter`, and depends on neither
tables nor policies. It predicts each step before taking it. It only resets and steps the
environment, so the environment need not be a simulator.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.tasks import Task
from cwm_cli.planning.model import Step, key
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.search.contracts import total
from cwm_cli.worlds.remote import OutOfTime
from cwm_learn.acting import GuardedActor, choose_actor
from cwm_learn.actors.base import Aim, Intent, Knowledge, OpenQuestion
from cwm_learn.certificate import (
    MIN_CLEAN_EPISODES,
    MIN_PASSED_PROBES,
    EpisodeRecord,
    Verification,
)
from cwm_learn.environment import RepeatableEnvironment
from cwm_learn.journal_replay import LearnerJournal
from cwm_learn.outcomes import (
    EpisodeStatistics,
    MismatchEvent,
    OutcomeCounts,
    StepEvent,
    wrong_parts,
)
from cwm_learn.question_collector import QuestionCollector
from cwm_learn.questions import Questions
from cwm_learn.records import ProgramRecord
from cwm_learn.rewriting import ProgramRewriter
from cwm_learn.runs import Budget, LearnRun

if TYPE_CHECKING:
    from cwm_cli.search.models import InFlight
    from cwm_learn.doubting import DoubtingModel
    from cwm_learn.optimism import RuleInventor
    from cwm_learn.writing import ProgramWriter, WrittenProgram

Stop = Literal["certified", "return", "steps", "seconds", "idle"]
"""Reason to stop: certified, target return reached, a budget spent, or no reachable target left."""


@dataclass
class Learner:
    """Learns an environment while acting in it; a live view may read its attributes at any time.

    The observer receives this object, then a `StepEvent` for each step, and `MismatchEvent`,
    `EpisodeRecord`, `ProgramRecord`, `RecordedQuestion` and `Certificate` events. A continued run
    is repeated first (`JournalReplay`), without events for the observer.
    """

    title: str
    task: Task
    known: Knowledge
    writer: ProgramWriter
    run: LearnRun
    budget: Budget = field(default_factory=Budget)
    observer: Observer = SILENT
    initial_program: str = ""
    rule_inventor: RuleInventor | None = None
    doubting_model: DoubtingModel | None = None

    steps: int = field(default=0, init=False)
    episodes: list[EpisodeRecord] = field(default_factory=list, init=False)
    programs: list[ProgramRecord] = field(default_factory=list, init=False)
    verification: Verification = field(default_factory=Verification, init=False)
    mismatches: Counter[str] = field(default_factory=Counter, init=False)  # by wrong part
    completions_without_program: int = field(default=0, init=False)
    """Completions for rules that were not adopted, since the last program."""
    writing_seconds: float = field(default=0.0, init=False)
    deadline: float | None = field(default=inf, init=False)
    """End of an evaluation in monotonic seconds; None while learning."""

    def __post_init__(self) -> None:
        kind = choose_actor(self.known)
        self._outcomes, self._idle_episodes = OutcomeCounts(), 0
        for row in self.run.initial_rows:
            if not self.known.rows or row.episode != self.known.rows[-1].episode:
                self.known.starts.append(row.observation)
            self._add_row(row)
        self.journal = LearnerJournal(self.run, self.observer, self)
        self.environment = RepeatableEnvironment(self.task, self.known, self.journal, self.observer)
        space = self.environment.env.action_space
        self.actor = GuardedActor(
            kind,
            self.known,
            space,
            self.writer.sandbox,
            seconds_left=self.seconds_left,
            on_failure=self._record_failure,
        )
        self.writer.seconds_left = self.seconds_left
        if self.writer.model:
            self.writer.model.seconds_left = self.seconds_left
        self._rewriter = ProgramRewriter(self.known, kind, self.writer, self.journal)
        self._collector = QuestionCollector(
            self.known, self.writer, self.journal, space, self.doubting_model
        )

    def learn(self) -> Stop:
        """Learn until there is a reason to stop; return the reason."""
        self.journal.begin()
        self.deadline = None
        try:
            if self.known.rows and not self._has_too_few_rows:
                self._write_program()
            while not (reason := self._stop_reason()):
                self._play_episode()
            if self._rewriter.new_mismatches and self.seconds_left() > 0:
                self._write_program()  # explains the rows since the last rewrite
            self._certify_short()
            return reason
        finally:
            self.deadline = inf
            self.journal.end()

    def close(self) -> None:
        """Close the environment and the process of the program."""
        self.environment.env.close()
        if self.known.imagination is not None:
            self.known.imagination.close()

    @property
    def questions(self) -> Questions:
        """All questions, open and answered."""
        return self._collector.questions

    @property
    def rows_to_explain(self) -> Dataset:
        """The rows to predict: all with a stochastic program, else those without randomness."""
        ignored = () if self.writer.is_stochastic else self.known.random_rows
        return self.run.dataset_of([r for n, r in enumerate(self.known.rows) if n not in ignored])

    @property
    def in_flight(self) -> InFlight | None:
        """Requests to the language model without an answer yet; None without a model."""
        return self.writer.model.in_flight if self.writer.model else None

    @property
    def known_steps(self) -> int:
        """Number of steps in the run, including recorded ones that are not repeated yet."""
        return max(self.steps, self.journal.replay.steps)

    @property
    def _has_too_few_rows(self) -> bool:
        return len(self.known.rows) < self.actor.current.WARMUP_STEPS

    # --- an episode

    def _play_episode(self) -> None:
        """Act until the episode ends, no target is left in it, or a budget is spent."""
        observation = self.environment.reset()
        self.known.starts.append(observation)
        self._invent_rules(observation)
        aim, episode = self.verification.next_aim, EpisodeStatistics()
        try:
            self._act(observation, aim, episode)
        except OutOfTime:
            self.actor.rebuild()  # drops an unfinished search
        is_idle = not episode.mismatched and not episode.had_target
        self._idle_episodes = self._idle_episodes + 1 if is_idle else 0
        if episode.last is not None and not self.environment.is_incomplete:
            self._finish_episode(episode)

    def _act(self, observation: Any, aim: Aim | None, episode: EpisodeStatistics) -> None:
        """Act until the end of an episode, or until a budget is spent."""
        for left in range(self.known.limit, 0, -1):
            intent = self._decide(observation, left, aim)
            if intent is None and aim is not None and not episode.aims:
                if aim == "probe":  # no probe is possible from this start
                    self.verification.passed_probes += 1
                aim = "verify" if aim == "probe" else None
                intent = self._decide(observation, left, aim) or self._decide(observation, left)
            if self._is_abandoned(episode, intent):
                break
            if intent is None:
                intent = self.actor.random_intent("no known target", self.environment.allowed)
                episode.is_random = True
            row = self._step(observation, intent, episode)
            observation = row.next_observation
            if row.terminated or row.truncated or self._is_budget_spent:
                break
            if self._rewriter.is_due(self.actor.current, is_mid_episode=True):
                self._write_program()
                if self._is_budget_spent:
                    break

    def _is_abandoned(self, episode: EpisodeStatistics, intent: Intent | None) -> bool:
        """Return whether to end the episode before the next step.

        A repeated episode ends where the journal ends it, or where the environment diverges from
        it. Any other episode ends if the actor has no target.
        """
        environment = self.environment
        # consecutive episodes that may end without a target; later ones continue with random
        # actions
        max_empty_episodes = 2
        may_end = episode.had_target or self._idle_episodes < max_empty_episodes
        ends_here = environment.has_diverged or (intent is None and may_end)
        return environment.is_left or (ends_here and not environment.is_recorded)

    def _decide(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Return the next intent; write a program first if there are enough rows for one."""
        allowed = self.environment.allowed
        if not self.known.program:
            if self._has_too_few_rows:
                return self.actor.random_intent("warming up", allowed)
            self._write_program()
        return self.actor.choose(observation, left, aim, allowed)

    def _step(self, observation: Any, intent: Intent, episode: EpisodeStatistics) -> Transition:
        """Predict a step, take it, and process its outcome."""
        began, planned = time.perf_counter(), self.actor.planning_seconds
        recorded = self.journal.replay.row(self.environment.episode)
        if recorded is not None and key(recorded.action) != key(intent.action):
            intent = intent._replace(action=recorded.action)
        predicted = self.actor.predict(observation, intent.action)
        row = self.environment.step(observation, intent.action, recorded)
        self.steps += 1
        agreed = self.actor.matches(predicted, row)
        by_chance = self._add_row(row)
        self._collector.answer(row, self.steps)
        if self.known.program:
            self.actor.observe(row)
            if not agreed:
                self._record_mismatch(row, predicted, by_chance)
                episode.mismatched += 1
        episode.add(intent, row)
        seconds = time.perf_counter() - began + self.actor.planning_seconds - planned
        self.journal.report(StepEvent(self.steps, intent, row, predicted, agreed, seconds))
        return row

    def _add_row(self, row: Transition) -> bool:
        """Add a row; return True if the same (observation, action) had several outcomes."""
        self.known.rows.append(row)
        return self._outcomes.add(len(self.known.rows) - 1, row, self.known.random_rows)

    def _record_mismatch(self, row: Transition, predicted: Step | None, by_chance: bool) -> None:
        """Count a wrong prediction; one by chance does not cause a rewrite of the program."""
        parts = wrong_parts(predicted, row)
        self.mismatches.update(parts)
        self._rewriter.new_mismatches += not by_chance
        if by_chance and self.writer.contract == "plain":
            self.journal.note_once(
                "the same action at the same observation had a different outcome: randomness, or "
                "hidden state; the most common outcome is used as the rule"
            )
        self.journal.report(MismatchEvent(self.steps, row, predicted, parts, by_chance))

    def _finish_episode(self, episode: EpisodeStatistics) -> None:
        """Record an episode, then rewrite or probe the program, update questions, and certify."""
        chance, limit = self.writer.is_stochastic, self.known.limit
        record = self.journal.append(episode.record(self.steps, limit, is_stochastic=chance))
        self.episodes.append(record)
        self.verification.add(record)
        self._rewriter.compare_play(record)
        self.journal.report(record)
        if self.seconds_left() <= 0:  # a continued run does the rest
            return
        is_first_clean = self.verification.episodes == MIN_CLEAN_EPISODES and record.is_play
        if self._rewriter.is_due(self.actor.current, is_mid_episode=False):
            self._write_program()
        elif is_first_clean and not (self._rewriter.new_mismatches or self.writer.is_stochastic):
            rows, programs = self.rows_to_explain, len(self.programs)
            self.writing_seconds += self._collector.find_disputes(rows, programs, self.steps)
        self._collector.update(self.actor.questions(), "play", self.steps)
        self._collector.ask_about_disputes(self.steps)
        self.verification.is_probed = self.verification.is_clean and (
            self.verification.passed_probes >= MIN_PASSED_PROBES
            or (self.actor.is_settled() and not self.known.disputed and not self.known.targets)
        )
        self._certify()

    # --- certificates and budgets

    def _certify(self) -> bool:
        """Update the certificate if the program deserves one; return whether it does.

        Only the first certificate is written to the journal.
        """
        shown = self.verification
        if self._rewriter.new_mismatches or not (shown.is_sufficient and shown.is_probed):
            return False
        is_first = self.verification.certificate is None
        found = self.verification.certify(self.questions.open_texts)
        if is_first and found is not None:
            self.journal.append(found)
            self.journal.report(found)
        return True

    def _certify_short(self) -> None:
        """Certify less play than usual when learning ends; a continued run may certify again."""
        if self.verification.certificate is None and not self._rewriter.new_mismatches:
            found = self.verification.certify_short(self.questions.open_texts)
            if found is not None:
                self.journal.report(found)

    @property
    def _is_budget_spent(self) -> bool:
        is_spent = self.steps >= self.budget.steps or self.seconds_left() <= 0
        return is_spent and not self.environment.is_recorded

    def seconds_left(self) -> float:
        """Return the seconds until the time limit of learning or of an evaluation."""
        if self.deadline is not None:
            return self.deadline - time.monotonic()
        if self.budget.seconds is None or not self.journal.replay.is_over:
            return inf
        return self.budget.seconds - self.run.elapsed

    def _stop_reason(self) -> Stop | None:
        """Return the reason to stop, None to continue."""
        if not self.journal.replay.is_over:
            return None
        if self.budget.is_reached(self.episodes):
            return "return"
        if self.budget.certified and self._certify():
            return "certified"
        if self._is_budget_spent:
            return "steps" if self.steps >= self.budget.steps else "seconds"
        # stop after this many consecutive episodes without a target and without a mismatch
        max_idle_episodes = 50
        return "idle" if self._idle_episodes >= max_idle_episodes else None

    # --- the program

    def _write_program(self) -> None:
        """Write a program for all rows, ask questions about it, and act on it from now on."""
        self._rewriter.detect_randomness()
        completions, rows = self.writer.used_completions, self.rows_to_explain
        program = self.known.program or self.initial_program
        written, seconds = self._rewriter.write(rows, [program] if program else [])
        began = time.perf_counter()
        is_new, named = written.program != self.known.program, list[OpenQuestion]()
        self._collector.ask_about_rows(written, rows, self._outcomes.contradicted, self.steps)
        if is_new and self._collector.may_ask_model(len(self.programs)):
            # The prompt lists open questions, so drop answered questions first.
            self._collector.update(self.actor.questions(), "play", self.steps)
            named, usage = self._collector.ask_model(written, rows)
            written = written._replace(usage=total([written.usage, usage]))
        seconds += time.perf_counter() - began
        self.writing_seconds += seconds
        has_changed_trust = self._rewriter.restart(written)
        if is_new:
            self._adopt(written, rows, seconds, self.writer.used_completions - completions)
        elif has_changed_trust:
            self.actor.rebuild()
        if not self.known.rows[-1].terminated:
            self._invent_rules(self.known.rows[-1].next_observation)
        self._collector.pursue(named, self.steps)

    def _invent_rules(self, observation: Any) -> None:
        """Add invented rules to the program if they make a mission without any reward possible."""
        if self.rule_inventor is None or not self.known.program or self._rewriter.new_mismatches:
            return
        began, rows, used = time.perf_counter(), self.rows_to_explain, self.writer.used_completions
        written = self.rule_inventor.invent(self.known.program, rows, observation)
        completions = self.writer.used_completions - used
        if written is None:
            self.completions_without_program += completions
        else:
            seconds = time.perf_counter() - began
            self.writing_seconds += seconds
            self._adopt(written, rows, seconds, completions)

    def _adopt(
        self, written: WrittenProgram, rows: Dataset, seconds: float, completions: int
    ) -> None:
        """Record another program, act on it, and restart its verification."""
        completions += self.completions_without_program
        record = written.record(len(self.programs) + 1, self.steps, seconds, completions)
        self.completions_without_program = 0
        if self.journal.replay.is_over:
            self.run.save_program(record, written.program)
        record = self.journal.append(record)
        self.programs.append(record)
        if self.journal.replay.is_over:
            self.run.write_best(written.program)
        self.journal.report(record)
        self.actor.adopt(written.program, rows, is_stochastic=self.writer.is_stochastic)
        self.verification.restart(self.steps)

    def _record_failure(self, failure: Failure) -> None:
        """Count a failure of the program as a mismatch, and report each message once."""
        self._rewriter.new_mismatches += 1
        words = printable(failure.message.splitlines()[0], 200)
        self.journal.note_once(f"the program failed during planning: {words}", "Warning")
