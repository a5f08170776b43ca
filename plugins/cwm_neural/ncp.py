"""Neural circuit policies (Lechner et al., 2020): recurrent networks instead of a transformer.

`ncp-multi` reads and predicts one token at a time, as a transformer does. `ncp` reads a frame and
its action in one step, and predicts all tokens of the next frame in one step, independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cwm_cli.presets import FROM_PRESET
from cwm_neural.token_options import LEARNING
from cwm_neural.transformer import TokenTrainer
from cwm_neural.vq_options import VQ_PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from cwm_neural.sequence import FrameSequence, TokenSizes

SINGLE: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"embedding": 8},
    "small": {"embedding": 32},
    "iris": {"embedding": 128},
}
"""Size of a token's embedding; published: 128, times 17 tokens of a frame and its action is
2,176."""

MULTI: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"units": 128, "width": 64},
    "small": {"units": 256, "width": 128},
    "iris": {"units": 512, "width": 256},
}
"""Number of neurons, and of output neurons, of the circuit."""


def _presets(own: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the presets of the training, of the image tokenizer, and of a network."""
    return {name: {**LEARNING[name], **VQ_PRESETS[name], **own[name]} for name in own}


@dataclass
class NcpTrainer(TokenTrainer):
    """A recurrent circuit that predicts all tokens of the next frame in one step."""

    requires: ClassVar[tuple[str, ...]] = ("torch", "ncps")
    name: ClassVar[str] = "ncp"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = _presets(SINGLE)

    embedding: int = FROM_PRESET
    """Size of a token's embedding; the embeddings of a frame and its action are concatenated."""
    circuits: int = 2
    """Number of circuits in sequence."""

    def make_network(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Return an untrained network."""
        from cwm_neural.sequence import CircuitSequence

        return CircuitSequence(
            sizes,
            self.embedding,
            circuits=self.circuits,
            dropout=self.dropout,
            near=near if self.aligned else None,
        )


@dataclass
class NcpMultiTrainer(TokenTrainer):
    """A recurrent circuit that predicts one token after the other."""

    requires: ClassVar[tuple[str, ...]] = ("torch", "ncps")
    name: ClassVar[str] = "ncp-multi"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = _presets(MULTI)

    units: int = FROM_PRESET
    """Number of neurons in the circuit."""
    width: int = FROM_PRESET
    """Number of output neurons, which is also the size of a token's embedding."""

    def make_network(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Return an untrained network."""
        from cwm_neural.backbones import Circuit
        from cwm_neural.sequence import TokenSequence

        backbone = Circuit(width=self.width, units=self.units)
        return TokenSequence(sizes, backbone, near if self.aligned else None)
