"""Replay of a journal of learning, so that a continued run ends as if it had not been interrupted.

A learner has state that its journal does not hold: random generators, tables, plans under way. A
continued learner therefore repeats its decisions from the first step on. The journal replaces the
environment and everything that took long or cost money: rows, written programs, compared programs.
The recorded actions are binding: if a decision differs, for instance because another version of the
software decides, the recorded one is repeated.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from cwm_cli.data.dataset import Transition
from cwm_learn.certificate import EpisodeRecord
from cwm_learn.runs import LearnRecord, StepsTaken

if TYPE_CHECKING:
    from cwm_learn.runs import LearnRun

R = TypeVar("R", bound=BaseModel)


class JournalReplay:
    """The events of a journal that a continued learner has not repeated yet.

    Attributes:
        steps: Number of recorded steps.
        unfinished: Number of the last episode if its end is not recorded, else None.
    """

    def __init__(self, run: LearnRun) -> None:
        self._events: deque[Transition | LearnRecord] = deque()
        for record in run.records():
            self._events += run.rows_of(record) if isinstance(record, StepsTaken) else [record]
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
