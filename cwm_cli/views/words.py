"""Words for the view: foreign text of certain width, times, costs and verdicts."""

from functools import lru_cache
from unicodedata import category, east_asian_width

from rich.cells import cell_len

from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import Verdict
from cwm_cli.text import clean

UNSURE = "\ufffd"


@lru_cache(maxsize=1024)
def printable(text: str, limit: int = 300) -> str:
    """Return text in one line in which every character is as wide as counted.

    Terminals differ about marks that combine, joiners and pictures, so these
    are replaced as control characters are.
    """
    line = clean(text[: 4 * limit], limit=limit)
    return line if line.isascii() else "".join(c if _is_sure(c) else UNSURE for c in line)


def first_line(failure: Failure) -> str:
    """Name a failure: its kind and the first line of its message."""
    lines = (line for line in failure.message[:2000].splitlines() if line.strip())
    kind = failure.kind.replace("_", " ")
    line = printable(next(lines, ""))
    return f"{kind}: {line}" if line else kind


def best_words(verdict: Verdict) -> str:
    """Name the score of the best program, and the one on validation rows where that differs."""
    train, validation = f"{verdict.score:.3f}", f"{verdict.validation:.3f}"
    told = verdict.validation and validation != train
    return f"best {train} (validation {validation})" if told else f"best {train}"


def spent_words(tokens: int, cost: float | None) -> list[str]:
    """Name what was spent, if anything."""
    words = [f"{tokens:,} tokens"] if tokens else []
    if cost is None:
        return [*words, "cost unknown"]
    return [*words, f"${cost:.4f}"] if cost else words


def duration(seconds: float) -> str:
    """Name a duration: 12 s, 1:05 or 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}" if minutes else f"{seconds} s"


def _is_sure(character: str) -> bool:
    """Whether terminals agree on the width of a character, wherever it stands."""
    kind = category(character)
    if kind[0] == "M" or (kind[0] == "S" and character >= "\U0001f000"):
        return False
    return cell_len(character) == (2 if east_asian_width(character) in "WF" else 1)
