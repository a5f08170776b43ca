"""The networks in the middle of sequence models: embeddings in, embeddings out, and a memory.

A `Backbone` sees each place of a sequence and those before it. It is trained on whole sequences,
and asked one after the other with a memory: keys and values, or a recurrent state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cwm_cli.errors import CwmError


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

    def padding(self, memory: Any) -> Tensor | None:
        """Return what `skipped` was when the memory began."""
        raise NotImplementedError

    def rewound(self, memory: Any, length: int) -> Any:
        """Return the memory as it was after so many positions; asked of parallel ones."""
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
    `smooth` names how GELU is computed: GPT-2 has it by a tanh.
    """

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        length: int,
        dropout: float = 0.0,
        smooth: str = "none",
    ) -> None:
        super().__init__()
        self.width, self.length, self.heads = width, length, heads
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(width, heads, dropout, smooth) for _ in range(layers))
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

    def padding(self, memory: Cache) -> Tensor | None:
        """Return how many positions are padding."""
        return memory.skipped

    def rewound(self, memory: Cache, length: int) -> Cache:
        """Forget what is behind."""
        return Cache(memory.keys, memory.values, length, memory.skipped)


class _Layer(nn.Module):
    """Attention and a network of two layers, each behind a norm and beside the residual stream."""

    def __init__(self, width: int, heads: int, dropout: float, smooth: str) -> None:
        super().__init__()
        self.heads, self.dropout, self.smooth = heads, dropout, smooth
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
        wide = self.wide(self.between(inputs))
        narrow = self.narrow(functional.gelu(wide, approximate=self.smooth))
        return inputs + self.drop(narrow)


GPT2 = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20)}
"""Layers, width and heads of published sizes."""


def freeze(backbone: Transformer, trained: int) -> None:
    """Keep attention and networks as they are, but in so many of the last layers; norms learn."""
    for layer in backbone.layers[: len(backbone.layers) - trained]:
        for part in (layer.asked, layer.joined, layer.wide, layer.narrow):
            part.requires_grad_(False)


def read_gpt2(backbone: Transformer, folder: str) -> None:
    """Take layers and the last norm over from a GPT-2 in a folder; nothing is downloaded."""
    try:
        from transformers import GPT2Model
    except ImportError as error:
        raise CwmError("pretrained layers need transformers: pip install transformers") from error
    try:
        known = GPT2Model.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CwmError(
            f"there is no GPT-2 in {folder}: choose a folder that contains one"
        ) from error
    if (len(known.h), known.embed_dim) != (len(backbone.layers), backbone.width):
        words = f"{len(known.h)} layers of width {known.embed_dim}"
        raise CwmError(f"the GPT-2 in {folder} has {words}: choose model.shape to fit")
    with torch.no_grad():
        for layer, block in zip(backbone.layers, known.h, strict=True):
            pairs = {
                layer.asked: block.attn.c_attn,
                layer.joined: block.attn.c_proj,
                layer.wide: block.mlp.c_fc,
                layer.narrow: block.mlp.c_proj,
            }
            for own, other in pairs.items():  # kept there as inputs by outputs
                own.weight.copy_(other.weight.T)
                own.bias.copy_(other.bias)
            layer.before.load_state_dict(block.ln_1.state_dict())
            layer.between.load_state_dict(block.ln_2.state_dict())
        backbone.norm.load_state_dict(known.ln_f.state_dict())


class RecurrentMemory(NamedTuple):
    """A state (batch, units), how many positions it has seen, and how many of them are padding."""

    state: Tensor
    seen: int
    skipped: Tensor | None


class Circuit(Backbone):
    """A closed-form continuous-time network, wired as a neural circuit (Hasani et al., 2022).

    `units` neurons, of which `width` are its outputs; `inputs` numbers come in, as many as go out
    where nothing is said.
    """

    parallel = False
    length = None

    def __init__(self, *, width: int, units: int, inputs: int = 0) -> None:
        super().__init__()
        from ncps.torch import CfC
        from ncps.wirings import AutoNCP

        self.width, self.units = width, units
        self.circuit = CfC(inputs or width, AutoNCP(units, width))

    def begin(self, batch: int, skipped: Tensor | None = None) -> RecurrentMemory:
        """Return a state of zeros."""
        zeros = next(self.parameters()).new_zeros(batch, self.units)
        return RecurrentMemory(zeros, 0, skipped)

    def forward(
        self, inputs: Tensor, memory: RecurrentMemory | None = None
    ) -> tuple[Tensor, RecurrentMemory | None]:
        """Go on from a state; what is padding does not change it."""
        if memory is None:
            return self.circuit(inputs)[0], None
        state, seen, skipped = memory
        if skipped is None or seen >= int(skipped.max()):
            found, state = self.circuit(inputs, state)
            return found, RecurrentMemory(state, seen + inputs.shape[1], skipped)
        parts = []
        for column, each in enumerate(inputs.split(1, dim=1), seen):
            found, after = self.circuit(each, state)
            state = torch.where((skipped <= column)[:, None], after, state)
            parts.append(found)
        return torch.cat(parts, 1), RecurrentMemory(state, seen + inputs.shape[1], skipped)

    def keep(self, memory: RecurrentMemory, places: Tensor) -> RecurrentMemory:
        """Return the states of some of the sequences only."""
        skipped = None if memory.skipped is None else memory.skipped[places]
        return RecurrentMemory(memory.state[places], memory.seen, skipped)

    def padding(self, memory: RecurrentMemory) -> Tensor | None:
        """Return how many positions are padding."""
        return memory.skipped
