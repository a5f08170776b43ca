"""Spaces as plain data, and nested values of a space as named numpy columns.

Neither the sandboxed worker nor files on disk may depend on Gymnasium, so a space is a small
dataclass here, which is stored as JSON. A nested value has one column per leaf: an observation of
`Tuple(Discrete, Box)` becomes the columns `observations.0` and `observations.1`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, prod
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np

from cwm_cli.errors import CwmError

Kind = Literal["box", "discrete", "multidiscrete", "multibinary", "text", "tuple", "dict"]
Columns = dict[str, np.ndarray]
"""Arrays with a row per transition, by name."""

LARGEST, MOST_AXES = 1 << 22, 32
"""Maximal number of components of a value (a photograph has fewer, and the bounds fit into
memory), and of its axes (the limit of numpy 1)."""

_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64|96|128)")


class UnfitError(ValueError):
    """A value outside its space; `row` is the first row with such a value, counted from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"{reason} (row {row})")
        self.row, self.reason = row, reason


def raise_for_values(wrong: np.ndarray, column: np.ndarray, reason: str) -> None:
    """Raise an error for the first invalid value of a column.

    Args:
        wrong: Mask of the invalid values, in the shape of the column.
        column: Values, a row for each transition.
        reason: A template with one `{}` for the value.

    Raises:
        UnfitError: The mask has a true element.
    """
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise UnfitError(place[0], reason.format(column[place]))


@dataclass(frozen=True)
class Space:
    """A set of observations or actions.

    `low` and `high` are inclusive bounds, one per component in C order, infinite for unbounded
    components: `Discrete(3)` has low (0,) and high (2,). `children` are the parts of a tuple or,
    in the order of `keys`, of a dict.
    """

    kind: Kind
    dtype: str = "int64"
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    max_length: int = 0
    keys: tuple[str, ...] = ()
    children: tuple["Space", ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether components are real numbers, compared within a tolerance."""
        return self.kind == "box" and np.issubdtype(self.dtype, np.floating)

    @property
    def is_picture(self) -> bool:
        """Whether values are pixels: bytes in 3 dimensions, with height and width of at least 16.

        Smaller arrays are boards.
        """
        has_layers = self.kind == "box" and self.dtype == "uint8" and len(self.shape) == 3
        return has_layers and min(self.shape[:2]) >= 16

    @property
    def size(self) -> int:
        """Number of components, summed over the leaves."""
        if self.kind in ("tuple", "dict"):
            return sum(child.size for child in self.children)
        return prod(self.shape)

    @property
    def count(self) -> int:
        """Number of values of a discrete space."""
        return int(self.high[0]) - int(self.low[0]) + 1

    @property
    def cardinality(self) -> float:
        """Number of values, infinite for real numbers and texts."""
        if self.kind in ("tuple", "dict"):
            return prod(child.cardinality for child in self.children)
        if self.is_float or self.kind == "text":
            return inf
        return prod(high - low + 1 for low, high in zip(self.low, self.high, strict=True))

    def mask(self, values: Iterable[int]) -> np.ndarray:
        """Return the mask over all values of a discrete space that is true for the given ones."""
        mask = np.zeros(self.count, np.bool_)
        mask[np.array(sorted(values), np.int64) - int(self.low[0])] = True
        return mask

    def masked(self, mask: np.ndarray) -> tuple[int, ...]:
        """Return the values of a discrete space at the true elements of a mask."""
        return tuple((np.flatnonzero(mask) + int(self.low[0])).tolist())

    def leaves(self, name: str) -> Iterator["Leaf"]:
        """Yield the columns of values of this space, with names that begin with `name`."""
        if self.kind not in ("tuple", "dict"):
            yield Leaf(name, self)
        for part, child in self.parts():
            yield from child.leaves(f"{name}.{part}")

    def pack(self, name: str, values: Sequence[Any]) -> Columns:
        """Return values as columns of `len(values)` rows; `ValueError` if they do not fit."""
        if self.kind not in ("tuple", "dict"):
            return {name: self._column(name, values)}
        columns: Columns = {}
        for index, (part, child) in enumerate(self.parts()):
            key: Any = index if self.kind == "tuple" else self.keys[index]
            columns |= child.pack(f"{name}.{part}", [value[key] for value in values])
        return columns

    def unpack(self, name: str, columns: Mapping[str, np.ndarray], row: int) -> Any:
        """Return the value that `pack` stored in a row; arrays are copies."""
        if self.kind in ("tuple", "dict"):
            values = [child.unpack(f"{name}.{part}", columns, row) for part, child in self.parts()]
            return (
                tuple(values) if self.kind == "tuple" else dict(zip(self.keys, values, strict=True))
            )
        value = columns[name][row]
        if self.kind == "discrete":
            return int(value)
        return str(value) if self.kind == "text" else np.array(value)

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """Shape of a value in an array of values: of a tuple or a dict, all its components."""
        return (self.size,) if self.kind in ("tuple", "dict") else self.shape

    def flatten(self, name: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return numeric columns as one array (rows, *flat_shape)."""
        if self.kind not in ("tuple", "dict"):
            return columns[name]
        leaves = [columns[leaf.name] for leaf in self.leaves(name)]
        return np.hstack([leaf.reshape(len(leaf), -1).astype(np.float64) for leaf in leaves])

    def unflatten(self, array: np.ndarray) -> list[Any]:
        """Return the values in an array (rows, *flat_shape), with int64 and float64 parts."""
        if self.kind == "discrete":
            return list(map(int, array))
        if self.kind not in ("tuple", "dict"):
            return list(array.copy())
        columns, rest = Columns(), array
        for leaf, part in self.leaves(""):
            own, rest = rest[:, : part.size], rest[:, part.size :]
            columns[leaf] = own.reshape(-1, *part.shape).astype(
                np.float64 if part.is_float else np.int64
            )
        return [self.unpack("", columns, row) for row in range(len(array))]

    def components(self, value: Any) -> list[Any]:
        """Return the components of a value as Python numbers, in the order of the leaves."""
        if self.kind not in ("tuple", "dict"):
            return list(np.ravel(value).tolist())
        parts = value if self.kind == "tuple" else [value[name] for name in self.keys]
        pairs = zip(self.children, parts, strict=True)
        return [number for child, part in pairs for number in child.components(part)]

    def cast(self, value: Any) -> Any:
        """Return a value whose arrays have the declared types, as environments expect it."""
        if self.kind == "tuple":
            return tuple(c.cast(part) for c, part in zip(self.children, value, strict=True))
        if self.kind == "dict":
            pairs = zip(self.keys, self.children, strict=True)
            return {name: child.cast(value[name]) for name, child in pairs}
        return value if self.kind in ("discrete", "text") else np.asarray(value, dtype=self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; infinite bounds become null, equal bounds one number."""
        data: dict[str, Any] = {"kind": self.kind}
        if self.children:
            data["children"] = [child.to_json() for child in self.children]
            return data | ({"keys": list(self.keys)} if self.kind == "dict" else {})
        if self.kind == "text":
            return data | {"max_length": self.max_length}
        bounds = {"low": _shorten(self.low), "high": _shorten(self.high)}
        return data | {"dtype": self.dtype, "shape": list(self.shape)} | bounds

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the space that `to_json` wrote; `ValueError` for other data."""
        data = data if isinstance(data, Mapping) else {}
        kind, dtype = data.get("kind"), data.get("dtype", "int64")
        if kind not in get_args(Kind) or not _DTYPE.fullmatch(str(dtype)):
            raise ValueError("its space has an unknown kind")
        shape, keys, parts = (_tuple(data.get(name, ())) for name in ("shape", "keys", "children"))
        length = data.get("max_length", 0)
        if not all(type(n) is int and n >= 0 for n in (length, *shape)) or len(shape) > MOST_AXES:
            raise ValueError("its space has no valid shape")
        if (size := prod(shape)) > LARGEST:
            raise ValueError(
                f"a value of its space has {size:,} components; the limit is {LARGEST:,}"
            )
        if kind == "dict" and not (
            all(isinstance(k, str) for k in keys) and len(keys) == len(parts)
        ):
            raise ValueError("its space has no valid keys")
        low = _lengthen(data.get("low", ()), size, -np.inf)
        high = _lengthen(data.get("high", ()), size, np.inf)
        if kind == "discrete" and not (len(low) == len(high) == size == 1 and low <= high):
            raise ValueError("its space has no valid bounds")
        return cls(
            kind=kind,
            dtype=str(dtype),
            shape=shape,
            low=low,
            high=high,
            max_length=length,
            keys=keys,
            children=tuple(cls.from_json(child) for child in parts),
        )

    def check(self, column: np.ndarray) -> None:
        """Check the values of a column of this leaf; numbers of a box may exceed its bounds.

        Raises:
            UnfitError: A value is not finite, is fractional or out of bounds.
            ValueError: The column has another type.
        """
        kinds = {"text": "U", "box": "biuf"}.get(self.kind, "biu")
        if column.dtype.kind not in kinds:
            raise ValueError(f"a column of kind {self.kind} has the wrong type")
        if column.dtype.kind == "f":
            raise_for_values(~np.isfinite(column), column, "{} is not a finite number")
            if not self.is_float:
                raise_for_values(column != np.rint(column), column, "{} is not a whole number")
        if self.kind not in ("box", "text") and self.low and self.high:
            low, high = (np.reshape(bound, self.shape) for bound in (self.low, self.high))
            words = (
                f"is not from {int(low)} to {int(high)}" if not self.shape else "is out of bounds"
            )
            raise_for_values((column < low) | (column > high), column, "{} " + words)

    def parts(self) -> list[tuple[str, "Space"]]:
        """Return the children of a tuple or a dict, each with the last part of its column name."""
        names = (str(index) for index in range(len(self.children)))
        if self.kind == "dict":  # a dot in a key must not look like a nested column
            names = (key.replace("%", "%25").replace(".", "%2E") for key in self.keys)
        return list(zip(names, self.children, strict=True))

    def _column(self, name: str, values: Sequence[Any]) -> np.ndarray:
        """Stack the values of a leaf; a wider type than the declared one is kept."""
        try:
            column = self._stack(values)
        except (TypeError, ValueError, OverflowError):
            column = None
        if column is None:
            wrong = next((s for s in map(_shape, values) if s not in (None, self.shape)), None)
            if self.kind != "text" and wrong is not None:
                raise ValueError(
                    f"the shape {wrong} of {name} does not match their space {self.shape}"
                )
            kind = f"{self.kind} of shape {self.shape}, {self.dtype}" if self.shape else self.kind
            raise ValueError(f"{name} do not fit their space ({kind})")
        return column

    def _stack(self, values: Sequence[Any]) -> np.ndarray | None:
        """Stack values; None if the column would change them."""
        if self.kind == "text":  # numpy strips NUL at the end of a text
            column = np.array([str(value) for value in values], dtype=np.str_)
            return None if any(str(value).endswith("\0") for value in values) else column
        dtype = np.dtype(self.dtype)
        column = np.asarray(values) if len(values) else np.empty((0, *self.shape), dtype)
        column = column.reshape(len(values), *self.shape)
        if column.dtype.kind == dtype.kind:  # perhaps wider, which loses nothing
            return column
        cast = column.astype(dtype)
        return cast if np.array_equal(cast, column) else None


class Leaf(NamedTuple):
    """One column of a nested value: its name and the space of its values."""

    name: str
    space: Space


def json_value(value: Any) -> Any:
    """Return a value of a space as JSON data: arrays and tuples become lists."""
    if isinstance(value, dict):
        return {name: json_value(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [json_value(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def refuse_pictures(space: Space) -> None:
    """Raise `CwmError` if observations contain pixels, which a program cannot predict."""
    for leaf in space.leaves("observations"):
        if leaf.space.is_picture:
            size = "x".join(map(str, leaf.space.shape))
            raise CwmError(
                f"{leaf.name} are pixels ({size}), which a program cannot predict: "
                "choose an environment that shows its state, or use cwm train"
            )


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a value, None for nested lists of different lengths."""
    try:
        shape: tuple[int, ...] = np.shape(value)
    except ValueError:
        return None
    return shape


def _shorten(bounds: tuple[float, ...]) -> Any:
    """Return bounds for JSON, as one number if all are equal."""
    values = [None if isinf(bound) else bound for bound in bounds]
    return values[0] if len(values) > 1 and len(set(values)) == 1 else values


def _lengthen(bounds: Any, size: int, infinite: float) -> tuple[float, ...]:
    """Invert `_shorten`; `infinite` replaces null."""
    values = bounds if isinstance(bounds, list | tuple) else [bounds] * size
    types = {type(value) for value in values}
    if len(values) not in (0, size) or not types <= {int, float, bool, type(None)}:
        raise ValueError("its space has no valid bounds")
    return tuple(infinite if value is None else value for value in values)


def _tuple(values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError("its space is damaged")
    return tuple(values)
