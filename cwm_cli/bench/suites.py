"""Sets of environments that are known by their position."""

CWMB = (
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
"""The Code World Models Benchmark, in the order of the paper, on ids that Gymnasium makes today."""
