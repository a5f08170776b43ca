"""Neural circuit policies (Lechner et al., 2020) in place of a transformer: recurrent, and wired.

`ncp-multi` reads one token after the other and is asked for one, as a transformer is. `ncp` reads
a frame and its action at once, and says all tokens of the next frame at once, each by itself.
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
"""Numbers that stand for a token; published: 128, of which 17 make 2,176."""

MULTI: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"units": 128, "width": 64},
    "small": {"units": 256, "width": 128},
    "iris": {"units": 512, "width": 256},
}
"""Neurons of the circuit, and those of them that are outputs."""


def _presets(own: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the profiles of what is learned, of pictures, and of a network."""
    return {name: {**LEARNING[name], **VQ_PRESETS[name], **own[name]} for name in own}


@dataclass
class NcpTrainer(TokenTrainer):
    """A recurrent circuit that says all tokens of the next frame at once."""

    requires: ClassVar[tuple[str, ...]] = ("torch", "ncps")
    name: ClassVar[str] = "ncp"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = _presets(SINGLE)

    embedding: int = FROM_PRESET
    """Size of a token's embedding; the embeddings of a frame and its action are concatenated."""
    circuits: int = 2
    """Number of circuits in sequence."""

    def made(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Make the network."""
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
    """A recurrent circuit that says one token after the other."""

    requires: ClassVar[tuple[str, ...]] = ("torch", "ncps")
    name: ClassVar[str] = "ncp-multi"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = _presets(MULTI)

    units: int = FROM_PRESET
    """Number of neurons in the circuit."""
    width: int = FROM_PRESET
    """Number of output neurons, which is also the size of a token's embedding."""

    def made(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Make the network."""
        from cwm_neural.backbones import Circuit
        from cwm_neural.sequence import TokenSequence

        backbone = Circuit(width=self.width, units=self.units)
        return TokenSequence(sizes, backbone, near if self.aligned else None)
