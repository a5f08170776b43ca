"""Open questions from a language model about predictions that may be wrong.

A question has a region, such as `position >= 0.6`. If the region consists of bounds of components,
the agent can go there and answer the question. Other questions are recorded and shown. A region
is parsed and compared, never executed.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from cwm_cli.sandbox.failures import printable
from cwm_cli.search.contracts import Message, Usage
from cwm_cli.search.reading import blocks
from cwm_learn.actors.base import Knowledge, OpenQuestion, TargetedQuestion
from cwm_learn.missions import identifiers
from cwm_learn.writing import MAX_PROGRAM_CHARACTERS, BudgetedModel

DOUBT_INTERVAL = 3
"""Programs per request for questions; most completions are needed to write programs."""

MAX_QUESTIONS, MAX_OPEN = 5, 10
"""Maximum number of questions per answer, and number of open questions that stops requests."""

SYSTEM = (
    "You look for mistakes in a program that predicts an environment. You name, briefly and as "
    "JSON, unrecorded situations that the program may predict wrongly, and an action that would "
    "show the mistake."
)


@dataclass
class DoubtingModel:
    """A language model that names open questions about a program."""

    model: BudgetedModel
    known: Knowledge
    description: str = ""
    actions: Sequence[str] = ()
    """The names of the actions, from the first one."""

    def find_questions(
        self, program: str, replayed: str, recorded: str, asked: Iterable[str]
    ) -> tuple[list[OpenQuestion], Usage]:
        """Request questions about a program.

        Args:
            program: The program; the prompt shows its first `MAX_PROGRAM_CHARACTERS` characters.
            replayed: A sentence on how many recorded outcomes the program predicts.
            recorded: The section of the prompt that shows recorded rows.
            asked: Open questions, which the answer should not repeat.

        Returns:
            The questions, and the usage of the request.
        """
        messages = (
            Message(role="system", content=SYSTEM),
            Message(role="user", content=self._prompt(program, replayed, recorded, asked)),
        )
        completion = self.model.ask(messages, self.known.seed, self)
        return ([*self._read(completion.text)], completion.usage) if completion else ([], Usage())

    def locate(self, question: OpenQuestion) -> TargetedQuestion | None:
        """Return a question with the box of its region, None if the agent cannot try it."""
        space = self.known.observation_space
        if space.children or space.kind == "text":
            return None
        box = parse_region(question.region, identifiers(self.known.names), space.size)
        action = None if question.action is None else self._parse_action(question.action)
        if box is None or (action is None and (question.action is not None or not question.region)):
            return None
        return TargetedQuestion(question._replace(action=action), box)

    def _prompt(self, program: str, replayed: str, recorded: str, asked: Iterable[str]) -> str:
        names = [*identifiers(self.known.names)] or ["observation[0]"]
        known = "\n".join(f"- {text}" for text in asked)
        space = self.known.action_space
        actions = "a list of numbers"
        if space.kind == "discrete":
            first = int(space.low[0])
            actions = f"a number from {first} to {first + space.count - 1}"
            if self.actions:
                numbered = (f"{first + n} {name}" for n, name in enumerate(self.actions))
                actions += f" ({', '.join(numbered)})"
        parts = [
            f"## The environment\n\n{self.description}" if self.description else "",
            recorded,
            f"## The program\n\n{replayed}\n\n```python\n{program[:MAX_PROGRAM_CHARACTERS]}\n```",
            f"## Open questions\n\nThese are known already:\n\n{known}" if known else "",
            f"## Your answer\n\nWrite a JSON list of at most {MAX_QUESTIONS} further questions in "
            "a ```json block, the most important first. Ask only questions that a step in the "
            "environment can answer and that no recorded step has answered. Each is an object: "
            '`{"text": the question, "region": where to try it, "action": the action to try there '
            'or null, "answers": the meaning of each outcome}`. '
            f"A region consists of bounds of {', '.join(names)}, joined by "
            f"`and`, such as `{names[0]} >= 0.5`. An action is {actions}.",
        ]
        return "\n\n".join(part for part in parts if part)

    def _read(self, text: str) -> Iterable[OpenQuestion]:
        """Parse the questions of an answer, and skip malformed ones."""
        found: list[Any] = []
        for block in [*blocks(text), text]:
            try:
                found = json.loads(block)
            except (ValueError, RecursionError):
                continue
            break
        # weight of a question; a question about a disagreement of programs has weight 1
        weight = 0.5
        for each in found[:MAX_QUESTIONS] if isinstance(found, list) else []:
            if not isinstance(each, dict) or not each.get("text"):
                continue
            texts = {key: _clean(each.get(key)) for key in ("text", "region", "answers")}
            action = None
            if (given := each.get("action")) is not None:
                action = self._parse_action(given)
                if action is None:  # an unknown action stays readable in the region
                    texts["region"] = _clean(f"{texts['region']}, by {given}")
            yield OpenQuestion(action=action, weight=weight, **texts)

    def _parse_action(self, given: Any) -> Any:
        """Return an action from its number, name or list of numbers, None if it is invalid."""
        space = self.known.action_space
        try:
            if space.kind == "discrete":
                first = int(space.low[0])
                named = isinstance(given, str)
                number = first + self.actions.index(given) if named else int(given)
                return number if first <= number < first + space.count else None
            values = np.asarray(given, space.dtype).reshape(space.shape)
        except (ValueError, TypeError, OverflowError):
            return None
        flat = values.ravel()
        return values if ((flat >= space.low) & (flat <= space.high)).all() else None


def parse_region(region: str, names: Mapping[str, int], size: int) -> np.ndarray | None:
    """Return the box (2, components) of a region, None if the region is not a box.

    A region consists of comparisons of components with numbers, joined by `and`; "" is unbounded.
    `names` has the indices of components by name; `observation[0]` is always possible.
    """
    box = np.repeat([[-inf], [inf]], size, axis=1)
    if not region:
        return box
    try:
        tree = ast.parse(region.strip(), mode="eval").body
        parts = tree.values if isinstance(tree, ast.BoolOp) else [tree]
        if isinstance(tree, ast.BoolOp) and not isinstance(tree.op, ast.And):
            return None
        for part in parts:
            if not isinstance(part, ast.Compare):
                return None
            sides = [part.left, *part.comparators]
            for left, sign, right in zip(sides, part.ops, sides[1:], strict=False):
                _narrow(box, left, sign, right, names)
    except (SyntaxError, ValueError, TypeError, IndexError, RecursionError, MemoryError):
        return None
    return box


_MIRRORED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq,
}  # fmt: skip


def _narrow(
    box: np.ndarray, left: ast.expr, sign: ast.cmpop, right: ast.expr, names: Mapping[str, int]
) -> None:
    """Narrow a box by a comparison; raise `ValueError` if it is not of component and number."""
    kind = type(sign)
    if kind not in _MIRRORED:
        raise ValueError("unknown comparison")
    place = _component(left, names, box.shape[1])
    if place is None:
        left, right, kind = right, left, _MIRRORED[kind]
        place = _component(left, names, box.shape[1])
    if place is None:
        raise ValueError("no component is compared")
    value = float(ast.literal_eval(right))
    if kind in (ast.Gt, ast.GtE, ast.Eq):
        low = np.nextafter(value, inf) if kind is ast.Gt else value
        box[0, place] = max(box[0, place], low)
    if kind in (ast.Lt, ast.LtE, ast.Eq):
        high = np.nextafter(value, -inf) if kind is ast.Lt else value
        box[1, place] = min(box[1, place], high)


def _component(node: ast.expr, names: Mapping[str, int], size: int) -> int | None:
    """Return the index of a component, None if the expression is not a component."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "observation":
        place = int(ast.literal_eval(node.slice))
        return place if 0 <= place < size else None
    if isinstance(node, ast.Name):
        return 0 if node.id == "observation" and size == 1 else names.get(node.id)
    return None


def _clean(text: Any) -> str:
    max_text = 200  # maximum length of each text of a question, in characters
    return printable(" ".join(str(text or "").split()), max_text)
