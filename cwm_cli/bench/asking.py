"""How fast, how right and at what cost a language model predicts transitions.

It is asked for one transition at a time, and what it answers is read however it is written
and checked as the predictions of a program are.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Metric, Score
from cwm_cli.problems.templates import shorten_fields, template
from cwm_cli.sandbox.handlers import Complaint, mask_writer, reward_of, terminated_of, writer
from cwm_cli.sandbox.job import prediction_layout
from cwm_cli.sandbox.prediction import merge_answers
from cwm_cli.search.contracts import (
    GENERATE,
    Backend,
    Completion,
    Message,
    Move,
    Request,
    Usage,
    total,
)
from cwm_cli.search.threads import run_in_thread
from cwm_cli.worlds import Predictions
from cwm_cli.worlds.contract import describe

MOST_REFUSALS = 2
"""After so many questions in a row that brought no answer no more are asked."""

INTERRUPTED = "interrupted"
"""Why no further rows were asked for where the user ended it."""

GIVEN = ("observation", "action")
ANSWERED = ("next_observation", "reward", "terminated")
VALID = "\n- `valid_actions`: a list of the actions that are allowed after the step."

LONGEST = 50_000
"""Characters of an answer that are read, from its end."""

MOST_BRACES = 100
"""The last braces at which an object may begin."""

NAMES = {
    "observation": ("next_observation", "observation", "next_state", "state", "obs"),
    "reward": ("reward",),
    "terminated": ("terminated", "done", "terminal", "is_terminal", "termination"),
    "valid_actions": ("valid_actions",),
}
"""What the parts of an answer may be called."""

_WRAPPER = re.compile(r"\b(?:(?:np|numpy)\.\w+|array|list|tuple)\(")
_DTYPE = re.compile(r",\s*dtype\s*=\s*[\w.']+(?=\s*\))")
_WORDS = {"true": "True", "false": "False", "null": "None"}
_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass
class Asked:
    """What came of asking a language model for rows.

    `unread` says, by row, why an answer is no prediction, which then counts as wrong.
    `refused` says why there was no answer, which counts as nothing, and `stopped`
    why further rows were not asked for. `answers` are texts, by row, and `notes` are for the user.
    """

    usages: list[Usage] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    stopped: str = ""
    notes: list[str] = field(default_factory=list)
    score: Score | None = None

    @property
    def spent(self) -> Usage:
        """What all answers took."""
        return total(self.usages)


@dataclass(frozen=True)
class Inquiry:
    """Asks a backend for rows, one after the other, up to a cost in US dollars."""

    backend: Backend
    questioner: "Questioner"
    metric: Metric
    max_cost: float | None = None

    def ask(self, rows: Dataset, heard: Callable[[int], None] = lambda count: None) -> Asked:
        """Ask for every row, or until that has no use; `heard` is told how many are done.

        What was answered is kept when the user interrupts.
        """
        asked, predicted = Asked(), PredictedRows(rows)
        try:
            for number in range(len(rows)):
                self._ask(rows, number, asked, predicted)
                heard(number + 1)
                if asked.stopped:
                    break
        except KeyboardInterrupt:
            asked.stopped = INTERRUPTED
        if asked.answers:
            asked.score = predicted.score(self.metric, np.array(sorted(asked.answers)))
        return asked

    def _ask(self, rows: Dataset, number: int, asked: Asked, predicted: "PredictedRows") -> None:
        """Ask for a row and take its answer in, if there is any."""
        worded = partial(self.questioner.messages, rows.row(number), number)
        request = Request(worded(), number, Move(GENERATE), self.questioner, number, shorter=worded)
        try:
            completion = self._complete(request, asked)
        except CwmError as error:
            asked.refused[number] = str(error)
            latest = range(number - MOST_REFUSALS + 1, number + 1)
            if number == 0 or all(row in asked.refused for row in latest):
                asked.stopped = str(error)
            return
        if completion is None:
            asked.stopped = f"the next completion might exceed --max-cost {self.max_cost:g}"
            return
        asked.usages.append(completion.usage)
        asked.notes += [completion.note] if completion.note else []
        asked.answers[number] = completion.text
        if reason := predicted.take(number, completion.text):
            asked.unread[number] = completion.lacking or reason

    def _complete(self, request: Request, asked: Asked) -> Completion | None:
        """Return the answer; none where it might cost too much."""
        if self.max_cost is not None:
            worst, spent = self.backend.worst_cost(request), asked.spent.cost
            if worst is None or spent is None:
                raise CwmError("--max-cost needs a model with a known price: leave it out")
            if spent + worst > self.max_cost:
                return None
            request = request._replace(allowance=self.max_cost - spent)
        return run_in_thread(lambda: self.backend.complete(request))


@dataclass(frozen=True)
class Questioner:
    """Writes prompts: a description of the environment, solved examples, the row to predict.

    The examples are drawn from the train rows, for each question anew.
    """

    description: str
    train: Dataset
    examples: int = 3
    seed: int = 0

    def messages(
        self, row: Transition, number: int, room: int | None = None
    ) -> tuple[Message, ...]:
        """Ask for a row, in so many characters if that is said; `number` counts the questions."""
        has_valid = self.train.has_valid_actions
        keys = [*ANSWERED, *(["valid_actions"] if has_valid else [])]
        solved = (_written(self.train.row(place), (*GIVEN, *keys)) for place in self._drawn(number))
        asking, system = template("prediction/ask"), template("prediction/system").substitute()
        fields = {
            "description": self.description.strip(),
            "observation": describe(self.train.observation_space),
            "action": describe(self.train.action_space),
            "valid": VALID if has_valid else "",
            "examples": "\n\n".join(solved) or "There are none.",
            "row": _written(row, GIVEN),
            "keys": ", ".join(f"`{key}`" for key in keys),
        }
        if room is not None:
            fields = shorten_fields(asking, fields, room - len(system))
        content = asking.substitute(fields).strip()
        return Message(role="system", content=system.strip()), Message(role="user", content=content)

    def _drawn(self, number: int) -> list[int]:
        """Draw rows at random, one of each kind before a second: each reward, goes on or ends."""
        rewards, ends = (self.train.columns[name].tolist() for name in ("rewards", "terminations"))
        order = np.random.default_rng([self.seed, number]).permutation(len(rewards)).tolist()
        seen: Counter[tuple[float, bool]] = Counter()
        turns = []
        for row in order:
            kind = rewards[row], ends[row]
            turns.append(seen[kind])
            seen[kind] += 1
        return [order[place] for place in np.argsort(turns, kind="stable")[: self.examples]]


def _written(row: Transition, keys: Sequence[str]) -> str:
    """Write parts of a transition, a line of JSON each."""
    values = row._asdict() | {"valid_actions": row.valid}
    return "\n".join(f"{key}: {json.dumps(_plain(values[key]))}" for key in keys)


def _plain(value: Any) -> Any:
    """Return what JSON can hold, real numbers with as many digits as tell them apart."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.str_).astype(np.float64).tolist()
    return value.tolist() if isinstance(value, np.ndarray) else value


class PredictedRows:
    """What was predicted for the rows of a dataset; a row without a prediction is all wrong."""

    def __init__(self, rows: Dataset) -> None:
        self._rows = rows
        space, valid = rows.observation_space, rows.has_valid_actions
        layout = prediction_layout(space, len(rows), rows.action_space.count if valid else 0)
        self._slots = layout.views(bytearray(layout.size))
        leaves = space.leaves("next_observations")
        self._write = writer(space, (self._slots[leaf.name] for leaf in leaves))
        self._write_valid = (
            mask_writer(rows.action_space, self._slots["valid_actions"]) if valid else None
        )
        self._is_read = np.zeros(len(rows), dtype=np.bool_)

    def take(self, row: int, text: str) -> str:
        """Read the prediction of a row from an answer; return what is wrong with it, or nothing."""
        try:
            answer = read_answer(text, with_valid=self._write_valid is not None)
            self._write(row, answer.observation)
            self._slots["rewards"][row] = reward_of(answer.reward)
            self._slots["terminations"][row] = terminated_of(answer.terminated)
            if self._write_valid:
                self._write_valid(row, answer.valid_actions)
        except (Complaint, Unreadable) as error:
            return str(error)
        self._is_read[row] = True
        return ""

    def score(self, metric: Metric, counted: np.ndarray) -> Score:
        """Score the rows that are counted."""
        columns = merge_answers(self._rows, [(np.arange(len(self._rows)), self._slots)])
        rows = self._rows[counted]
        predictions = {name: column[counted] for name, column in columns.items()}
        return metric.score(Predictions(predictions, answered=self._is_read[counted]), rows)


class Unreadable(ValueError):
    """An answer holds no prediction; the text says what is missing."""


class PredictedTransition(NamedTuple):
    """The parts of a prediction as they were written; their types are not checked."""

    observation: Any
    reward: Any
    terminated: Any
    valid_actions: Any = None


def read_answer(text: str, *, with_valid: bool = False) -> PredictedTransition:
    """Return the last prediction in a text: an object in JSON or Python, alone or within another.

    Numbers and truth values may be written as texts. `Unreadable` where there is none.
    """
    if not text.strip():
        raise Unreadable("the answer is empty")
    wanted = [name for name in NAMES if with_valid or name != "valid_actions"]
    missing = wanted
    for found in _objects(text):
        parts = {name: part for name in wanted for part in _part(found, name)}
        missing = min(missing, [name for name in wanted if name not in parts], key=len)
        if not missing:
            parts["reward"] = _number(parts["reward"])
            parts["terminated"] = _truth(parts["terminated"])
            return PredictedTransition(**parts)
    if missing == wanted:
        raise Unreadable("the answer contains no JSON object with a prediction")
    raise Unreadable(f"the answer lacks {' and '.join(missing)}")


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a text, those that begin last first."""
    text = text[-LONGEST:]
    starts = [match.start() for match in re.finditer("{", text)]
    for start in starts[: -MOST_BRACES - 1 : -1]:
        for read in (_json, _python):
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                value = read(text[start:])
                if isinstance(value, dict):
                    yield value
                break


def _json(text: str) -> Any:
    """Read the JSON that a text begins with; line breaks within texts are let pass."""
    return json.JSONDecoder(strict=False).raw_decode(text)[0]


def _python(text: str) -> Any:
    """Read the literal of Python that a text begins with, in the words of JSON and numpy, too."""
    for brace in islice(re.finditer("}", text), MOST_BRACES):
        literal = _WRAPPER.sub("(", _DTYPE.sub("", text[: brace.end()]))
        with suppress(SyntaxError):
            return ast.literal_eval(_WORD.sub(lambda word: _WORDS[word.group()], literal))
    raise ValueError("no literal of Python")


def _part(found: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield a part of a prediction under the first of its names, if it has one."""
    known = {str(key).strip().lower().replace(" ", "_"): value for key, value in found.items()}
    yield from [known[other] for other in NAMES[name] if other in known][:1]


def _number(value: Any) -> Any:
    """Return the number that a text is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _truth(value: Any) -> Any:
    """Return the truth value that a text is."""
    return _TRUTH.get(value.strip().lower(), value) if isinstance(value, str) else value
