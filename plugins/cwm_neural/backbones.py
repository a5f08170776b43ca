"""The central networks of sequence models, which map embeddings to embeddings with a memory.

Each position of a `Backbone` depends on the earlier positions. It is trained on whole sequences.
For predictions it continues a memory: keys and values, or a recurrent state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cwm_cli.errors import CwmError, install_command


class Backbone(nn.Module):
    """Maps embeddings (batch, length, width) to embeddings that depend on earlier positions.

    `length` is the maximum number of positions; None for recurrent networks. `parallel` is True
    if several positions take little more time than one.
    """

    width: int
    length: int | None
    parallel: bool = True

    def begin(self, batch: int, skipped: Tensor | None = None) -> Any:
        """Return the memory of empty sequences.

        `skipped` (batch,) is the number of padding positions at the start of each sequence, which
        is an attribute of the memory.
        """
        raise NotImplementedError

    def forward(self, inputs: Tensor, memory: Any = None) -> tuple[Tensor, Any]:
        """Continue from a memory; without one, sequences begin, and none is returned (training).

        The returned memory includes the inputs. It may share storage with the given one, so
        continuing from the given memory again invalidates the returned one.
        """
        raise NotImplementedError

    def keep(self, memory: Any, places: Tensor) -> Any:
        """Return the memory of the sequences at some indices, in that order."""
        raise NotImplementedError

    def rewind(self, memory: Any, length: int) -> Any:
        """Return the memory after `length` positions; only for parallel backbones."""
        raise NotImplementedError


class Cache:
    """Keys and values of past positions, each (layers, batch, heads, length, size)."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int, skipped: Tensor | None) -> None:
        self.keys, self.values, self.filled, self.skipped = keys, values, filled, skipped

    def mask(self, count: int) -> Tensor | None:
        """Return the mask of visible positions: (batch or 1, 1, count, all so far)."""
        columns = torch.arange(self.filled + count, device=self.keys.device)
        seen = columns <= columns[self.filled :, None]
        if self.skipped is None:
            return None if count == 1 else seen[None, None]
        real = columns >= self.skipped[:, None]
        own = columns == columns[self.filled :, None]  # an empty row of the mask would give NaN
        return (seen & real[:, None] | own)[:, None]


class Transformer(Backbone):
    """A causal transformer with pre-normalisation, as GPT-2 (Radford et al., 2019).

    `dropout` is the rate for attention, for the residual branches, and for the inputs. `smooth` is
    the approximation of GELU; GPT-2 uses `tanh`.
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
        """Continue from a cache, whose storage is written behind its filled part."""
        count = inputs.shape[1]
        mask = None if memory is None else memory.mask(count)
        found = self.drop(inputs)
        for place, layer in enumerate(self.layers):
            found = layer(found, memory, place, mask)
        if memory is not None:
            memory = Cache(memory.keys, memory.values, memory.filled + count, memory.skipped)
        return self.norm(found), memory

    def keep(self, memory: Cache, places: Tensor) -> Cache:
        """Return the cache of the sequences at some indices."""
        keys, values = (kept.index_select(1, places) for kept in (memory.keys, memory.values))
        skipped = None if memory.skipped is None else memory.skipped[places]
        return Cache(keys, values, memory.filled, skipped)

    def rewind(self, memory: Cache, length: int) -> Cache:
        """Return the cache after `length` positions."""
        return Cache(memory.keys, memory.values, length, memory.skipped)


class _Layer(nn.Module):
    """Attention and a network of two layers, each a residual branch that starts with a norm."""

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
    """Train attention and networks of the last `trained` layers only; all norms train."""
    for layer in backbone.layers[: len(backbone.layers) - trained]:
        for part in (layer.asked, layer.joined, layer.wide, layer.narrow):
            part.requires_grad_(False)


def read_gpt2(backbone: Transformer, source: str) -> None:
    """Copy the layers and the last norm of a pretrained GPT-2.

    Args:
        backbone: The network, whose layers are overwritten.
        source: A folder in the format of transformers, or a name on the Hugging Face hub.

    Raises:
        CwmError: There is no such GPT-2, or it has another shape.
    """
    try:
        import transformers
        from safetensors import SafetensorError
    except ImportError as error:
        needed = install_command("cwm-cli[transformers]")
        raise CwmError(f"pretrained layers need transformers: {needed}") from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    local = Path(source).is_dir()
    try:
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=local)
        if config.model_type != "gpt2":
            raise CwmError(
                f"{source} is a {config.model_type}: choose a GPT-2 for model.pretrained"
            )
        shape = config.n_layer, config.n_embd, config.n_head
        if shape != (len(backbone.layers), backbone.width, backbone.heads):
            names = ("layers", "width", "heads")
            options = " ".join(f"-o model.{n}={v}" for n, v in zip(names, shape, strict=True))
            raise CwmError(f"the GPT-2 in {source} has another shape: add {options}")
        known, found = transformers.GPT2Model.from_pretrained(
            source, local_files_only=local, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CwmError(
            f"cannot load a GPT-2 from {source} ({lines[0]}): give a folder of the transformers "
            "library, or a model of its hub"
        ) from error
    if found["missing_keys"]:
        raise CwmError(f"the GPT-2 in {source} lacks weights: choose another model.pretrained")
    with torch.no_grad():
        for layer, block in zip(backbone.layers, known.h, strict=True):
            pairs = {
                layer.asked: block.attn.c_attn,
                layer.joined: block.attn.c_proj,
                layer.wide: block.mlp.c_fc,
                layer.narrow: block.mlp.c_proj,
            }
            for own, other in pairs.items():  # GPT-2 stores weights as (inputs, outputs)
                own.weight.copy_(other.weight.T)
                own.bias.copy_(other.bias)
            layer.before.load_state_dict(block.ln_1.state_dict())
            layer.between.load_state_dict(block.ln_2.state_dict())
        backbone.norm.load_state_dict(known.ln_f.state_dict())


class RecurrentMemory(NamedTuple):
    """A state (batch, units), the number of past positions, and the padding among them."""

    state: Tensor
    seen: int
    skipped: Tensor | None


class Circuit(Backbone):
    """A closed-form continuous-time network, wired as a neural circuit (Hasani et al., 2022).

    It has `units` neurons; `width` neurons are its outputs. It also has `width` inputs.
    """

    parallel = False
    length = None

    def __init__(self, *, width: int, units: int) -> None:
        super().__init__()
        from ncps.torch import CfC
        from ncps.wirings import AutoNCP

        self.width, self.units = width, units
        self.circuit = CfC(width, AutoNCP(units, width))

    def begin(self, batch: int, skipped: Tensor | None = None) -> RecurrentMemory:
        """Return a state of zeros."""
        zeros = next(self.parameters()).new_zeros(batch, self.units)
        return RecurrentMemory(zeros, 0, skipped)

    def forward(
        self, inputs: Tensor, memory: RecurrentMemory | None = None
    ) -> tuple[Tensor, RecurrentMemory | None]:
        """Continue from a state, which padding does not change."""
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
        """Return the states of the sequences at some indices."""
        skipped = None if memory.skipped is None else memory.skipped[places]
        return RecurrentMemory(memory.state[places], memory.seen, skipped)
