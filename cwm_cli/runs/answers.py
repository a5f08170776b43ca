"""Completions of a language model, recorded in a run folder so that no completion is paid twice.

Each completion is written and synced before any computation uses it. A process that continues the
run reads the completions of earlier processes.
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
from cwm_cli.runs.files import parse_model
from cwm_cli.search.contracts import Backend, Completion, Node, Request, Turn, Usage
from cwm_cli.search.models import BackendWrapper

ANSWERS = "answers.jsonl"
"""File of a run folder with all completions in the order of arrival."""


class RecordedAnswer(BaseModel):
    """A line of the file: a completion, and the hash of its request."""

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
        """The completion as the backend returned it."""
        return Completion(
            self.text, self.usage, self.final, self.lacking, log_probability=self.log_probability
        )


class RecordedAnswers(BackendWrapper):
    """A backend that records its completions in a file, and returns recorded ones first."""

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
                answer = parse_model(RecordedAnswer, line)
            except ValueError:
                continue  # a crash left an incomplete line
            self._known[answer.request].append(answer)

    def complete(self, request: Request) -> Completion:
        """Return the recorded completion, else request one and record it."""
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
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                file.write(b"\n")  # a crash left an incomplete line
            file.write(answer.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return completion


class PendingAnswers(RecordedAnswers):
    """A backend that records each completion until the journal contains its node.

    A search that continues a run judges the completions that arrived before the interruption.
    """

    def __init__(self, inner: Backend, file: Path) -> None:
        super().__init__(inner, file)
        self._waiting = {turn.step for turn in self.lost()}

    def lost(self) -> list[Turn]:
        """Return step and number of known nodes of the completions without a node, sorted."""
        return sorted(
            Turn(answer.step, answer.known)
            for answers in self._known.values()
            for answer in answers
        )

    def worst_cost(self, request: Request) -> float | None:
        """Return the cost of the recorded completion, else the highest possible cost."""
        known = self._known[request_key(request)]
        return known[0].usage.cost if known else self.inner.worst_cost(request)

    def complete(self, request: Request) -> Completion:
        """Return the recorded completion, else request one and record it."""
        self._waiting.add(request.step)
        return super().complete(request)

    def update(self, node: Node) -> None:
        """Remove the completion of a node; delete the file if no completion is left."""
        self.inner.update(node)
        if node.step not in self._waiting:
            return
        with self._lock:
            self._waiting.discard(node.step)
            for answers in self._known.values():
                answers[:] = [answer for answer in answers if answer.step != node.step]
            if not self._waiting:
                self._file.unlink(missing_ok=True)


def request_key(request: Request) -> str:
    """Return a hash of the fields that make a request unique within a run."""
    words = [(message.role, message.content) for message in request.messages]
    parts = [words, request.seed, request.step, request.occurrence, request.model]
    return sha256(json.dumps(parts).encode()).hexdigest()
