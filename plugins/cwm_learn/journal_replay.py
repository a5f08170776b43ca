"""The journal of a learner, and its replay when a run continues.

A continued run ends as if it had not been interrupted. A learner has state that its journal does
not hold: random generators, tables, unfinished plans. A continued learner therefore repeats its
decisions from the first step on. The journal replaces the environment and everything that took
long or cost money: rows, written programs, compared programs. The recorded actions are binding: if
a decision differs, for instance because another version of the software decides, the learner
repeats the recorded action.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from cwm_cli.data.dataset import Transition
from cwm_learn.certificate import EpisodeRecord
from cwm_learn.records import LearnRecord, StepsTaken

if TYPE_CHECKING:
    from cwm_cli.runs.observer import Observer
    from cwm_learn.runs import LearnRun

R = TypeVar("R", bound=LearnRecord)


class LearnerJournal:
    """Writes the records of a learner, or returns the recorded ones while a run is repeated.

    The observer receives no events and notes during the replay.
    """

    def __init__(self, run: LearnRun, observer: Observer, learner: object) -> None:
        self.replay = JournalReplay(run)
        self.run, self._observer, self._learner = run, observer, learner
        self._seconds_before = run.elapsed
        self._unsaved: list[Transition] = []
        self._noted: set[str] = set()

    def begin(self) -> None:
        """Start the observer and the clock, unless a replay comes first or continues."""
        if self.replay.is_over:
            self.run.restart_clock(self._seconds_before)
            self._observer.begins(self._learner)

    def end(self) -> None:
        """Save all steps, and stop the observer."""
        self.save_steps()
        if self.replay.is_over:
            self._observer.ends()

    def append(self, record: R) -> R:
        """Write a record; during the replay return the recorded one instead."""
        if not self.replay.is_over:
            return self.recorded(type(record)) or record
        self.save_steps()
        self.run.append(record)
        return record

    def recorded(self, kind: type[R]) -> R | None:
        """Return the next record of the replay, None if it is of another kind."""
        found = self.replay.record(kind)
        if found is not None:
            self.begin()
        return found

    def add_step(self, row: Transition) -> None:
        """Add a new step, one that is not repeated."""
        self._unsaved.append(row)
        # steps that a crash can lose; to save each step would take longer than to take it
        max_unsaved_steps = 10
        if len(self._unsaved) >= max_unsaved_steps:
            self.save_steps()

    def save_steps(self) -> None:
        """Write the steps that are not saved yet."""
        if self._unsaved:
            self.run.append(StepsTaken(columns=self.run.dataset_of(self._unsaved).columns))
            self._unsaved.clear()

    def report(self, event: object) -> None:
        """Pass an event to the observer, unless the run is being repeated."""
        if self.replay.is_over:
            self._observer.advanced(event)

    def note(self, words: str, kind: str = "Note") -> None:
        """Pass a note to the observer, unless the run is being repeated."""
        if self.replay.is_over:
            self._observer.note(words, kind)

    def note_once(self, words: str, kind: str = "Note", *, key: str = "") -> None:
        """Pass a note to the observer unless one with this key (default: its words) was passed."""
        if (key or words) not in self._noted:
            self._noted.add(key or words)
            self.note(words, kind)


class JournalReplay:
    """The events of a journal that a continued learner has not repeated yet.

    Attributes:
        steps: Number of recorded steps.
        unfinished: Number of the last episode if its end is not recorded, else None.
    """

    def __init__(self, run: LearnRun) -> None:
        self._events: deque[Transition | LearnRecord] = deque()
        for record in run.records():
            if isinstance(record, StepsTaken):
                self._events += replace(run.initial_rows, columns=record.columns)
            else:
                self._events.append(record)
        rows = [each for each in self._events if isinstance(each, Transition)]
        finished = {each.number for each in self._events if isinstance(each, EpisodeRecord)}
        self.steps = len(rows)
        last = rows[-1].episode if rows else None
        self.unfinished = None if last in finished else last

    @property
    def is_over(self) -> bool:
        """Whether every event was repeated."""
        return not self._events

    def record(self, kind: type[R]) -> R | None:
        """Remove and return the next event if it is a record of this kind, else return None."""
        event = self._events[0] if self._events else None
        if not isinstance(event, kind):
            return None
        self._events.popleft()
        return event

    def row(self, episode: int) -> Transition | None:
        """Remove and return the next step if it belongs to this episode, else return None."""
        event = self._next()
        if not isinstance(event, Transition) or event.episode != episode:
            return None
        self._drop_up_to(event)
        return event

    def has_row(self, episode: int) -> bool:
        """Return whether the next recorded step belongs to this episode."""
        event = self._next()
        return isinstance(event, Transition) and event.episode == episode

    def leaves(self, episode: int) -> bool:
        """Return whether steps of other episodes or the end of an episode are recorded next."""
        return self._next() is not None and not self.has_row(episode)

    def has_end(self, episode: int) -> bool:
        """Return whether the end of this episode is recorded before any further step."""
        event = self._next()
        return isinstance(event, EpisodeRecord) and event.number == episode

    def begin_episode(self, following: int) -> int:
        """Return the number of the next episode, which follows the one before by default."""
        while isinstance(event := self._next(), EpisodeRecord):
            self._drop_up_to(event)  # a decision differed, so that no episode ended here
        return following if event is None else min(following, event.episode)

    def clear(self) -> None:
        """Drop the remaining records, which the learner did not repeat as a decision differed."""
        self._events.clear()

    def _next(self) -> Transition | EpisodeRecord | None:
        """Return the next recorded step or end of an episode."""
        kinds = Transition, EpisodeRecord
        return next((each for each in self._events if isinstance(each, kinds)), None)

    def _drop_up_to(self, event: Transition | EpisodeRecord) -> None:
        """Remove an event and the records before it, which the learner did not repeat."""
        while self._events.popleft() is not event:
            pass
