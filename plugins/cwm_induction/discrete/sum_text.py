"""The text of sums of factors."""

import numpy as np


def weighted(weights: np.ndarray, own: int, names: list[str]) -> str:
    """Write the sum that each action starts from."""
    sums = [_sum(row, names) for row in weights.tolist()]
    if len(set(sums)) == 1:
        return sums[0]
    entries = [f"{action}: {text}" for action, text in enumerate(sums) if text != names[own]]
    return f"{{{', '.join(entries)}}}.get(action, {names[own]})"


def _sum(row: list[int], names: list[str]) -> str:
    """Write one sum."""
    text = ""
    for weight, name in sorted(zip(row, names, strict=True), key=lambda pair: -pair[0]):
        if weight:
            part = name if abs(weight) == 1 else f"{abs(weight)} * {name}"
            sign = "-" if weight < 0 else "+"
            text = f"{text} {sign} {part}" if text else part
    return text or "0"
