"""The networks in the middle of sequence models: embeddings in, embeddings out, and a memory.

A `Backbone` sees each place of a sequence and those before it. It is trained on whole sequences,
and asked one after the other with a memory: keys and values, or a recurrent state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Backbone(nn.Module):
    """Maps embeddings (batch, length, width) to such that know what came before them.

    `length` is how many positions it can see; None for one that forgets by and by instead.
    `parallel` says that several positions cost little more time than one.
    """

    width: int
    length: int | None
    parallel: bool = True

    def begin(self, batch: int, skipped: Tensor | None = None) -> Any:
        """Return the memory of sequences that have not begun.

        `skipped` (batch,) is how many of the first positions of each are padding.
        """
        raise NotImplementedError

    def forward(self, inputs: Tensor, memory: Any = None) -> tuple[Tensor, Any]:
        """Go on from a memory; without one sequences begin, and none is made (training).

        The memory that is returned has seen the inputs. To go back to the one that was given, and
        on another way, leaves the other way behind.
        """
        raise NotImplementedError

    def keep(self, memory: Any, places: Tensor) -> Any:
        """Return the memory of some of the sequences only, in that order."""
        raise NotImplementedError


class Cache:
    """Keys and values of what transformers have seen: (layers, batch, heads, length, size) each."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int, skipped: Tensor | None) -> None:
        self.keys, self.values, self.filled, self.skipped = keys, values, filled, skipped

    def mask(self, count: int) -> Tensor | None:
        """Return which positions the next ones may see: (batch or 1, 1, count, all so far)."""
        columns = torch.arange(self.filled + count, device=self.keys.device)
        seen = columns <= columns[self.filled :, None]
        if self.skipped is None:
            return None if count == 1 else seen[None, None]
        real = columns >= self.skipped[:, None]
        own = columns == columns[self.filled :, None]  # a row that sees nothing would not be finite
        return (seen & real[:, None] | own)[:, None]


class Transformer(Backbone):
    """A causal transformer that normalises first, as GPT-2 does (Radford et al., 2019).

    `dropout` is that of attention, of what joins the residual stream, and of what comes in.
    """

    def __init__(
        self, *, layers: int, width: int, heads: int, length: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width, self.length, self.heads = width, length, heads
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def begin(self, batch: int, skipped: Tensor | None = None) -> Cache:
        """Return an empty cache."""
        weight = self.norm.weight
        size = (len(self.layers), batch, self.heads, self.length, self.width // self.heads)
        keys, values = (weight.new_empty(size) for _ in range(2))
        return Cache(keys, values, 0, skipped)

    def forward(self, inputs: Tensor, memory: Cache | None = None) -> tuple[Tensor, Cache | None]:
        """Go on from a cache, which is written behind what it is filled with."""
        count = inputs.shape[1]
        mask = None if memory is None else memory.mask(count)
        found = self.drop(inputs)
        for place, layer in enumerate(self.layers):
            found = layer(found, memory, place, mask)
        if memory is not None:
            memory = Cache(memory.keys, memory.values, memory.filled + count, memory.skipped)
        return self.norm(found), memory

    def keep(self, memory: Cache, places: Tensor) -> Cache:
        """Return the cache of some of the sequences only."""
        keys, values = (kept.index_select(1, places) for kept in (memory.keys, memory.values))
        skipped = None if memory.skipped is None else memory.skipped[places]
        return Cache(keys, values, memory.filled, skipped)


class _Layer(nn.Module):
    """Attention and a network of two layers, each behind a norm and beside the residual stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, inputs: Tensor, memory: Cache | None, place: int, mask: Tensor | None
    ) -> Tensor:
        batch, count, width = inputs.shape
        parts = self.asked(self.before(inputs)).view(batch, count, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if memory is not None:
            end = memory.filled + count
            memory.keys[place, :, :, memory.filled : end] = key
            memory.values[place, :, :, memory.filled : end] = value
            key, value = memory.keys[place, :, :, :end], memory.values[place, :, :, :end]
        dropout = self.dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=memory is None
        )
        found = self.joined(found.transpose(1, 2).reshape(batch, count, width))
        inputs = inputs + self.drop(found)
        narrow = self.narrow(functional.gelu(self.wide(self.between(inputs))))
        return inputs + self.drop(narrow)
