"""What a learner does not know, as data: open questions, and what came of them.

In logs of agents that play, the question that decided was mostly written down and never tested.
Here each has a situation to go to and an action to try there, where it has one, and what plans
depend on most is asked first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Source = Literal["play", "rows", "candidates", "gaps", "model"]
"""Who asks: an actor, rows that no rule explains, programs that disagree, what the rows do not
show, or a language model."""


class Question(BaseModel):
    """A question that a step in the environment would answer.

    `region` says in words where it is to be asked, `observation` and `action` what to reach and to
    try there, where that can be said; `meaning` is what the answers would mean. `weight` is how
    much plans depend on the answer, 0 for what none is known to depend on. Two questions with one
    `name` are the same, whatever numbers are in their text.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: Literal["question"] = "question"
    text: str
    region: str = ""
    observation: Any = None
    action: Any = None
    meaning: str = ""
    weight: float = 0.0
    source: Source = "play"
    name: str = ""
    state: Literal["open", "answered"] = "open"
    answer: str = ""
    asked: int = 0
    """Steps in the environment when it was first asked."""

    @property
    def key(self) -> str:
        """What tells it from other questions."""
        return self.name or f"{self.source}: {NUMBERS.sub('#', self.text)}"


NUMBERS = re.compile(r"[-+]?\d[\d.,e+-]*")


class Questions:
    """All questions so far, the open ones ordered by how much plans depend on the answer."""

    def __init__(self, known: Iterable[Question] = ()) -> None:
        self._known = {each.key: each for each in known}

    def __iter__(self) -> Any:
        return iter(self._known.values())

    @property
    def open(self) -> list[Question]:
        """Those that are not answered, the most important first."""
        found = [each for each in self._known.values() if each.state == "open"]
        return sorted(found, key=lambda each: -each.weight)

    def update(self, now: Iterable[Question], source: Source, steps: int) -> list[Question]:
        """Take in all that a source asks now; return what is new, put otherwise or answered.

        What it no longer asks was answered by what was seen since.
        """
        changed = []
        asked = {each.key: each for each in now}
        for key, each in asked.items():
            before = self._known.get(key)
            began = before.asked if before and before.state == "open" else steps
            taken = each.model_copy(update={"source": source, "asked": began})
            if before is None or before != taken:
                changed.append(taken)
        for key, each in self._known.items():
            if each.source == source and each.state == "open" and key not in asked:
                answer = f"settled by what was seen up to step {steps:,}"
                changed.append(each.model_copy(update={"state": "answered", "answer": answer}))
        self._known |= {each.key: each for each in changed}
        return changed

    def answer(self, question: Question, answer: str) -> Question:
        """Write down what came of a question."""
        answered = question.model_copy(update={"state": "answered", "answer": answer})
        self._known[question.key] = answered
        return answered
