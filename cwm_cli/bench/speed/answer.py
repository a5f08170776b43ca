"""Read a predicted transition from the answer of a language model, however it is written."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

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


class Unreadable(ValueError):
    """An answer holds no prediction; the text says what is missing."""


class Answer(NamedTuple):
    """The parts of a prediction as they were written; their types are not checked."""

    observation: Any
    reward: Any
    terminated: Any
    valid_actions: Any = None


def read_answer(text: str, *, with_valid: bool = False) -> Answer:
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
            return Answer(**parts)
    if missing == wanted:
        raise Unreadable("the answer holds no JSON object with a prediction")
    raise Unreadable(f"the answer does not say {' and '.join(missing)}")


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a text, those that begin last first."""
    text = text[-LONGEST:]
    for start in _places("{", text)[: -MOST_BRACES - 1 : -1]:
        for read in (_json, _python):
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                value = read(text[start:])
                if isinstance(value, dict):
                    yield value
                break


def _places(character: str, text: str) -> list[int]:
    """Return where a character stands."""
    return [match.start() for match in re.finditer(re.escape(character), text)]


def _json(text: str) -> Any:
    """Read the JSON that a text begins with; line breaks within texts are let pass."""
    return json.JSONDecoder(strict=False).raw_decode(text)[0]


def _python(text: str) -> Any:
    """Read the literal of Python that a text begins with, in the words of JSON and numpy, too."""
    for end in _places("}", text)[:MOST_BRACES]:
        literal = _WRAPPER.sub("(", _DTYPE.sub("", text[: end + 1]))
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
