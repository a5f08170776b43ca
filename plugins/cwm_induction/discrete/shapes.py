"""How a program reads observations and actions and gives observations back."""

from collections.abc import Iterator

from cwm_induction.discrete.factors import Layout
from cwm_induction.discrete.transitions import Frame

MOST_NAMES = 5


def state_lines(frame: Frame, layout: Layout, names: list[str]) -> tuple[list[str], list[str]]:
    """Write the bodies of `__init__` and of `set_state`."""
    initial = [f"self.{name} = 0" for name in names]
    if frame.space.kind == "discrete":
        return initial, _digits(_shifted("observation", frame.lows[0]), layout[0], names)
    values = "np.ravel(observation)" if len(frame.space.shape) > 1 else "observation"
    parts = [f"part_{number}" for number in range(len(layout))]
    lines, start = [], 0
    if all(len(radices) == 1 for radices in layout) and not any(frame.lows):
        if len(names) > MOST_NAMES:
            return initial, list(_by_slices(values, names))
        targets = ", ".join(f"self.{name}" for name in names)
        comma = "," if len(names) == 1 else ""
        return initial, [f"{targets}{comma} = (int(value) for value in {values})"]
    lines = [
        f"{', '.join(parts)}{',' if len(parts) == 1 else ''} = (int(value) for value in {values})"
    ]
    for part, low, radices in zip(parts, frame.lows, layout, strict=True):
        lines += _digits(_shifted(part, low), radices, names[start : start + len(radices)])
        start += len(radices)
    return initial, lines


def _by_slices(values: str, names: list[str]) -> Iterator[str]:
    """Write how many components are read, some on each line."""
    yield f"values = [int(value) for value in {values}]"
    for start in range(0, len(names), MOST_NAMES):
        chunk = names[start : start + MOST_NAMES]
        targets = ", ".join(f"self.{name}" for name in chunk) + ("," if len(chunk) == 1 else "")
        yield f"{targets} = values[{start}:{start + len(chunk)}]"


def observation_expression(frame: Frame, layout: Layout, names: list[str]) -> str:
    """Write the observation of the present state."""
    parts, start = [], 0
    for low, radices in zip(frame.lows, layout, strict=True):
        parts.append(_shifted(_number(radices, names[start : start + len(radices)]), -low))
        start += len(radices)
    if frame.space.kind == "discrete":
        return parts[0]
    if frame.space.kind == "tuple":
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    shape = f".reshape({frame.space.shape})" if len(frame.space.shape) != 1 else ""
    return f"np.array([{', '.join(parts)}]){shape}"


def action_lines(frame: Frame) -> list[str]:
    """Write how an action becomes a number from 0, if it is not one already."""
    if frame.action_space.kind == "discrete":
        low = frame.action_lows[0]
        return [f"action = {_shifted('action', low)}  # numbered from 0"] if low else []
    parts = [_shifted(f"int(value_{number})", low) for number, low in enumerate(frame.action_lows)]
    names = ", ".join(f"value_{number}" for number in range(len(parts)))
    values = "action.ravel()" if len(frame.action_space.shape) > 1 else "action"
    total = _horner(frame.action_sizes, parts)
    return [f"{names}{',' if len(parts) == 1 else ''} = {values}", f"action = {total}"]


def _digits(value: str, radices: tuple[int, ...], names: list[str]) -> list[str]:
    """Write how a number falls into digits."""
    if len(radices) == 1:
        return [f"self.{names[0]} = {value}"]
    lines = []
    for index in range(len(radices) - 1, 1, -1):
        lines.append(f"rest, self.{names[index]} = divmod({value}, {radices[index]})")
        value = "rest"
    return [*lines, f"self.{names[0]}, self.{names[1]} = divmod({value}, {radices[1]})"]


def _number(radices: tuple[int, ...], names: list[str]) -> str:
    """Write digits as one number."""
    return _horner(radices, [f"self.{name}" for name in names])


def _horner(radices: tuple[int, ...], parts: list[str]) -> str:
    """Write a number of mixed radix."""
    total = parts[0]
    for radix, part in zip(radices[1:], parts[1:], strict=True):
        inner = f"({total})" if " + " in total or " - " in total else total
        total = f"{inner} * {radix} + {part}"
    return total


def _shifted(value: str, low: int) -> str:
    """Subtract the lowest value, if that is not 0."""
    if not low:
        return value
    inner = value
    return f"{inner} - {low}" if low > 0 else f"{inner} + {-low}"
