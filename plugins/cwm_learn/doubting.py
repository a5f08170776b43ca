"""What a language model is unsure of in a program: open questions, named as data.

A question that says where it is to be asked by bounds of components, `position >= 0.6`, is gone
for like any other. The rest is written down and shown. A region is read and compared, never run.
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
from cwm_learn.writing import SHOWN, AskedModel

EVERY = 3
"""Of so many programs one is doubted by the model: writing programs is what completions are for."""

MOST_NAMED, MOST_OPEN = 5, 10
"""Questions that are taken from an answer, and so many open ones that no more are asked for."""

WEIGHT = 0.5
"""How much plans depend on such a question: less than on what programs disagree on."""

LONGEST = 200
"""Characters of each text of a question."""

SYSTEM = (
    "You look for mistakes in a program that predicts an environment. You name, briefly and as "
    "JSON, unrecorded situations that the program may predict wrongly, and an action that would "
    "show the mistake."
)


@dataclass
class UnsureModel:
    """Has a language model name what it is unsure of in a program."""

    model: AskedModel
    known: Knowledge
    description: str = ""
    actions: Sequence[str] = ()
    """What actions are called, the first one first."""

    def name(
        self, program: str, replayed: str, recorded: str, asked: Iterable[str]
    ) -> tuple[list[OpenQuestion], Usage]:
        """Ask for questions about a program.

        Args:
            program: The program; the prompt shows its first `SHOWN` characters.
            replayed: A sentence on how many recorded outcomes the program predicts.
            recorded: The section of the prompt that shows recorded rows.
            asked: Open questions, which the answer should not repeat.

        Returns:
            The questions of the answer, and the tokens and money that the answer took.
        """
        messages = (
            Message(role="system", content=SYSTEM),
            Message(role="user", content=self._words(program, replayed, recorded, asked)),
        )
        completion = self.model.ask(messages, self.known.seed, self)
        return ([*self._read(completion.text)], completion.usage) if completion else ([], Usage())

    def pursued(self, asked: OpenQuestion) -> TargetedQuestion | None:
        """Return a question that can be gone for, None for one that stays text."""
        space = self.known.observation_space
        if space.children or space.kind == "text":
            return None
        box = box_of(asked.region, identifiers(self.known.names), space.size)
        action = None if asked.action is None else self._action(asked.action)
        if box is None or (action is None and (asked.action is not None or not asked.region)):
            return None
        return TargetedQuestion(asked._replace(action=action), box)

    def _words(self, program: str, replayed: str, recorded: str, asked: Iterable[str]) -> str:
        """Word the prompt."""
        names = [*identifiers(self.known.names)] or ["observation[0]"]
        known = "\n".join(f"- {text}" for text in asked)
        space = self.known.action_space
        actions = "a list of numbers"
        if space.kind == "discrete":
            first = int(space.low[0])
            actions = f"a number from {first} to {first + space.count - 1}"
            if self.actions:
                called = (f"{first + n} {name}" for n, name in enumerate(self.actions))
                actions += f" ({', '.join(called)})"
        parts = [
            f"## The environment\n\n{self.description}" if self.description else "",
            recorded,
            f"## The program\n\n{replayed}\n\n```python\n{program[:SHOWN]}\n```",
            f"## Open questions\n\nThese are known already:\n\n{known}" if known else "",
            f"## Your answer\n\nWrite a JSON list of at most {MOST_NAMED} further questions in a "
            "```json block, the most important first. Ask only what a step in the environment can "
            'answer and no recorded step has answered. Each is an object: `{"text": the question, '
            '"region": where to try it, "action": the action to try there or null, "answers": what '
            f"each outcome would mean}}`. A region holds bounds of {', '.join(names)}, joined by "
            f"`and`, such as `{names[0]} >= 0.5`. An action is {actions}.",
        ]
        return "\n\n".join(part for part in parts if part)

    def _read(self, text: str) -> Iterable[OpenQuestion]:
        """Read the questions of an answer; what is none is left out."""
        found: list[Any] = []
        for block in [*blocks(text), text]:
            try:
                found = json.loads(block)
            except (ValueError, RecursionError):
                continue
            break
        for each in found[:MOST_NAMED] if isinstance(found, list) else []:
            if not isinstance(each, dict) or not each.get("text"):
                continue
            words = {key: _line(each.get(key)) for key in ("text", "region", "answers")}
            action = each.get("action")
            if action is not None and (said := self._action(action)) is None:
                words["region"] = _line(f"{words['region']}, by {action}")  # nobody can try that
            yield OpenQuestion(action=None if action is None else said, weight=WEIGHT, **words)

    def _action(self, said: Any) -> Any:
        """Read an action, by number or name, or by its numbers; None for what is none."""
        space = self.known.action_space
        try:
            if space.kind == "discrete":
                first = int(space.low[0])
                number = first + self.actions.index(said) if isinstance(said, str) else int(said)
                return number if first <= number < first + space.count else None
            values = np.asarray(said, space.dtype).reshape(space.shape)
        except (ValueError, TypeError, OverflowError):
            return None
        flat = values.ravel()
        return values if ((flat >= space.low) & (flat <= space.high)).all() else None


def box_of(region: str, names: Mapping[str, int], size: int) -> np.ndarray | None:
    """Return the bounds (2, components) that a region names, None where it is no such condition.

    Bounds go by the name of a component or `observation[0]`, and are joined by `and`.
    """
    box = np.repeat([[-inf], [inf]], size, axis=1)
    if not region:
        return box  # anywhere
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
    """Narrow bounds by one comparison; ValueError where it is none of a component and a number."""
    kind = type(sign)
    if kind not in _MIRRORED:
        raise ValueError("this compares otherwise")
    place = _component(left, names, box.shape[1])
    if place is None:
        left, right, kind = right, left, _MIRRORED[kind]
        place = _component(left, names, box.shape[1])
    if place is None:
        raise ValueError("no component is compared")
    value = float(ast.literal_eval(right))
    if kind in (ast.Gt, ast.GtE, ast.Eq):
        least = np.nextafter(value, inf) if kind is ast.Gt else value
        box[0, place] = max(box[0, place], least)
    if kind in (ast.Lt, ast.LtE, ast.Eq):
        most = np.nextafter(value, -inf) if kind is ast.Lt else value
        box[1, place] = min(box[1, place], most)


def _component(said: ast.expr, names: Mapping[str, int], size: int) -> int | None:
    """Return the place of a component, None for what is none."""
    if isinstance(said, ast.Subscript) and ast.unparse(said.value) == "observation":
        place = int(ast.literal_eval(said.slice))
        return place if 0 <= place < size else None
    if isinstance(said, ast.Name):
        return 0 if said.id == "observation" and size == 1 else names.get(said.id)
    return None


def _line(said: Any) -> str:
    return printable(" ".join(str(said or "").split()), LONGEST)
