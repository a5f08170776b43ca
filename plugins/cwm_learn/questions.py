"""Open questions of the learning agent, and their answers, as records of the journal.

Logs of agents show that the decisive question was usually written down and never tested. A question
here therefore names a region and an action for its test, if it has one. Questions with a large
effect on plans are tested first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cwm_learn.actors.base import OpenQuestion

Source = Literal["play", "rows", "candidates", "gaps", "model"]
"""Origin of a question: an actor, rows that no rule explains, programs that disagree, data that the
rows do not cover, or a language model."""

NUMBERS = re.compile(r"[-+]?\d[\d.,e+-]*")


class RecordedQuestion(BaseModel):
    """A record of the journal: a question that steps in the environment can answer.

    The fields of `OpenQuestion` have the same meaning here; a `weight` of 0 means that no effect
    on plans is known. `asked` is the number of steps when the question was first asked.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: Literal["question"] = "question"
    source: Source
    text: str
    region: str = ""
    action: Any = None
    answers: str = ""
    weight: float = 0.0
    asked: int = 0
    state: Literal["open", "answered"] = "open"
    answer: str = ""

    @classmethod
    def of(cls, question: OpenQuestion, source: Source, steps: int = 0) -> RecordedQuestion:
        """Record an open question, with an action that JSON can represent."""
        action = getattr(question.action, "tolist", lambda: question.action)()
        return cls(source=source, asked=steps, **question._asdict() | {"action": action})

    @property
    def key(self) -> str:
        """An identifier; it omits numbers that grow with the rows."""
        if self.source in ("gaps", "rows"):
            return f"{self.source}: {NUMBERS.sub('#', self.text)}"
        return f"{self.source}: {self.text} {self.action}"

    @property
    def question(self) -> OpenQuestion:
        """The question without its source and answer."""
        return OpenQuestion(self.text, self.region, self.action, self.answers, self.weight)


def open_questions(questions: Iterable[RecordedQuestion]) -> list[RecordedQuestion]:
    """Return the unanswered questions, those with the largest weight in plans first."""
    return sorted((q for q in questions if q.state == "open"), key=lambda each: -each.weight)


class Questions:
    """All questions so far, by key."""

    def __init__(self) -> None:
        self._known: dict[str, RecordedQuestion] = {}

    def __iter__(self) -> Iterator[RecordedQuestion]:
        return iter(self._known.values())

    @property
    def open(self) -> list[RecordedQuestion]:
        """The unanswered questions, the most important first."""
        return open_questions(self)

    @property
    def open_texts(self) -> list[str]:
        """The texts of the unanswered questions, the most important first."""
        return [each.text for each in self.open]

    def update(
        self, current: Iterable[OpenQuestion], source: Source, steps: int
    ) -> list[RecordedQuestion]:
        """Replace the open questions of a source.

        A question that the source no longer asks was answered by the data.

        Returns:
            The questions that are new, changed or answered.
        """
        changed: dict[str, RecordedQuestion] = {}
        keys = set()
        for question in current:
            new = RecordedQuestion.of(question, source, steps)
            before = self._known.get(new.key)
            if before is not None and before.state == "open":
                new = new.model_copy(update={"asked": before.asked})
            keys.add(new.key)
            if before != new:
                changed[new.key] = new
        for key, known in self._known.items():
            if known.source == source and known.state == "open" and key not in keys:
                answer = f"answered by the data at step {steps:,}"
                changed[key] = known.model_copy(update={"state": "answered", "answer": answer})
        self._known |= changed
        return list(changed.values())

    def answer(self, question: OpenQuestion, source: Source, answer: str) -> RecordedQuestion:
        """Answer a known question, and return its new record."""
        key = RecordedQuestion.of(question, source).key
        self._known[key] = self._known[key].model_copy(
            update={"state": "answered", "answer": answer}
        )
        return self._known[key]
