"""One token per cell of a grid, or per number: the very rows that programs see, as tokens.

A token stands for what was met at a place: the objects in a cell, a cell of a board, a whole
number, a text. Cells of one table or board share their tokens, numbers of a vector do not.
What was not met while it was fitted is the token 0. Real numbers are the nearest of some codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.errors import CwmError
from cwm_neural.tokens import NEAR, Codes, Tokenizer, around

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.data.spaces import Columns, Space

UNKNOWN = 0
"""The token of what was not met."""

MOST_PLACES = 512
"""Tokens of an observation; the time of attention grows with their square."""

MOST_VALUES = 4096
"""Values of whole numbers that have a token each, met or not."""

MOST_TEXTS = 64
"""Texts that have a token: missions, of which an environment has few."""

DEPTH = 4
"""Objects that a cell may hold: the agent, what it stands on, and what is hidden in that."""


class GridTokenizer(Tokenizer):
    """Tokens of observations without pictures; `contents` of a kind of place have one each.

    `codes` is how many values of a real number are told apart.
    """

    def __init__(
        self, space: Space, schema: ObjectSchema | None, *, contents: int = 256, codes: int = 64
    ) -> None:
        self._leaves: list[_Leaf] = []
        kinds = 0
        for leaf in space.leaves("observations"):
            objects = schema if leaf.name.endswith(f".{OBJECTS}") else None
            made = _leaf(leaf.name, leaf.space, objects, codes)
            made.kinds = made.kinds + kinds
            kinds = int(made.kinds.max()) + 1
            self._leaves.append(made)
        self.count = sum(len(leaf.kinds) for leaf in self._leaves)
        if self.count > MOST_PLACES:
            words = f"an observation would be {self.count:,} tokens (more than {MOST_PLACES})"
            raise CwmError(f"{words}: choose --model ensemble, or pictures and --tokenizer vq")
        self.vocabulary = 1 + sum(leaf.most or contents for leaf in self._leaves)
        self._met: dict[tuple[int, Any], int] = {}

    @property
    def possible(self) -> torch.Tensor:
        """Mask of the tokens that a place can have: what was met at places of its kind."""
        kinds = np.full(self.vocabulary, -1)
        for (kind, _), token in self._met.items():
            kinds[token] = kind
        places = np.concatenate([leaf.kinds for leaf in self._leaves])
        mask = places[:, None] == kinds
        mask[:, UNKNOWN] = ~mask.any(axis=1)
        return torch.from_numpy(mask)

    @property
    def near(self) -> torch.Tensor:
        """Places near each one: cells around a cell."""
        parts, start = [], 0
        for leaf in self._leaves:
            count = len(leaf.kinds)
            height, width = leaf.grid
            part = torch.arange(count)[:, None].repeat(1, NEAR)
            part[:, 1:] = -1
            part[: height * width] = around(height, width)
            parts.append(torch.where(part >= 0, part + start, -1))
            start += count
        return torch.cat(parts)

    def fit(self, rows: Dataset, updates: int) -> Mapping[str, float]:
        """Come to know what is in rows, as long as there are tokens left."""
        for leaf in self._leaves:
            columns = [rows.columns[leaf.name], rows.columns[f"next_{leaf.name}"]]
            column = np.concatenate(columns)
            leaf.fit(column)
            for kind, _, contents in leaf.met(column):
                for content in contents:
                    if (kind, content) not in self._met and len(self._met) + 1 < self.vocabulary:
                        self._met[kind, content] = len(self._met) + 1
        return {}

    def encode(self, observations: Columns) -> torch.Tensor:
        """Return the tokens (n, count)."""
        parts = []
        for leaf in self._leaves:
            column = observations[leaf.name]
            tokens = np.zeros((len(column), len(leaf.kinds)), np.int64)
            for kind, inverse, contents in leaf.met(column):
                known = np.array([self._met.get((kind, each), UNKNOWN) for each in contents])
                tokens[:, leaf.kinds == kind] = known[inverse]
            parts.append(tokens)
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def decode(self, tokens: torch.Tensor, before: Columns | None) -> Columns:
        """Return the observations; what is unknown is as it was before, and objects keep rows."""
        listed = list(self._met)
        found, start = {}, 0
        for leaf in self._leaves:
            part = tokens[:, start : start + len(leaf.kinds)].cpu().numpy()
            start += len(leaf.kinds)
            meant: dict[int, Any] = {
                token: listed[token - 1][1] for token in np.unique(part).tolist() if token
            }
            old = None if before is None else before[leaf.name]
            found[leaf.name] = leaf.write(part, meant, old)
        return found

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Return the share of unknown tokens, and of rows that are read back exactly."""
        before = rows.select("observations")
        after = {name: rows.columns[f"next_{name}"] for name in before}
        tokens = self.encode(after)
        back = self.decode(tokens, before)
        same = [
            (back[name] == column).reshape(len(rows), -1).all(1) for name, column in after.items()
        ]
        return {
            "unknown": float((tokens == UNKNOWN).float().mean()),
            "round_trip": float(np.logical_and.reduce(same).mean()),
        }

    def state(self) -> dict[str, Any]:
        """Return what was met."""
        met = [[kind, content] for kind, content in self._met]
        return {"met": met, "leaves": [leaf.state() for leaf in self._leaves]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Know what was met then."""
        self._met = {
            (kind, tuple(content) if isinstance(content, list | tuple) else content): token
            for token, (kind, content) in enumerate(state["met"], 1)
        }
        for leaf, known in zip(self._leaves, state["leaves"], strict=True):
            leaf.restore(known)


class _Leaf:
    """How a column is cut into places; here whole numbers, each by itself, or a board of them.

    Places of one of the `kinds` (count,) share their tokens. There are at most `most` contents; 0
    where nobody knows.
    """

    kinds: np.ndarray
    most: int = 0
    grid: tuple[int, int] = (0, 0)  # height and width of the cells that come first

    def __init__(self, name: str, space: Space) -> None:
        self.name, self.space = name, space
        if len(space.shape) < 2:
            self.kinds = np.arange(prod(space.shape))
            values = [high - low + 1 for low, high in zip(space.low, space.high, strict=True)]
            self.most = int(sum(values)) if sum(values) <= MOST_VALUES else 0
        else:  # what is at a cell of a board is all that lies along the third axis
            self.kinds = np.zeros(prod(space.shape[:2]), np.int64)
            self.grid = space.shape[0], space.shape[1]

    def fit(self, column: np.ndarray) -> None:
        """Know what is needed to read values."""

    def read(self, column: np.ndarray) -> np.ndarray:
        """Return the contents (n, count, width), whole numbers."""
        contents: np.ndarray = column.reshape(len(column), len(self.kinds), -1).astype(np.int64)
        return contents

    def met(self, column: np.ndarray) -> Any:
        """Yield each kind, the places (n, its places) of contents in a list, and that list."""
        contents = self.read(column)
        for kind in np.unique(self.kinds):
            chosen = contents[:, self.kinds == kind]
            flat = chosen.reshape(-1, chosen.shape[2])
            _, first, inverse = np.unique(_numbered(flat), return_index=True, return_inverse=True)
            yield (
                int(kind),
                inverse.reshape(chosen.shape[:2]),
                list(map(tuple, flat[first].tolist())),
            )

    def write(
        self, tokens: np.ndarray, meant: Mapping[int, Any], before: np.ndarray | None
    ) -> np.ndarray:
        """Return values, from tokens (n, count) and what these stand for."""
        width = max(prod(self.space.shape) // len(self.kinds), 1)
        contents = np.zeros((*tokens.shape, width), np.int64)
        if before is not None:
            contents[:] = self.read(before)
        _fill(contents, tokens, meant)
        return self.values(contents)

    def values(self, contents: np.ndarray) -> np.ndarray:
        """Return the values that contents (n, count, width) stand for."""
        return contents.reshape(-1, *self.space.shape).astype(self.space.dtype)

    def state(self) -> Any:
        """Return what `fit` found."""
        return None

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned."""


class _Real(_Leaf):
    """Real numbers, each the nearest of its codes."""

    def __init__(self, name: str, space: Space, codes: int) -> None:
        super().__init__(name, space)
        self.kinds = np.arange(prod(space.shape))
        self.most = codes * len(self.kinds)
        self._codes = [Codes(codes) for _ in self.kinds]

    def fit(self, column: np.ndarray) -> None:
        """Draw up codes."""
        for codes, numbers in zip(self._codes, column.reshape(len(column), -1).T, strict=True):
            codes.fit(numbers)

    def read(self, column: np.ndarray) -> np.ndarray:
        """Return the places of the nearest codes."""
        numbers = column.reshape(len(column), -1).T
        pairs = zip(self._codes, numbers, strict=True)
        return np.stack([codes.encode(each) for codes, each in pairs], 1)[..., None]

    def values(self, contents: np.ndarray) -> np.ndarray:
        """Return the codes."""
        pairs = zip(self._codes, contents[..., 0].T, strict=True)
        numbers = np.stack([codes.values[places] for codes, places in pairs], 1)
        return numbers.reshape(-1, *self.space.shape).astype(self.space.dtype)

    def state(self) -> Any:
        """Return the codes."""
        return [codes.state() for codes in self._codes]

    def restore(self, state: Any) -> None:
        """Take codes over."""
        for codes, known in zip(self._codes, state, strict=True):
            codes.restore(known)


class _Text(_Leaf):
    """A text as a whole."""

    def __init__(self, name: str, space: Space) -> None:
        self.name, self.space = name, space
        self.kinds = np.zeros(1, np.int64)
        self.most = MOST_TEXTS

    def met(self, column: np.ndarray) -> Any:
        """Yield its one kind."""
        contents, inverse = np.unique(column, return_inverse=True)
        yield int(self.kinds[0]), inverse.reshape(-1, 1), contents.tolist()

    def write(
        self, tokens: np.ndarray, meant: Mapping[int, Any], before: np.ndarray | None
    ) -> np.ndarray:
        """Return the texts."""
        old = [""] * len(tokens) if before is None else before.tolist()
        pairs = zip(tokens[:, 0].tolist(), old, strict=True)
        return np.array([meant.get(token, text) for token, text in pairs], np.str_)


class _Objects(_Leaf):
    """A table of objects, as the cells of a grid, and what is carried, which is a place of its own.

    An object is a number, in which all of its fields are but the place and whether it is carried.
    """

    def __init__(self, name: str, space: Space, schema: ObjectSchema) -> None:
        self.name, self.space = name, space
        self._x, self._y = schema.column("x"), schema.column("y")
        self._held = schema.column("held") if "held" in schema.names else None
        high = np.array(space.high).reshape(space.shape).max(axis=0)
        self._size = int(high[self._x]) + 1, int(high[self._y]) + 1
        self.grid = self._size[1], self._size[0]
        self._told = [
            field for field in range(space.shape[1]) if field not in (self._x, self._y, self._held)
        ]
        self._ranges = tuple(int(each) + 1 for each in high[self._told])
        self.kinds = np.zeros(prod(self._size), np.int64)
        if self._held is not None:
            self.kinds = np.append(self.kinds, 1)
        self._agent = 0  # the class of the first row

    def fit(self, column: np.ndarray) -> None:
        """Know the class of the agent, which is the first object."""
        self._agent = int(column[:, 0, 0].max(initial=self._agent))

    def read(self, column: np.ndarray) -> np.ndarray:
        """Return the objects at each place, smaller numbers first, and 0 behind them."""
        table = column.astype(np.int64)
        row, slot = (table[..., 0] != 0).nonzero()
        things = table[row, slot]
        place = self._places(things)
        number = np.ravel_multi_index(things[:, self._told].T, self._ranges, mode="clip")
        order = np.lexsort((number, place, row))
        row, place, number = row[order], place[order], number[order]
        cell = row * len(self.kinds) + place
        depth: np.ndarray = np.arange(len(cell)) - np.searchsorted(cell, cell)
        contents = np.zeros((len(table), len(self.kinds), DEPTH), np.int64)
        few = depth < DEPTH
        contents[row[few], place[few], depth[few]] = number[few]
        return contents

    def write(
        self, tokens: np.ndarray, meant: Mapping[int, Any], before: np.ndarray | None
    ) -> np.ndarray:
        """Return tables, in which objects are moved, changed, added and gone since before."""
        if before is None:
            before = np.zeros((len(tokens), *self.space.shape), np.int64)
        old = self.read(before)
        contents = old.copy()
        _fill(contents, tokens, meant)
        tables = before.astype(np.int64)
        differing = (contents != old).any(axis=2)
        for table, changed, after in zip(tables, differing, contents, strict=True):
            if changed.any():
                self._change(table, np.flatnonzero(changed), after)
            if self._held is not None:
                carried = (table[:, self._held] == 1) & (table[:, 0] > 0)
                table[np.ix_(carried, [self._x, self._y])] = table[0, [self._x, self._y]]
        return tables.astype(self.space.dtype)

    def state(self) -> Any:
        """Return the class of the agent."""
        return self._agent

    def restore(self, state: Any) -> None:
        """Take it over."""
        self._agent = state

    def _places(self, things: np.ndarray) -> np.ndarray:
        """Return at which place each of some objects is."""
        cells: np.ndarray = things[:, self._y] * self._size[0] + things[:, self._x]
        if self._held is not None:
            cells = np.where(things[:, self._held] == 1, len(self.kinds) - 1, cells)
        return cells

    def _change(self, table: np.ndarray, changed: np.ndarray, contents: np.ndarray) -> None:
        """Have in some places of a table what is said, and let objects keep their rows.

        An object that comes is the nearest of those that went, if there is one of its class.
        """
        there = np.flatnonzero(table[:, 0])
        there = there[np.isin(self._places(table[there]), changed)]
        gone = {(int(slot)): self._thing(table[slot]) for slot in there}
        come: list[np.ndarray] = []
        for place in changed:
            for number in contents[place][contents[place] > 0]:
                thing = np.zeros(table.shape[1], table.dtype)
                thing[self._told] = np.unravel_index(number, self._ranges)
                if place < prod(self._size):
                    thing[self._y], thing[self._x] = divmod(int(place), self._size[0])
                elif self._held is not None:
                    thing[self._held] = 1
                come.append(thing)
        for exact in (True, False):
            for thing in tuple(come):
                like = [
                    slot
                    for slot, known in gone.items()
                    if known[0] == thing[0] and (not exact or known == self._thing(thing))
                ]
                if like:
                    slot = min(like, key=lambda each: self._apart(table[each], thing))
                    del gone[slot]
                    table[slot] = thing
                    come = [each for each in come if each is not thing]
        table[[slot for slot in gone if slot]] = 0  # the agent is always somewhere
        for thing in come:
            if thing[0] == self._agent:
                if not table[0, 0]:
                    table[0] = thing
                continue
            last = max(int(np.flatnonzero(table[:, 0]).max(initial=0)), 0) + 1
            if last < len(table):
                table[last] = thing

    def _thing(self, row: np.ndarray) -> tuple[int, ...]:
        """Return what an object is, wherever it is."""
        return tuple(row[self._told].tolist())

    def _apart(self, one: np.ndarray, other: np.ndarray) -> int:
        """Return how far two objects are apart; what is carried is near."""
        if self._held is not None and one[self._held] != other[self._held]:
            return 0
        return int(abs(one[self._x] - other[self._x]) + abs(one[self._y] - other[self._y]))


def _leaf(name: str, space: Space, schema: ObjectSchema | None, codes: int) -> _Leaf:
    """Return how a column is cut."""
    if schema is not None:
        return _Objects(name, space, schema)
    if space.kind == "text":
        return _Text(name, space)
    if space.is_float:
        return _Real(name, space, codes)
    return _Leaf(name, space)


def _numbered(contents: np.ndarray) -> np.ndarray:
    """Return something of one axis that is equal where rows of whole numbers are."""
    if contents.shape[1] == 1 or not len(contents):
        return contents[:, 0] if contents.shape[1] else np.zeros(len(contents))
    low = contents.min(axis=0)
    spans = contents.max(axis=0) - low + 1
    if prod(spans.tolist()) < 1 << 62:
        numbers: np.ndarray = np.ravel_multi_index((contents - low).T, tuple(spans.tolist()))
        return numbers
    rows = np.ascontiguousarray(contents)
    return rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]


def _fill(contents: np.ndarray, tokens: np.ndarray, meant: Mapping[int, Any]) -> None:
    """Write what tokens stand for over contents (n, count, width)."""
    width = contents.shape[2]
    table = np.zeros((max(meant, default=0) + 1, width), np.int64)
    for token, content in meant.items():
        if len(content) == width:
            table[token] = content
    known = np.isin(tokens, [token for token, each in meant.items() if len(each) == width])
    contents[known] = table[tokens[known]]
