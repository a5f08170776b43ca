"""Answers of a language model, kept in a run folder so that no interruption makes them cost twice.

Every answer is written and synced before anything is computed from it. A process that continues the
run finds the answers of the process before it.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cwm_cli.data.reading import UnreadableError, open_for_appending, read_lines
from cwm_cli.runs.files import modelled
from cwm_cli.search.contracts import Backend, Completion, Node, Request, Turn, Usage
from cwm_cli.search.wrapper import BackendWrapper

ANSWERS = "answers.jsonl"
"""The file in a run folder with every answer in the order of arrival."""


class RecordedAnswer(BaseModel):
    """A line of the file: an answer, and the hash of the request that it answers."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    request: str
    step: int
    known: int
    text: str
    usage: Usage
    final: bool = False
    lacking: str = ""
    log_probability: float | None = None

    @property
    def completion(self) -> Completion:
        """The answer as its backend gave it."""
        return Completion(
            self.text, self.usage, self.final, self.lacking, log_probability=self.log_probability
        )


class RecordedAnswers(BackendWrapper):
    """A backend whose answers are recorded in a file, and which repeats the recorded ones."""

    def __init__(self, inner: Backend, file: Path) -> None:
        super().__init__(inner)
        self._file, self._lock = file, threading.Lock()
        self._known: defaultdict[str, list[RecordedAnswer]] = defaultdict(list)
        try:
            lines = list(read_lines(file))
        except UnreadableError as error:
            if not error.is_missing:
                raise
            lines = []
        for line in lines:
            try:
                answer = modelled(RecordedAnswer, line)
            except ValueError:
                continue  # cut short by a crash
            self._known[answer.request].append(answer)

    def complete(self, request: Request) -> Completion:
        """Return the recorded answer, else ask, and record the answer before returning it."""
        key = request_key(request)
        with self._lock:
            if known := self._known[key]:
                return known.pop(0).completion
        completion = self.inner.complete(request)
        answer = RecordedAnswer(
            request=key,
            step=request.step,
            known=request.known,
            text=completion.text.encode("utf-8", "replace").decode(),
            usage=completion.usage,
            final=completion.final,
            lacking=completion.lacking,
            log_probability=completion.log_probability,
        )
        with self._lock, open_for_appending(self._file) as file:
            size = file.seek(0, os.SEEK_END)
            if size and not _ends_a_line(file.fileno(), size):
                file.write(b"\n")
            file.write(answer.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return completion


class PendingAnswers(RecordedAnswers):
    """Records each answer until the journal has its node.

    The search that continues a run judges the answers that were delivered before an interruption.
    """

    def __init__(self, inner: Backend, file: Path) -> None:
        super().__init__(inner, file)
        self._waiting = {turn.step for turn in self.lost()}

    def lost(self) -> list[Turn]:
        """Return when the answered requests without a node were made, in that order."""
        return sorted(Turn(each.step, each.known) for some in self._known.values() for each in some)

    def worst_cost(self, request: Request) -> float | None:
        """Return the cost of a recorded answer, else the worst cost."""
        known = self._known[request_key(request)]
        return known[0].usage.cost if known else self.inner.worst_cost(request)

    def complete(self, request: Request) -> Completion:
        """Return the recorded answer, else ask, and record the answer before returning it."""
        self._waiting.add(request.step)
        return super().complete(request)

    def update(self, node: Node) -> None:
        """Forget the answer of a node; remove the file when no answer is left."""
        self.inner.update(node)
        if node.step not in self._waiting:
            return
        with self._lock:
            self._waiting.discard(node.step)
            for some in self._known.values():
                some[:] = [each for each in some if each.step != node.step]
            if not self._waiting:
                self._file.unlink(missing_ok=True)


def request_key(request: Request) -> str:
    """Return a hash of all that makes a request of a run unique."""
    words = [(message.role, message.content) for message in request.messages]
    parts = [words, request.seed, request.step, request.occurrence, request.model]
    return sha256(json.dumps(parts).encode()).hexdigest()


def _ends_a_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"
