"""Recurrent circuits instead of a transformer."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ncps")

from cwm_neural.ncp import NcpMultiTrainer, NcpTrainer  # noqa: E402
from cwm_neural.training.trainer import TrainingTask  # noqa: E402
from walks import BOARD, WAYS, walks  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("trainer", [NcpTrainer, NcpMultiTrainer])
def test_circuits_predict_better_than_no_change(trainer):
    sizes = {"embedding": 8} if trainer is NcpTrainer else {"units": 48, "width": 32}
    training = trainer(**sizes, batch_tokens=900, updates=1.0, rate=1e-2).begin(
        TrainingTask(BOARD, WAYS)
    )
    training.fit(walks(), 60)
    measured = training.measure(walks(10, seed=1))
    assert measured["exact"] > measured["copy_exact"] + 0.4


def test_published_circuit_has_the_published_size():
    from cwm_neural.backbones import Circuit

    multi = NcpMultiTrainer(preset="iris")
    circuit = Circuit(width=multi.width, units=multi.units)
    assert 0.8e6 < sum(each.numel() for each in circuit.parameters()) < 1.4e6
