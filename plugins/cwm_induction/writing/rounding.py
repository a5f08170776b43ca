"""Write numbers with as few digits as the data allow."""

import math

MOST_DIGITS = 9
"""Maximum number of significant digits of a literal."""


def rounded(value: float, digits: int) -> float:
    """Return the nearest number with this many significant digits."""
    return float(f"{value:.{digits - 1}e}")


def literal(value: float) -> str:
    """Write a number as a Python literal of at most nine significant digits."""
    short = rounded(value, MOST_DIGITS)
    return repr(short if math.isfinite(value) else value)


def simplest_between(low: float, high: float) -> float:
    """Return the number strictly between two others that takes the fewest digits to write."""
    if not low < high:
        raise ValueError(f"no number is strictly between {low} and {high}")
    if low < 0 < high:
        return 0.0
    top = math.floor(math.log10(max(abs(low), abs(high))))
    for exponent in range(top, top - 17, -1):
        for multiple in (5, 2, 1):
            candidate = _first_multiple(low, multiple, exponent)
            if low < candidate < high:
                return candidate
    return (low + high) / 2


def whole_degrees_between(low: float, high: float) -> int | None:
    """Return the roundest whole number of degrees between two angles in radians, if any."""
    first = math.floor(math.degrees(low)) + 1
    last = math.ceil(math.degrees(high)) - 1
    for multiple in (90, 45, 30, 10, 5, 1):
        candidate = math.ceil(first / multiple) * multiple
        if candidate <= last and low < math.radians(candidate) < high:
            return candidate
    return None


def is_whole_degrees(value: float) -> bool:
    """Return whether a bound in radians is 1 to 359 whole degrees, of either sign.

    The relative tolerance is 1e-5, because bounds are stored in single precision.
    """
    degrees = math.degrees(abs(value)) if math.isfinite(value) else 0.0
    return 0.5 < degrees < 360 and abs(degrees - round(degrees)) < 1e-5 * degrees


def _first_multiple(low: float, multiple: int, exponent: int) -> float:
    """Return the least multiple of `multiple * 10**exponent` above `low`.

    The number is parsed from decimal text to avoid binary rounding errors.
    """
    unit = 10.0**exponent
    count = math.floor(low / (unit * multiple)) + 1
    return float(f"{count * multiple}e{exponent}")
