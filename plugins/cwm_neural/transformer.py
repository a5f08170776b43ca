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

    def begin(self, task: TrainingTask) -> Training:
        """Return an untrained tokenizer and network."""
        self.check()
        from cwm_neural.token_training import TokenTraining

        training = TokenTraining(self, task, self.make_network)
        if not task.restores:
            self.initialise(training.model.network)
        return training

    def make_network(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Return an untrained network; `near` has the neighbours of each place of a frame."""
        raise NotImplementedError

    def initialise(self, network: FrameSequence) -> None:
        """Read pretrained weights, if there are any, before the training."""


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
    """GPT-2 with the initial layers: a folder, or a name on the Hugging Face hub. Names such as
    gpt2 also set the shape; other models need the options above. Needs transformers."""
    unfrozen: int = -1
    """Number of last layers to train; -1: all. Norms, embeddings and heads always train."""

    def make_network(self, sizes: TokenSizes, near: Tensor) -> FrameSequence:
        """Return an untrained network."""
        from cwm_neural.backbones import GPT2, Transformer, freeze
        from cwm_neural.sequence import TokenSequence

        shape = self.pretrained if self.shape == "own" else self.shape
        layers, width, heads = GPT2.get(shape, (self.layers, self.width, self.heads))
        backbone = Transformer(
            layers=layers,
            width=width,
            heads=heads,
            length=sizes.context * (sizes.count + 1),
            dropout=self.dropout,
            smooth="tanh" if shape else "none",
        )
        network = TokenSequence(sizes, backbone, near if self.aligned else None)
        if self.unfrozen >= 0:
            freeze(backbone, self.unfrozen)
        return network

    def initialise(self, network: FrameSequence) -> None:
        """Copy the layers of the pretrained GPT-2."""
        from cwm_neural.backbones import read_gpt2
        from cwm_neural.sequence import TokenSequence

        if self.pretrained:
            assert isinstance(network, TokenSequence)
            read_gpt2(network.backbone, self.pretrained)
