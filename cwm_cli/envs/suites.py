"""Suites of environments that papers use for comparisons."""

from collections.abc import Mapping

_CWMB = (
    "Blackjack-v1",
    "CliffWalking-v1",
    "Taxi-v4",
    "CartPole-v1",
    "MountainCar-v0",
    "Acrobot-v1",
    "Pendulum-v1",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Swimmer-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "RTFM-v0",
)

SUITES: Mapping[str, tuple[str, ...]] = {"cwmb": _CWMB, "cwmb-shifted": _CWMB[:-1]}
"""Environments of each suite.

`cwmb` is the Code World Models Benchmark (Dainese et al., NeurIPS 2024) in the order of the paper,
with the ids of current Gymnasium versions. `cwmb-shifted` contains its environments that have
shifted variants.
"""

SHIFTED = ("cwmb-shifted",)
"""Suites of shifted environments; the default seed of the shift is 0."""
