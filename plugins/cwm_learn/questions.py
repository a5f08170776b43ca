"""What a learner does not know, as data: open questions, and what came of them.

In logs of agents that play, the question that decided was mostly written down and never tested.
Here each has a situation to go to and an action to try there, where it has one, and what plans
depend on most is asked first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cwm_learn.actors.base import OpenQuestion

Source = Literal["play", "rows", "candidates", "gaps", "model"]
"""Who asks: an actor, rows that no rule explains, programs that disagree, what the rows do not
show, or a language model."""

NUMBERS = re.compile(r"[-+]?\d[\d.,e+-]*")


class RecordedQuestion(BaseModel):
    """A line of the journal: a question that steps in the environment would answer.

    `region` says where it is to be asked, `action` what to try there, `answers` what the outcomes
    would mean. `weight` is how much plans depend on it, 0 where none is known to. It was first
    `asked` after so many steps.
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

    @property
    def key(self) -> str:
        """What tells it from others; what is said of all rows changes its numbers as they grow."""
        if self.source in ("gaps", "rows"):
            return f"{self.source}: {NUMBERS.sub('#', self.text)}"
        return f"{self.source}: {self.text} {self.action}"

    @property
    def asked_again(self) -> OpenQuestion:
        """The question as whoever asked it put it."""
        return OpenQuestion(self.text, self.region, self.action, self.answers, self.weight)


class Questions:
    """All questions so far, the open ones ordered by how much plans depend on the answer."""

    def __init__(self, known: Iterable[RecordedQuestion] = ()) -> None:
        self._known = {each.key: each for each in known}

    def __iter__(self) -> Iterator[RecordedQuestion]:
        return iter(self._known.values())

    @property
    def open(self) -> list[RecordedQuestion]:
        """Those that are not answered, the most important first."""
        found = [each for each in self if each.state == "open"]
        return sorted(found, key=lambda each: -each.weight)

    def update(
        self, now: Iterable[OpenQuestion], source: Source, steps: int
    ) -> list[RecordedQuestion]:
        """Take in all that a source asks now; return what is new, put otherwise or answered.

        What it no longer asks was answered by what was seen since.
        """
        changed: dict[str, RecordedQuestion] = {}
        asked = set()
        for each in now:
            made = RecordedQuestion(source=source, asked=steps, **_plain(each))
            before = self._known.get(made.key)
            if before is not None and before.state == "open":
                made = made.model_copy(update={"asked": before.asked})
            asked.add(made.key)
            if before != made:
                changed[made.key] = made
        for key, known in self._known.items():
            if known.source == source and known.state == "open" and key not in asked:
                answer = f"answered by the data at step {steps:,}"
                changed[key] = known.model_copy(update={"state": "answered", "answer": answer})
        self._known |= changed
        return list(changed.values())

    def answer(self, asked: OpenQuestion, source: Source, answer: str) -> RecordedQuestion:
        """Take in what came of a question that was asked before; return it as it is now."""
        key = RecordedQuestion(source=source, **_plain(asked)).key
        told = self._known[key].model_copy(update={"state": "answered", "answer": answer})
        self._known[key] = told
        return told


def _plain(asked: OpenQuestion) -> dict[str, Any]:
    """Return a question with an action that JSON can hold."""
    return asked._asdict() | {"action": getattr(asked.action, "tolist", lambda: asked.action)()}
