"""Examples of trainers that are small enough for tests."""

from cwm_cli.testing.conftest import Material
from cwm_neural.dreamer import DreamerTrainer
from cwm_neural.learning import TrainedLearning
from cwm_neural.ncp import NcpMultiTrainer, NcpTrainer
from cwm_neural.transformer import TransformerTrainer


def dreamer(material: Material) -> DreamerTrainer:
    """Return a small Dreamer."""
    return DreamerTrainer(units=8, belief=16, batch=2, length=6, imagined=2, updates=0.5)


def ncp(material: Material) -> NcpTrainer:
    """Return a small neural circuit policy."""
    return NcpTrainer(embedding=4, batch_tokens=64, codes=8)


def ncp_multi(material: Material) -> NcpMultiTrainer:
    """Return a small circuit for several tokens."""
    return NcpMultiTrainer(units=16, width=8, batch_tokens=64, codes=8)


def transformer(material: Material) -> TransformerTrainer:
    """Return a small transformer."""
    return TransformerTrainer(layers=1, width=16, heads=2, batch_tokens=64, codes=8)


def ensemble_learning(material: Material) -> TrainedLearning:
    """Return a learning strategy that needs no other package."""
    return TrainedLearning(model="dummy", warm=4, every=4)
