"""Best known returns of the environments of the benchmark, with their sources.

They show whether an oracle is weak: R is 1 for a model that equals a weak oracle. A best known
return is the optimum, a limit that trained agents reach, or the highest published mean return of
a trained agent that we found. It is not always an upper bound.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cwm_benchmark.configuration import BenchmarkConfig


class BestKnown(NamedTuple):
    """The best known mean return of whole episodes.

    Attributes:
        value: Mean undiscounted return.
        steps: Episodes with a lower step limit do not compare.
        source: How the value is known.
    """

    value: float
    steps: int
    source: str


_EXACT = "optimum, by exact solution of the Markov decision process"
_LIMIT = "limit: reward 1 in each of {} steps; trained agents reach it ({})"
_ZOO = "{}, RL Baselines3 Zoo, benchmark.md, https://github.com/DLR-RM/rl-baselines3-zoo"
_ZOO_V3 = _ZOO + " ({}-v3)"
_TIANSHOU = "SAC, Tianshou, examples/mujoco/README.md, https://github.com/thu-ml/tianshou ({}-v2)"
_MINARI = "{}, Farama Minari, https://huggingface.co/farama-minari/{}"

BEST_KNOWN: Mapping[str, BestKnown] = {
    "Blackjack-v1": BestKnown(-0.0431, 20, _EXACT),
    "CliffWalking-v1": BestKnown(-13.0, 13, _EXACT),
    "Taxi-v4": BestKnown(7.93, 200, _EXACT),
    "CartPole-v1": BestKnown(500.0, 500, _LIMIT.format(500, _ZOO.format("DQN"))),
    "MountainCar-v0": BestKnown(-100.849, 200, _ZOO.format("DQN")),
    "Acrobot-v1": BestKnown(-69.135, 500, _ZOO.format("QR-DQN")),
    "Pendulum-v1": BestKnown(-151.855, 200, _ZOO.format("TD3")),
    "Reacher-v5": BestKnown(-2.6, 50, _TIANSHOU.format("Reacher")),
    "Pusher-v5": BestKnown(-24.85, 100, "PPO, https://huggingface.co/Brunocho/ppo-Pusher-v5"),
    "InvertedPendulum-v5": BestKnown(
        1000.0, 1000, _LIMIT.format("1,000", _TIANSHOU.format("InvertedPendulum"))
    ),
    "InvertedDoublePendulum-v5": BestKnown(
        9359.5, 1000, _TIANSHOU.format("InvertedDoublePendulum")
    ),
    "HalfCheetah-v5": BestKnown(17641.8, 1000, _MINARI.format("TQC", "HalfCheetah-v5-TQC-expert")),
    "Hopper-v5": BestKnown(4098.17, 1000, _MINARI.format("SAC", "Hopper-v5-SAC-expert")),
    "Swimmer-v5": BestKnown(365.663, 1000, _ZOO_V3.format("TRPO", "Swimmer")),
    "Walker2d-v5": BestKnown(6956.61, 1000, _MINARI.format("SAC", "Walker2d-v5-SAC-expert")),
    "Ant-v5": BestKnown(6022.47, 1000, _MINARI.format("SAC", "Ant-v5-SAC-medium")),
    "Humanoid-v5": BestKnown(7239.32, 1000, _ZOO_V3.format("TQC", "Humanoid")),
    "HumanoidStandup-v5": BestKnown(
        165841.17, 1000, "PPO, SLM-Lab, docs/BENCHMARKS.md, https://github.com/kengz/SLM-Lab"
    ),
}
"""By environment. There is no published return for `RTFM-v0`."""


def best_known(environment: str, config: BenchmarkConfig) -> BestKnown | None:
    """Return the best known return, None if the benchmark plays shorter or other episodes.

    Args:
        environment: Id of the environment.
        config: Settings of the benchmark: a lower step limit and changed environments (shift,
            hidden values, noise) do not compare.
    """
    found = BEST_KNOWN.get(environment)
    if found is None or config.env_args:
        return None
    is_shorter = config.max_steps is not None and config.max_steps < found.steps
    return None if is_shorter else found
