"""Tokenizer for observations without images: one token per grid cell, number or text.

The content of a place is the objects in a cell, a cell of a board, a whole number, or a text.
Each known content has a token. Cells of one table or board share their tokens, numbers of a vector
do not. Token 0 is any content that occurred in no fitted row. Real numbers are rounded to the
nearest code.
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
"""The token of all unknown contents."""

DEPTH = 4
"""Objects per cell: e.g. the agent, the object under it, and the object inside that one."""


class GridTokenizer(Tokenizer):
    """Encodes observations without images.

    Args:
        space: The space of observations.
        schema: The schema of object tables, if there are any.
        contents: Tokens for each column whose number of contents is unknown.
        codes: Codes for each real number.

    Raises:
        CwmError: If an observation would have too many tokens.
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
        max_tokens = 512  # maximum number of tokens per observation; attention takes quadratic time
        if self.count > max_tokens:
            words = f"an observation would be {self.count:,} tokens (more than {max_tokens})"
            raise CwmError(f"{words}: choose --model ensemble, or pictures and --tokenizer vq")
        self.vocabulary = 1 + sum(leaf.most or contents for leaf in self._leaves)
        self._known: dict[tuple[int, Any], int] = {}

    @property
    def possible(self) -> torch.Tensor:
        """Mask of the tokens that each place can have: known contents of places of its kind."""
        kinds = np.full(self.vocabulary, -1)
        for (kind, _), token in self._known.items():
            kinds[token] = kind
        places = np.concatenate([leaf.kinds for leaf in self._leaves])
        mask = places[:, None] == kinds
        mask[:, UNKNOWN] = ~mask.any(axis=1)
        return torch.from_numpy(mask)

    @property
    def near(self) -> torch.Tensor:
        """Neighbours of each place: the cells around a cell."""
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
        """Add new contents of rows to the vocabulary while there are free tokens."""
        for leaf in self._leaves:
            columns = [rows.columns[leaf.name], rows.columns[f"next_{leaf.name}"]]
            column = np.concatenate(columns)
            leaf.fit(column)
            for kind, _, contents in leaf.contents_of(column):
                for content in contents:
                    if (kind, content) not in self._known and len(
                        self._known
                    ) + 1 < self.vocabulary:
                        self._known[kind, content] = len(self._known) + 1
        return {}

    def encode(self, observations: Columns) -> torch.Tensor:
        """Return the tokens (n, count)."""
        parts = []
        for leaf in self._leaves:
            column = observations[leaf.name]
            tokens = np.zeros((len(column), len(leaf.kinds)), np.int64)
            for kind, inverse, contents in leaf.contents_of(column):
                known = np.array([self._known.get((kind, each), UNKNOWN) for each in contents])
                tokens[:, leaf.kinds == kind] = known[inverse]
            parts.append(tokens)
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def decode(self, tokens: torch.Tensor, before: Columns | None) -> Columns:
        """Return the observations of tokens.

        Unknown contents are copied from `before`, and objects keep their rows of the table.
        """
        listed = list(self._known)
        found, start = {}, 0
        for leaf in self._leaves:
            part = tokens[:, start : start + len(leaf.kinds)].cpu().numpy()
            start += len(leaf.kinds)
            meanings: dict[int, Any] = {
                token: listed[token - 1][1] for token in np.unique(part).tolist() if token
            }
            old = None if before is None else before[leaf.name]
            found[leaf.name] = leaf.write(part, meanings, old)
        return found

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Return the fraction of unknown tokens, and of rows that are decoded exactly."""
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
        """Return the known contents."""
        known = [[kind, content] for kind, content in self._known]
        return {"met": known, "leaves": [leaf.state() for leaf in self._leaves]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the known contents."""
        self._known = {
            (kind, tuple(content) if isinstance(content, list | tuple) else content): token
            for token, (kind, content) in enumerate(state["met"], 1)
        }
        for leaf, known in zip(self._leaves, state["leaves"], strict=True):
            leaf.restore(known)


class _Leaf:
    """Splits a column into places: each whole number of a vector, or each cell of a board.

    Places with the same number in `kinds` (count,) share their tokens. `most` is the maximum
    number of contents, 0 if it is unknown.
    """

    kinds: np.ndarray
    most: int = 0
    grid: tuple[int, int] = (0, 0)  # height and width of the cells, which are the first places

    def __init__(self, name: str, space: Space) -> None:
        self.name, self.space = name, space
        if len(space.shape) < 2:
            self.kinds = np.arange(prod(space.shape))
            values = [high - low + 1 for low, high in zip(space.low, space.high, strict=True)]
            # a vector of whole numbers with at most this many values in total has a token for each
            # value
            max_values = 4096
            self.most = int(sum(values)) if sum(values) <= max_values else 0
        else:  # the content of a board's cell is the vector along the third axis
            self.kinds = np.zeros(prod(space.shape[:2]), np.int64)
            self.grid = space.shape[0], space.shape[1]

    def fit(self, column: np.ndarray) -> None:
        """Update the data that `read` needs."""

    def read(self, column: np.ndarray) -> np.ndarray:
        """Return the contents (n, count, width) as whole numbers."""
        contents: np.ndarray = column.reshape(len(column), len(self.kinds), -1).astype(np.int64)
        return contents

    def contents_of(self, column: np.ndarray) -> Any:
        """Yield each kind, indices (n, places of the kind), and the contents that they index."""
        contents = self.read(column)
        for kind in np.unique(self.kinds):
            chosen = contents[:, self.kinds == kind]
            flat = chosen.reshape(-1, chosen.shape[2])
            _, first, inverse = np.unique(_row_keys(flat), return_index=True, return_inverse=True)
            yield (
                int(kind),
                inverse.reshape(chosen.shape[:2]),
                list(map(tuple, flat[first].tolist())),
            )

    def write(
        self, tokens: np.ndarray, meanings: Mapping[int, Any], before: np.ndarray | None
    ) -> np.ndarray:
        """Return the column of tokens (n, count), with `meanings` as the contents of tokens."""
        width = max(prod(self.space.shape) // len(self.kinds), 1)
        contents = np.zeros((*tokens.shape, width), np.int64)
        if before is not None:
            contents[:] = self.read(before)
        _fill(contents, tokens, meanings)
        return self.values(contents)

    def values(self, contents: np.ndarray) -> np.ndarray:
        """Return the column of contents (n, count, width)."""
        return contents.reshape(-1, *self.space.shape).astype(self.space.dtype)

    def state(self) -> Any:
        """Return the results of `fit`."""
        return None

    def restore(self, state: Any) -> None:
        """Restore the result of `state`."""


class _Real(_Leaf):
    """Real numbers, rounded to the nearest code."""

    def __init__(self, name: str, space: Space, codes: int) -> None:
        super().__init__(name, space)
        self.kinds = np.arange(prod(space.shape))
        self.most = codes * len(self.kinds)
        self._codes = [Codes(codes) for _ in self.kinds]

    def fit(self, column: np.ndarray) -> None:
        """Update the codes."""
        for codes, numbers in zip(self._codes, column.reshape(len(column), -1).T, strict=True):
            codes.fit(numbers)

    def read(self, column: np.ndarray) -> np.ndarray:
        """Return the indices of the nearest codes."""
        numbers = column.reshape(len(column), -1).T
        pairs = zip(self._codes, numbers, strict=True)
        return np.stack([codes.encode(each) for codes, each in pairs], 1)[..., None]

    def values(self, contents: np.ndarray) -> np.ndarray:
        """Return the numbers of codes."""
        pairs = zip(self._codes, contents[..., 0].T, strict=True)
        numbers = np.stack([codes.values[places] for codes, places in pairs], 1)
        return numbers.reshape(-1, *self.space.shape).astype(self.space.dtype)

    def state(self) -> Any:
        """Return the codes."""
        return [codes.state() for codes in self._codes]

    def restore(self, state: Any) -> None:
        """Restore the codes."""
        for codes, known in zip(self._codes, state, strict=True):
            codes.restore(known)


class _Text(_Leaf):
    """A text, which is one place."""

    def __init__(self, name: str, space: Space) -> None:
        self.name, self.space = name, space
        self.kinds = np.zeros(1, np.int64)
        max_texts = 64  # tokens for texts, such as missions; an environment has few texts
        self.most = max_texts

    def contents_of(self, column: np.ndarray) -> Any:
        """Yield the only kind, its indices and its texts."""
        contents, inverse = np.unique(column, return_inverse=True)
        yield int(self.kinds[0]), inverse.reshape(-1, 1), contents.tolist()

    def write(
        self, tokens: np.ndarray, meanings: Mapping[int, Any], before: np.ndarray | None
    ) -> np.ndarray:
        """Return the texts."""
        old = [""] * len(tokens) if before is None else before.tolist()
        pairs = zip(tokens[:, 0].tolist(), old, strict=True)
        return np.array([meanings.get(token, text) for token, text in pairs], np.str_)


class _Objects(_Leaf):
    """A table of objects as grid cells, and one more place for carried objects.

    An object is encoded as one number, from all fields except its cell and `held`.
    """

    def __init__(self, name: str, space: Space, schema: ObjectSchema) -> None:
        self.name, self.space = name, space
        self._x, self._y = schema.column("x"), schema.column("y")
        self._held = schema.column("held") if "held" in schema.names else None
        high = np.array(space.high).reshape(space.shape).max(axis=0)
        self._size = int(high[self._x]) + 1, int(high[self._y]) + 1
        self.grid = self._size[1], self._size[0]
        self._fields = [
            field for field in range(space.shape[1]) if field not in (self._x, self._y, self._held)
        ]
        self._ranges = tuple(int(each) + 1 for each in high[self._fields])
        self.kinds = np.zeros(prod(self._size), np.int64)
        if self._held is not None:
            self.kinds = np.append(self.kinds, 1)
        self._agent = 0  # the class of the first row

    def fit(self, column: np.ndarray) -> None:
        """Remember the class of the agent, which is the first object."""
        self._agent = int(column[:, 0, 0].max(initial=self._agent))

    def read(self, column: np.ndarray) -> np.ndarray:
        """Return the object numbers of each place in ascending order, padded with 0."""
        table = column.astype(np.int64)
        row, slot = (table[..., 0] != 0).nonzero()
        things = table[row, slot]
        place = self._places(things)
        number = np.ravel_multi_index(things[:, self._fields].T, self._ranges, mode="clip")
        order = np.lexsort((number, place, row))
        row, place, number = row[order], place[order], number[order]
        cell = row * len(self.kinds) + place
        depth: np.ndarray = np.arange(len(cell)) - np.searchsorted(cell, cell)
        contents = np.zeros((len(table), len(self.kinds), DEPTH), np.int64)
        few = depth < DEPTH
        contents[row[few], place[few], depth[few]] = number[few]
        return contents

    def write(
        self, tokens: np.ndarray, meanings: Mapping[int, Any], before: np.ndarray | None
    ) -> np.ndarray:
        """Return tables with objects moved, changed, added and removed relative to `before`."""
        if before is None:
            before = np.zeros((len(tokens), *self.space.shape), np.int64)
        old = self.read(before)
        contents = old.copy()
        _fill(contents, tokens, meanings)
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
        """Restore the class of the agent."""
        self._agent = state

    def _places(self, things: np.ndarray) -> np.ndarray:
        """Return the place of each object."""
        cells: np.ndarray = things[:, self._y] * self._size[0] + things[:, self._x]
        if self._held is not None:
            cells = np.where(things[:, self._held] == 1, len(self.kinds) - 1, cells)
        return cells

    def _change(self, table: np.ndarray, changed: np.ndarray, contents: np.ndarray) -> None:
        """Set the contents of the changed places of a table, in place.

        A new object takes the table row of the nearest removed object of its class, if any; equal
        objects come first.
        """
        there = np.flatnonzero(table[:, 0])
        there = there[np.isin(self._places(table[there]), changed)]
        gone = {(int(slot)): self._identity(table[slot]) for slot in there}
        come: list[np.ndarray] = []
        for place in changed:
            for number in contents[place][contents[place] > 0]:
                thing = np.zeros(table.shape[1], table.dtype)
                thing[self._fields] = np.unravel_index(number, self._ranges)
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
                    if known[0] == thing[0] and (not exact or known == self._identity(thing))
                ]
                if like:
                    slot = min(like, key=lambda each: self._distance(table[each], thing))
                    del gone[slot]
                    table[slot] = thing
                    come = [each for each in come if each is not thing]
        table[[slot for slot in gone if slot]] = 0  # the agent, in row 0, always exists
        for thing in come:
            if thing[0] == self._agent:
                if not table[0, 0]:
                    table[0] = thing
                continue
            last = max(int(np.flatnonzero(table[:, 0]).max(initial=0)), 0) + 1
            if last < len(table):
                table[last] = thing

    def _identity(self, row: np.ndarray) -> tuple[int, ...]:
        """Return the fields of an object without its place."""
        return tuple(row[self._fields].tolist())

    def _distance(self, one: np.ndarray, other: np.ndarray) -> int:
        """Return the distance of two objects; 0 if exactly one object is carried."""
        if self._held is not None and one[self._held] != other[self._held]:
            return 0
        return int(abs(one[self._x] - other[self._x]) + abs(one[self._y] - other[self._y]))


def _leaf(name: str, space: Space, schema: ObjectSchema | None, codes: int) -> _Leaf:
    """Return the leaf for a column."""
    if schema is not None:
        return _Objects(name, space, schema)
    if space.kind == "text":
        return _Text(name, space)
    if space.is_float:
        return _Real(name, space, codes)
    return _Leaf(name, space)


def _row_keys(contents: np.ndarray) -> np.ndarray:
    """Return one sortable value per row of whole numbers, equal for equal rows."""
    if contents.shape[1] == 1 or not len(contents):
        return contents[:, 0] if contents.shape[1] else np.zeros(len(contents))
    low = contents.min(axis=0)
    spans = contents.max(axis=0) - low + 1
    if prod(spans.tolist()) < 1 << 62:
        numbers: np.ndarray = np.ravel_multi_index((contents - low).T, tuple(spans.tolist()))
        return numbers
    rows = np.ascontiguousarray(contents)
    return rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]


def _fill(contents: np.ndarray, tokens: np.ndarray, meanings: Mapping[int, Any]) -> None:
    """Write the contents of tokens into `contents` (n, count, width); unknown ones stay."""
    width = contents.shape[2]
    table = np.zeros((max(meanings, default=0) + 1, width), np.int64)
    for token, content in meanings.items():
        if len(content) == width:
            table[token] = content
    known = np.isin(tokens, [token for token, each in meanings.items() if len(each) == width])
    contents[known] = table[tokens[known]]
