"""Whether an answer is the expected one."""

import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import zip_longest
from math import isfinite, isnan
from typing import Any

TOLERANCE = 1e-6
"""How far a number may be from an expected one with a fraction, absolutely or relatively."""

_CHUNK = re.compile(r"[\s\S]{1,65536}\S*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def matches(printed: str, expected: str) -> bool:
    """Return whether a text has the tokens of the expected one, in this order.

    Spaces and line ends only separate tokens. Two tokens are equal as texts; if one of
    them has a fraction or an exponent also as numbers, within the tolerance if the expected
    one has.
    """
    pairs = zip_longest(_tokens(printed), _tokens(expected))
    return all(one == other or _is_near(one, other) for one, other in pairs)


def equals(returned: Any, expected: Any) -> bool:
    """Return whether a JSON value equals the expected one, or the only element of that.

    The latter because the data often has the answer in a list of its own. Numbers with a
    fraction are expected within the tolerance.
    """
    try:
        return _equals(returned, expected) or (
            isinstance(expected, list) and len(expected) == 1 and _equals(returned, expected[0])
        )
    except RecursionError:
        return False


def _tokens(text: str) -> Iterator[str]:
    """Yield what stands between spaces, without a list of all of them."""
    for chunk in _CHUNK.finditer(text):
        yield from chunk[0].split()


def _is_near(token: str | None, expected: str | None) -> bool:
    """Return whether two tokens are numbers, one of them with a fraction, and equal."""
    if token is None or expected is None:
        return False
    if not _NUMBER.fullmatch(token) or not _NUMBER.fullmatch(expected):
        return False
    if _WHOLE.fullmatch(expected):
        return not _WHOLE.fullmatch(token) and Decimal(token) == Decimal(expected)
    return _is_close(float(token), float(expected))


def _is_close(number: float, expected: float) -> bool:
    """Compare within the tolerance; what is not finite is close to nothing."""
    room = TOLERANCE * max(1.0, abs(expected))
    return isfinite(number) and isfinite(expected) and abs(number - expected) <= room


def _equals(returned: Any, expected: Any) -> bool:
    """Compare two JSON values, deeply."""
    if isinstance(expected, list):
        return (
            isinstance(returned, list)
            and len(returned) == len(expected)
            and all(map(_equals, returned, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(returned, dict)
            and returned.keys() == expected.keys()
            and all(_equals(returned[key], value) for key, value in expected.items())
        )
    if isinstance(expected, float) and isinstance(returned, int | float):
        return _is_near_float(returned, expected)
    return bool(returned == expected)


def _is_near_float(number: float, expected: float) -> bool:
    """Compare a number with a float; NaN and the infinite equal themselves."""
    if number == expected or (isnan(expected) and number != number):
        return True
    try:
        return _is_close(float(number), expected)
    except OverflowError:
        return False
