"""Trainers of world models that read observations as tokens.

`transformer` predicts one token after the other (Micheli et al., 2023). It can have the shape of a
GPT-2, with frozen layers. `ncp` and `ncp-multi` use recurrent circuits instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cwm_cli.presets import FROM_PRESET
from cwm_neural.states import EXTRA
from cwm_neural.token_options import LEARNING, TokenOptions
from cwm_neural.training.trainer import Trainer, Training, TrainingTask
from cwm_neural.vq_options import VQ_PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from cwm_neural.sequence import FrameSequence, TokenSizes


@dataclass
class TokenTrainer(TokenOptions, Trainer):
    """Base class of trainers of world models of tokens."""

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str] = EXTRA
    agent: ClassVar[str] = "actor-critic"
    initial: ClassVar[tuple[str, ...]] = ("vq_lpips", "pretrained")

    def begin(self, task: TrainingTask) -> Training:
        """Return an untrained tokenizer and network."""
        self.check()
        from cwm_neural.token_training import TokenTraining

        return TokenTraining(self, task, self.make_network)

    def make_network(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Return an untrained network; `near` has the neighbours of each place of a frame."""
        raise NotImplementedError


@dataclass
class TransformerTrainer(TokenTrainer):
    """A transformer that predicts the tokens of observations, rewards and ends."""

    name: ClassVar[str] = "transformer"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {**LEARNING["tiny"], **VQ_PRESETS["tiny"], "layers": 3, "width": 128, "heads": 4},
        "small": {
            **LEARNING["small"],
            **VQ_PRESETS["small"],
            "layers": 6,
            "width": 256,
            "heads": 8,
        },
        "iris": {**LEARNING["iris"], **VQ_PRESETS["iris"], "layers": 10, "width": 256, "heads": 4},
    }

    layers: int = FROM_PRESET
    """Number of attention layers."""
    width: int = FROM_PRESET
    """Size of a token's embedding."""
    heads: int = FROM_PRESET
    """Number of attention heads."""
    shape: Literal["own", "gpt2", "gpt2-medium", "gpt2-large"] = "own"
    """Use the layers, width and heads of a GPT-2 instead of the options above."""
    pretrained: str = ""
    """Folder of a GPT-2 of that shape with the initial layers; needs transformers."""
    unfrozen: int = -1
    """Number of last layers to train; -1: all. Norms, embeddings and heads always train."""

    def make_network(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Return an untrained network."""
        from cwm_neural.backbones import GPT2, Transformer, freeze, read_gpt2
        from cwm_neural.sequence import TokenSequence

        layers, width, heads = GPT2.get(self.shape, (self.layers, self.width, self.heads))
        backbone = Transformer(
            layers=layers,
            width=width,
            heads=heads,
            length=sizes.context * (sizes.count + 1),
            dropout=self.dropout,
            smooth="none" if self.shape == "own" else "tanh",
        )
        network = TokenSequence(sizes, backbone, near if self.aligned else None)
        if self.pretrained:
            read_gpt2(backbone, self.pretrained)
        if self.unfrozen >= 0:
            freeze(backbone, self.unfrozen)
        return network
