"""Sessions: imagined episodes that clients continue step by step."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cwm_cli.planning.model import EpisodeHistory, Step
from cwm_serve.engines import Keeps, StepRow
from cwm_serve.limits import ServerBusy, ServerLimits, TooManyRequests


@dataclass
class Session:
    """An episode in progress.

    `lock` orders the requests of a session. `valid` has the valid actions, None if all are.
    """

    name: str
    client: str
    keeps: Keeps
    max_steps: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used: float = 0.0

    def restart(self, observation: Any, seed: int) -> None:
        """Begin an episode at an observation."""
        self.seed, self.observation = seed, observation
        self.steps, self.reward, self.total = 0, 0.0, 0.0
        self.terminated = self.truncated = False
        self.valid: tuple[int, ...] | None = None
        self.action: Any = None
        self._history = EpisodeHistory((observation,))
        self._actions: tuple[Any, ...] = ()
        self._episode = secrets.token_hex(8)

    @property
    def is_over(self) -> bool:
        """Whether the episode ended."""
        return self.terminated or self.truncated

    def row(self, action: Any) -> StepRow:
        """Return the row of the next step."""
        first = 0 if self.keeps == "actions" else self.steps
        return StepRow(
            self._history, (*self._actions, action), (self.seed, first, 0), self._episode
        )

    def record(self, action: Any, step: Step) -> None:
        """Continue the episode by a step."""
        if self.keeps == "actions":
            self._actions = (*self._actions, action)
        elif self.keeps == "history":
            self._history = self._history.after(action, step.observation, step.reward)
        else:
            self._history = EpisodeHistory((step.observation,))
        self.action, self.observation, self.reward = action, step.observation, step.reward
        self.steps += 1
        self.total += step.reward
        self.terminated, self.valid = step.terminated, step.valid
        self.truncated = not self.terminated and self.steps >= self.max_steps


@dataclass
class Sessions:
    """The sessions of all clients; sessions that are not used expire.

    Args:
        limits: The limits.
        keeps: The state that the engine needs.
        max_steps: The step limit of an episode.
        clock: Returns the time in seconds (for tests).
    """

    limits: ServerLimits
    keeps: Keeps
    max_steps: int
    clock: Callable[[], float] = time.monotonic
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)

    def open(self, client: str, observation: Any, seed: int) -> Session:
        """Begin an episode in a new session of a client.

        Raises:
            TooManyRequests: The client has too many sessions.
            ServerBusy: All clients together have too many sessions.
        """
        self._expire()
        limits, idle = self.limits, self.limits.idle_seconds
        theirs = Counter(session.client for session in self._sessions.values())
        if theirs[client] >= limits.sessions:
            raise TooManyRequests(f"{limits.sessions} sessions are open", idle)
        if len(self._sessions) >= limits.all_sessions:
            raise ServerBusy(f"{limits.all_sessions} sessions are open")
        session = Session(secrets.token_urlsafe(16), client, self.keeps, self.max_steps)
        session.restart(observation, seed)
        session.used = self.clock()
        self._sessions[session.name] = session
        return session

    def find(self, name: str) -> Session | None:
        """Return a session, which counts as used; None if it does not exist or has expired."""
        self._expire()
        session = self._sessions.get(name)
        if session is not None:
            session.used = self.clock()
            self._sessions.move_to_end(name)
        return session

    def close(self, name: str) -> None:
        """Remove a session."""
        self._sessions.pop(name, None)

    def __iter__(self) -> Iterator[Session]:
        self._expire()
        return iter(list(self._sessions.values()))

    def idle_seconds(self, session: Session) -> float:
        """Return the time since the last use of a session."""
        return self.clock() - session.used

    def _expire(self) -> None:
        """Remove sessions that were not used for too long; the first are the longest idle."""
        oldest = self.clock() - self.limits.idle_seconds
        while self._sessions:
            name, session = next(iter(self._sessions.items()))
            if session.used >= oldest:
                return
            del self._sessions[name]
