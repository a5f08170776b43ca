"""Clean text, parse typed values, and format numbers and tables."""

import json
import math
import re
import unicodedata
from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

UNKNOWN = "\N{EN DASH}"
"""Table cell for an unknown value."""

TOKENS = re.compile(r"\d{1,3}|[^\W\d_]+|\n\s*| (?=\d)|(?:[^\w\s]|_){1,3}")
"""One or two tokens of common tokenizers: up to three digits, a word, up to three punctuation
marks, a line end with indentation, or the space before a number."""


class Grid(NamedTuple):
    """A table with a title and column heads; the first `words` columns contain text."""

    title: str
    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    words: int = 1

    def markdown(self) -> str:
        """Write the table as Markdown."""
        marks = ["---" if place < self.words else "---:" for place in range(len(self.heads))]
        lines = ([cell.replace("|", "\\|") for cell in line] for line in self.cells)
        return "\n".join(f"| {' | '.join(line)} |" for line in (self.heads, marks, *lines))


def clean(text: str, *, limit: int | None = None, newlines: bool = False) -> str:
    """Replace control and format characters (escapes, bells, direction marks) and cut to `limit`.

    Line ends become spaces unless `newlines` is set.
    """
    kept = "\n\t" if newlines else ""
    if not newlines:
        text = " ".join(text.split())
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in kept or unicodedata.category(c)[0] != "C" else "\ufffd" for c in text)


def read_value(text: str) -> Any:
    """Parse a typed value: JSON, or a Python literal of a value that JSON can represent.

    For example `false`, `False`, `null`, `None`, `[1, 2]`, `(1, 2)` and `'8x8'` are valid. A tuple
    becomes a list, because JSON has no tuples.

    Raises:
        ValueError: The text is neither.
    """
    try:
        return _plain(json.loads(text))
    except (ValueError, RecursionError):
        pass
    try:
        return _plain(literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text} is neither JSON nor a Python literal") from error


def _plain(value: Any) -> Any:
    """Convert tuples to lists; values that JSON cannot represent (infinity) raise `ValueError`."""
    match value:
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
    raise ValueError("not a JSON value")


def describe_requirement(error: Mapping[str, Any], kind: str = "") -> str:
    """Return the requirement that an invalid value violates, such as "it must be at most 1".

    Args:
        error: One of the errors of a pydantic `ValidationError`.
        kind: Type of the value; by default the type in the error.
    """
    ctx, error_type = error.get("ctx", {}), str(error["type"])
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for name in bounds.keys() & ctx.keys():
        return f"it must be {bounds[name]} {ctx[name]:g}"
    if error_type == "value_error":
        return str(ctx["error"])
    words = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    kinds = (kind or error_type.partition("_")[0]).split(" | ")
    return f"it takes {' or '.join(words.get(name, name) for name in kinds)}"


def share(value: float | None, digits: int = 3) -> str:
    """Format a fraction, such as a score; only 1 is written as 1.000, and only 0 as 0.000."""
    if value is None:
        return UNKNOWN
    rounded = round(value, digits) + 0.0  # no minus before a zero
    # Differences of equal numbers leave about 1e-16; they count as exactly 0 or 1.
    is_noise = abs(value) <= 1e-12 or 1.0 < value <= 1.0 + 1e-12
    if not is_noise and rounded != value and rounded in (-1.0, 0.0, 1.0):
        rounded += math.copysign(10.0**-digits, value - rounded)
    return f"{rounded:.{digits}f}"


def share_with_error(value: float | None, error: float | None) -> str:
    """Format a fraction with its standard error, if given, such as "0.522 ± 0.208"."""
    return share(value) + ("" if error is None else f" \N{PLUS-MINUS SIGN} {share(error)}")


def mean_with_error(mean: float, error: float | None) -> str:
    """Format a mean with its standard error, if given, such as "8.45 ± 1.35"."""
    return f"{mean:.5g}" + ("" if error is None else f" \N{PLUS-MINUS SIGN} {error:.3g}")


def first_few(names: Sequence[object], most: int) -> str:
    """Return the first names of a list and the number of the others: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def percent(value: float) -> str:
    """Format a fraction as a percentage; only 1 is written as 100 %, and only 0 as 0 %."""
    return f"{100 * value:.0f} %" if value in (0, 1) else f"{100 * float(share(value)):.1f} %"


def tokens(count: int | None) -> str:
    """Format a number of tokens."""
    return "unknown" if count is None else f"{count:,}"


def cached_words(cached: int, reasoning: int = 0) -> str:
    """Return the numbers of cached and of reasoning tokens, to append to a number of tokens."""
    parts = [(cached, "cached"), (reasoning, "thinking")]
    words = [f"{count:,} of them {what}" for count, what in parts if count]
    return f" ({', '.join(words)})" if words else ""


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a text; in most cases slightly too many.

    An exact count would need the tokenizer of the model, which the core does not include.
    """
    pieces = TOKENS.findall(text)
    return sum(1 + (len(piece) - 1) // 7 if piece[0].isalpha() else 1 for piece in pieces)


def money(cost: float | None) -> str:
    """Format a cost in US dollars."""
    return "unknown" if cost is None else f"${cost:.4f}"
