"""Text: cleaned of control characters, read as values, numbers and tables written for people."""

import json
import math
import re
import unicodedata
from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

UNKNOWN = "\N{EN DASH}"
"""What stands in a table for what is not known."""


TOKENS = re.compile(r"\d{1,3}|[^\W\d_]+|\n\s*| (?=\d)|(?:[^\w\s]|_){1,3}")
"""What common tokenizers take for one token: three digits, a word or half of a long one, a few
marks, a line's end; the space before a number."""

NOISE = 1e-12
"""What is nearer to nothing is left of a difference of equal numbers."""


class Grid(NamedTuple):
    """A table with a title and column heads; its first columns, `words` of them, hold text."""

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
    """Read a value that was typed: JSON, else a Python literal of what JSON can hold.

    So `false`, `False`, `null`, `None`, `[1, 2]`, `(1, 2)` and `'8x8'` are all read; a tuple
    becomes a list, as it is when it was written down. `ValueError` for anything else.
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
    """Return a value as JSON holds it; what it cannot hold, such as infinity, is refused."""
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


def wanted_instead(error: Mapping[str, Any], kind: str = "") -> str:
    """Say what a value has to be, from what pydantic says it is not; `kind` names its type."""
    ctx, bad = error.get("ctx", {}), str(error["type"])
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for name in bounds.keys() & ctx.keys():
        return f"it must be {bounds[name]} {ctx[name]:g}"
    if bad == "value_error":
        return str(ctx["error"])
    usual = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    kinds = (kind or bad.partition("_")[0]).split(" | ")
    return f"it takes {' or '.join(usual.get(each, each) for each in kinds)}"


def share(value: float | None, digits: int = 3) -> str:
    """Write a share of one, such as a score; only 1 is written as 1.000, and only 0 as 0.000."""
    if value is None:
        return UNKNOWN
    rounded = round(value, digits) + 0.0  # no minus before a zero
    is_noise = abs(value) <= NOISE or 1.0 < value <= 1.0 + NOISE
    if not is_noise and rounded != value and rounded in (-1.0, 0.0, 1.0):
        rounded += math.copysign(10.0**-digits, value - rounded)
    return f"{rounded:.{digits}f}"


def share_with_error(value: float | None, error: float | None) -> str:
    """Write a share with its standard error, if that is known, such as "0.522 ± 0.208"."""
    return share(value) + ("" if error is None else f" \N{PLUS-MINUS SIGN} {share(error)}")


def mean_with_error(mean: float, error: float | None) -> str:
    """Write a mean with its standard error, if that is known, such as "8.45 ± 1.35"."""
    return f"{mean:.5g}" + ("" if error is None else f" \N{PLUS-MINUS SIGN} {error:.3g}")


def percent(value: float) -> str:
    """Write a share as a percentage; only all is 100 %, and only nothing 0 %."""
    return f"{100 * value:.0f} %" if value in (0, 1) else f"{100 * float(share(value)):.1f} %"


def tokens(count: int | None) -> str:
    """Write a number of tokens."""
    return "unknown" if count is None else f"{count:,}"


def cached_words(cached: int, reasoning: int = 0) -> str:
    """Say how many of the tokens before it a provider had read, and how many were thoughts."""
    parts = [(cached, "cached"), (reasoning, "thinking")]
    words = [f"{count:,} of them {what}" for count, what in parts if count]
    return f" ({', '.join(words)})" if words else ""


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a language model reads in a text, mostly a few too many.

    The plain way is a tokenizer, of which each model has another, and none comes with the core.
    """
    pieces = TOKENS.findall(text)
    return sum(1 + (len(piece) - 1) // 7 if piece[0].isalpha() else 1 for piece in pieces)


def money(cost: float | None) -> str:
    """Write a cost in US dollars."""
    return "unknown" if cost is None else f"${cost:.4f}"
