"""Predictions of transitions by a language model, with their accuracy, time and cost.

Each prompt requests one transition. Completions are parsed in several notations, and the
predictions are checked like the predictions of a program.
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
from cwm_cli.search.contracts import GENERATE, Backend, Message, Move, Request, Usage, total
from cwm_cli.search.threads import run_in_thread
from cwm_cli.worlds import Predictions
from cwm_cli.worlds.contract import describe

INTERRUPTED = "interrupted"
"""Value of `Asked.stopped` after Ctrl-C."""

MAX_BRACES = 100
"""Maximum number of opening and of closing braces at which the parser looks for an object."""

NAMES = {
    "observation": ("next_observation", "observation", "next_state", "state", "obs"),
    "reward": ("reward",),
    "terminated": ("terminated", "done", "terminal", "is_terminal", "termination"),
    "valid_actions": ("valid_actions",),
}
"""Accepted keys for each part of a prediction, in order of preference."""

_WRAPPER = re.compile(r"\b(?:(?:np|numpy)\.\w+|array|list|tuple)\(")
_DTYPE = re.compile(r",\s*dtype\s*=\s*[\w.']+(?=\s*\))")
_WORDS = {"true": "True", "false": "False", "null": "None"}
_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass
class Asked:
    """The predictions of a language model for the rows of a dataset.

    Attributes:
        usages: The usage of each completion.
        answers: The text of each completion, by row.
        unread: Why a completion contains no prediction, by row. Such a row is scored as wrong.
        refused: Why a request returned no completion, by row. Such a row is not scored.
        stopped: Why the remaining rows were not requested, or "".
        notes: Notes for the user.
        score: The score of the rows with a completion, or None if there are none.
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
        """The total usage of all completions."""
        return total(self.usages)


@dataclass(frozen=True)
class LanguageModelPredictor:
    """Predicts rows one after the other with a backend, for at most `max_cost` US dollars."""

    backend: Backend
    prompts: "PromptWriter"
    metric: Metric
    max_cost: float | None = None

    def predict(
        self, rows: Dataset, on_progress: Callable[[int], None] = lambda count: None
    ) -> Asked:
        """Request a prediction for each row.

        The requests stop early if the first one fails, if two in a row fail, or if the next one
        might exceed the cost limit. After Ctrl-C the completions so far are returned.

        Args:
            rows: The rows to predict.
            on_progress: Callback after each row, with the number of finished rows.
        """
        asked, predicted = Asked(), PredictedRows(rows)
        try:
            for number in range(len(rows)):
                self._predict_row(rows, number, asked, predicted)
                on_progress(number + 1)
                if asked.stopped:
                    break
        except KeyboardInterrupt:
            asked.stopped = INTERRUPTED
        if asked.answers:
            asked.score = predicted.score(self.metric, np.array(sorted(asked.answers)))
        return asked

    def _predict_row(
        self, rows: Dataset, number: int, asked: Asked, predicted: "PredictedRows"
    ) -> None:
        write = partial(self.prompts.messages, rows.row(number), number)
        request = Request(write(), number, Move(GENERATE), self.prompts, number, shorter=write)
        try:
            if self.max_cost is not None:
                worst, spent = self.backend.worst_cost(request), asked.spent.cost
                if worst is None or spent is None:
                    raise CwmError("--max-cost needs a model with a known price: leave it out")
                if spent + worst > self.max_cost:
                    asked.stopped = f"the next completion might exceed --max-cost {self.max_cost:g}"
                    return
                request = request._replace(allowance=self.max_cost - spent)
            priced = request
            completion = run_in_thread(lambda: self.backend.complete(priced))
        except CwmError as error:
            asked.refused[number] = str(error)
            if number == 0 or number - 1 in asked.refused:
                asked.stopped = str(error)
            return
        asked.usages.append(completion.usage)
        asked.notes += [completion.note] if completion.note else []
        asked.answers[number] = completion.text
        if reason := predicted.read(number, completion.text):
            asked.unread[number] = completion.lacking or reason


@dataclass(frozen=True)
class PromptWriter:
    """Writes prompts from the environment's description, examples, and the row to predict.

    Attributes:
        description: The description of the environment.
        train: The rows; each prompt has a sample of them as examples.
        examples: Number of examples per prompt.
        seed: Seed of the samples.
    """

    description: str
    train: Dataset
    examples: int = 3
    seed: int = 0

    def messages(
        self, row: Transition, number: int, room: int | None = None
    ) -> tuple[Message, ...]:
        """Return the prompt for a row.

        Args:
            row: The row to predict; only its observation and action are used.
            number: Number of the prompt, which determines the sampled examples.
            room: Maximum length of the prompt in characters, or None for no limit.
        """
        inputs = ("observation", "action")
        has_valid = self.train.has_valid_actions
        valid = "\n- `valid_actions`: a list of the actions that are allowed after the step."
        outputs = ["next_observation", "reward", "terminated", *["valid_actions"] * has_valid]
        keys = (*inputs, *outputs)
        examples = [_format_row(self.train.row(n), keys) for n in self._sample_examples(number)]
        user, system = template("prediction/ask"), template("prediction/system").substitute()
        fields = {
            "description": self.description.strip(),
            "observation": describe(self.train.observation_space),
            "action": describe(self.train.action_space),
            "valid": valid if has_valid else "",
            "examples": "\n\n".join(examples) or "There are none.",
            "row": _format_row(row, inputs),
            "keys": ", ".join(f"`{key}`" for key in outputs),
        }
        if room is not None:
            fields = shorten_fields(user, fields, room - len(system))
        content = user.substitute(fields).strip()
        return Message(role="system", content=system.strip()), Message(role="user", content=content)

    def _sample_examples(self, number: int) -> list[int]:
        """Sample rows, one of each kind (reward and terminated) before a second of any kind."""
        rewards, ends = (self.train.columns[name].tolist() for name in ("rewards", "terminations"))
        order = np.random.default_rng([self.seed, number]).permutation(len(rewards)).tolist()
        seen: Counter[tuple[float, bool]] = Counter()
        ranks = []  # of each row among the rows of its kind
        for row in order:
            kind = rewards[row], ends[row]
            ranks.append(seen[kind])
            seen[kind] += 1
        return [order[place] for place in np.argsort(ranks, kind="stable")[: self.examples]]


def _format_row(row: Transition, keys: Sequence[str]) -> str:
    values = row._asdict() | {"valid_actions": row.valid}
    return "\n".join(f"{key}: {json.dumps(_to_json(values[key]))}" for key in keys)


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_json(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_to_json(part) for part in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        # Through text, so that the float32 0.1 becomes 0.1 and not 0.10000000149011612.
        return value.astype(np.str_).astype(np.float64).tolist()
    return value.tolist() if isinstance(value, np.ndarray) else value


class PredictedRows:
    """The predictions for the rows of a dataset; a row without one is wrong in every part."""

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

    def read(self, row: int, text: str) -> str:
        """Read the prediction for a row from a completion, and return the error or ""."""
        try:
            answer = read_answer(text, with_valid=self._write_valid is not None)
            self._write(row, answer.observation)
            self._slots["rewards"][row] = reward_of(answer.reward)
            self._slots["terminations"][row] = terminated_of(answer.terminated)
            if self._write_valid:
                self._write_valid(row, answer.valid_actions)
        except (Complaint, NoPredictionError) as error:
            return str(error)
        self._is_read[row] = True
        return ""

    def score(self, metric: Metric, counted: np.ndarray) -> Score:
        """Return the score of the rows with the indices `counted`."""
        columns = merge_answers(self._rows, [(np.arange(len(self._rows)), self._slots)])
        rows = self._rows[counted]
        predictions = {name: column[counted] for name, column in columns.items()}
        return metric.score(Predictions(predictions, answered=self._is_read[counted]), rows)


class NoPredictionError(ValueError):
    """A completion without a complete prediction; the message names the missing parts."""


class PredictedTransition(NamedTuple):
    """The parts of a prediction as parsed, with unchecked types."""

    observation: Any
    reward: Any
    terminated: Any
    valid_actions: Any = None


def read_answer(text: str, *, with_valid: bool = False) -> PredictedTransition:
    """Return the last prediction in a completion.

    The prediction is a JSON object or a Python dict, possibly nested in another one. Strings are
    accepted as numbers and truth values.

    Args:
        text: The completion; only its last 50,000 characters are read.
        with_valid: Whether the prediction must contain the valid actions.

    Raises:
        NoPredictionError: No object contains all parts of a prediction.
    """
    if not text.strip():
        raise NoPredictionError("the answer is empty")
    required = [name for name in NAMES if with_valid or name != "valid_actions"]
    missing = required
    for found in _objects(text[-50_000:]):
        keys = {str(key).strip().lower().replace(" ", "_"): value for key, value in found.items()}
        parts = {}
        for name in required:
            if (key := next((other for other in NAMES[name] if other in keys), None)) is not None:
                parts[name] = keys[key]
        missing = min(missing, [name for name in required if name not in parts], key=len)
        if not missing:
            if isinstance(parts["reward"], str):
                with suppress(ValueError):
                    parts["reward"] = float(parts["reward"])
            if isinstance(word := parts["terminated"], str):
                parts["terminated"] = _TRUTH.get(word.strip().lower(), word)
            return PredictedTransition(**parts)
    if missing == required:
        raise NoPredictionError("the answer contains no JSON object with a prediction")
    raise NoPredictionError(f"the answer lacks {' and '.join(missing)}")


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a text, from the last opening brace to the first."""
    # The last object counts: models write examples and corrections first.
    starts = [match.start() for match in re.finditer("{", text)]
    # `strict=False` allows line breaks in strings, which language models write.
    decoder = json.JSONDecoder(strict=False)
    for start in starts[: -MAX_BRACES - 1 : -1]:
        for parse in (lambda part: decoder.raw_decode(part)[0], _parse_python):
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                value = parse(text[start:])
                if isinstance(value, dict):
                    yield value
                break


def _parse_python(text: str) -> Any:
    """Parse the Python literal at the start of a text.

    NumPy calls such as `np.array(...)` and the JSON words `true`, `false` and `null` are allowed.
    """
    for brace in islice(re.finditer("}", text), MAX_BRACES):
        literal = _WRAPPER.sub("(", _DTYPE.sub("", text[: brace.end()]))
        with suppress(SyntaxError):
            return ast.literal_eval(_WORD.sub(lambda word: _WORDS[word.group()], literal))
    raise ValueError("no Python literal")
