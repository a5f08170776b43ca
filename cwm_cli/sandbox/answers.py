"""Between columns and the values that programs see: inputs row by row, answers checked."""

from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, Self

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.job import NEVER, ReportedKind

Write = Callable[[int, Any], None]
"""Puts the answer for a row into its slot."""

NO_MASK = 2
"""Stands in every place of a mask for actions that the environment does not have."""

_LARGEST = 2**63 - 1


class Complaint(Exception):
    """What is wrong with a program, in words that need no exception type beside them.

    `kind` names the failure where it has a name of its own, `line` is that of the program where
    one is to blame.
    """

    def __init__(self, words: str, kind: ReportedKind | None = None, *, about: Any = None) -> None:
        super().__init__(words)
        self.kind, self.line = kind, 0
        if about is not None:
            self.blame(about)

    def blame(self, method: Any) -> Self:
        """Say that a method of the program is to blame, if it has a place in the text."""
        code = getattr(getattr(method, "__func__", method), "__code__", None)
        self.line = self.line or getattr(code, "co_firstlineno", 0)
        return self


def values(space: Space, columns: Iterator[np.ndarray]) -> Iterator[Any]:
    """Return the values whose leaves lie in the next of the columns, each a copy of its own."""
    if space.kind in ("tuple", "dict"):
        rows = zip(*[values(child, columns) for child in space.children], strict=True)
        if space.kind == "tuple":
            return rows
        return (dict(zip(space.keys, row, strict=True)) for row in rows)
    column = next(columns)
    if space.kind in ("discrete", "text"):
        return iter(column.tolist())
    return (row.copy() for row in column)


def writer(space: Space, slots: Iterator[np.ndarray], label: str = "the observation") -> Write:
    """Return what checks an answer and writes its leaves into the next of the slots."""
    if space.kind == "tuple":
        labels = [f"{label}[{index}]" for index in range(len(space.children))]
    elif space.kind == "dict":
        labels = [f"{label}[{key!r}]" for key in space.keys]
    else:
        return _leaf_writer(space, next(slots), label)
    parts = [writer(child, slots, part) for child, part in zip(space.children, labels, strict=True)]
    if space.kind == "tuple":
        return _tuple_writer(parts, label)
    return _dict_writer(dict(zip(space.keys, parts, strict=True)), label)


def reward_of(value: Any, label: str = "the reward") -> float:
    """Accept any number, also in an array of one element."""
    array = _numbers(value, label)
    if array.size != 1:
        raise Complaint(f"{label} should be a number, got an array of shape {array.shape}")
    return float(array.reshape(())[()])


def terminated_of(value: Any) -> bool:
    """Accept a bool of Python or numpy, 0 and 1."""
    if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
        return bool(value)
    raise Complaint(f"terminated should be True or False, got {brief(value)}")


def recorder(space: Space, slots: Columns, action_space: Space | None = None) -> Write:
    """Return what checks all that a step answered and writes it into a place of the slots.

    Where that says which actions are valid, it takes the space of the actions.
    """
    write = writer(space, (slots[leaf.name] for leaf in space.leaves("next_observations")))
    rewards, terminations = slots["rewards"], slots["terminations"]
    write_valid = action_space and mask_writer(action_space, slots["valid_actions"])

    def record(place: int, result: Any) -> None:
        if write_valid:
            *result, valid = parts(result, with_valid=True)
            write_valid(place, valid)
        elif type(result) is not tuple or len(result) != 3:
            result = parts(result)
        observation, reward, terminated = result
        write(place, observation)
        rewards[place] = reward if type(reward) is float else reward_of(reward)
        terminations[place] = terminated if type(terminated) is bool else terminated_of(terminated)

    return record


def parts(result: Any, *, with_valid: bool = False) -> Any:
    """Accept what `step` returned if it has as many parts as it should have."""
    if isinstance(result, tuple | list) and len(result) == 3 + with_valid:
        return result
    wanted = "(observation, reward, terminated" + ", valid actions)" * with_valid
    raise Complaint(f"step should return {wanted.rstrip(')')}), got {brief(result)}")


def actions_of(value: Any) -> list[int]:
    """Accept whole numbers in any collection: a list, tuple, set or array."""
    items = list(value) if isinstance(value, set | frozenset) else value
    array = _numbers(items, "the valid actions")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise Complaint(f"the valid actions should be a list of ints, got {brief(value)}")
    actions: list[int] = array.tolist()
    return actions


def mask_writer(space: Space, slot: np.ndarray) -> Write:
    """Return what writes for each action whether it is valid; others than there are match never."""
    low, high = int(space.low[0]), int(space.high[0])

    def write(row: int, value: Any) -> None:
        actions = actions_of(value)
        known = [action - low for action in actions if low <= action <= high]
        slot[row] = 0
        slot[row, known] = 1
        if len(known) < len(actions):
            slot[row] = NO_MASK

    return write


def _tuple_writer(parts: list[Write], label: str) -> Write:
    """Write each part of a tuple."""

    def write(row: int, value: Any) -> None:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise Complaint(f"{label} should be a tuple of {len(parts)} parts, got {brief(value)}")
        for write_part, part in zip(parts, value, strict=True):
            write_part(row, part)

    return write


def _dict_writer(parts: dict[str, Write], label: str) -> Write:
    """Write each part of a dict."""

    def write(row: int, value: Any) -> None:
        if not isinstance(value, dict) or value.keys() != parts.keys():
            keys = ", ".join(map(repr, parts))
            raise Complaint(f"{label} should be a dict with the keys {keys}, got {brief(value)}")
        for key, write_part in parts.items():
            write_part(row, value[key])

    return write


def _leaf_writer(space: Space, slot: np.ndarray, label: str) -> Write:
    """Choose the writer for a leaf."""
    if space.kind == "text":
        return _text_writer(slot, label)
    if space.kind == "discrete":
        return _integer_writer(slot, label)
    return _float_array_writer(slot, label) if space.is_float else _int_array_writer(slot, label)


def _float_array_writer(slot: np.ndarray, label: str) -> Write:
    """Write arrays of real numbers; the common case is decided in three comparisons."""
    shape, array_type = slot.shape[1:], np.ndarray

    def write(row: int, value: Any) -> None:
        if type(value) is not array_type or value.shape != shape or value.dtype.kind not in "fiub":
            value = _shaped(value, shape, label)
        slot[row] = value

    return write


def _int_array_writer(slot: np.ndarray, label: str) -> Write:
    """Write arrays of integers."""
    shape, array_type = slot.shape[1:], np.ndarray

    def write(row: int, value: Any) -> None:
        if type(value) is not array_type or value.shape != shape or value.dtype.kind not in "ib":
            value = _whole(_shaped(value, shape, label))
        slot[row] = value

    return write


def _integer_writer(slot: np.ndarray, label: str) -> Write:
    """Write single integers."""

    def write(row: int, value: Any) -> None:
        if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
            value = _whole(_shaped(value, (), label))
        slot[row] = value

    return write


def _text_writer(slot: np.ndarray, label: str) -> Write:
    """Write texts."""

    def write(row: int, value: Any) -> None:
        if not isinstance(value, str):
            raise Complaint(f"{label} should be a str, got {brief(value)}")
        slot[row] = value.encode("utf-8", "surrogatepass")

    return write


def _shaped(value: Any, shape: tuple[int, ...], label: str) -> np.ndarray:
    """Turn a value into an array of numbers of the right shape."""
    array = _numbers(value, label)
    if array.shape != shape:
        raise Complaint(f"{label} should have the shape {shape}, got the shape {array.shape}")
    return array


def _numbers(value: Any, label: str) -> np.ndarray:
    """Turn a value into an array of numbers."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(isinstance(number, Real) for number in array.flat):
            array = array.astype(np.float64)  # integers beyond 64 bits
    except (TypeError, ValueError, OverflowError) as error:
        raise Complaint(f"{label} should hold numbers, got {brief(value)} ({error})") from error
    if array.dtype.kind not in "fiub":
        raise Complaint(f"{label} should hold numbers, got {brief(value)}")
    return array


def _whole(array: np.ndarray) -> np.ndarray:
    """Turn numbers into integers; what is none becomes one that matches nothing."""
    if array.dtype.kind in "ib":
        return array
    if array.dtype.kind == "u":
        return np.where(array > _LARGEST, NEVER, array.astype(np.int64))
    fits = (np.floor(array) == array) & (np.abs(array) < 2.0**63)
    return np.where(fits, np.where(fits, array, 0).astype(np.int64), NEVER)


def brief(value: Any) -> str:
    """Name a value by its type and size, or by itself when it is a plain number."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(repr, list(value)[:20]))[:200]}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} parts"
    if value is None or isinstance(value, bool | float) or value in range(-999, 1000):
        return str(value)
    return f"a value of type {type(value).__name__}"
