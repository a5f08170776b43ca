"""What was published about the benchmark, to be printed beside other results.

Quoted from Dainese et al., "Generating Code World Models with Large Language
Models Guided by Monte Carlo Tree Search" (NeurIPS 2024, arXiv 2405.15383):
means over environments with its own data, score and planners. And from
Agent2World (arXiv 2512.22336), which reports both systems with one model.
"""

from typing import NamedTuple

SOURCE = "Dainese et al. (NeurIPS 2024, arXiv 2405.15383)"
LATER = "Agent2World (arXiv 2512.22336) reports an overall R of 0.48, and of 0.35 for GIF-MCTS."


class Quoted(NamedTuple):
    """Published figures of a kind of environments; R may exceed 1 and be negative."""

    group: str
    model: str
    completions: int
    strategy: str
    accuracy: float
    R: float


_LLAMA, _GPT = ("Llama 3 70B", 50), ("GPT-4 Turbo", 10)
QUOTED = (
    Quoted("discrete", *_LLAMA, "GIF-MCTS", 0.84, 0.76),
    Quoted("discrete", *_LLAMA, "WorldCoder", 0.79, 0.60),
    Quoted("discrete", *_GPT, "GIF-MCTS", 0.91, 0.81),
    Quoted("discrete", *_GPT, "WorldCoder", 0.87, 0.79),
    Quoted("continuous", *_LLAMA, "GIF-MCTS", 0.35, 0.22),
    Quoted("continuous", *_LLAMA, "WorldCoder", 0.32, 0.19),
    Quoted("continuous", *_GPT, "GIF-MCTS", 0.40, 0.26),
    Quoted("continuous", *_GPT, "WorldCoder", 0.24, 0.20),
    Quoted("text", *_GPT, "GIF-MCTS", 0.71, 0.31),
    Quoted("text", "GPT-4 Turbo", 50, "GIF-MCTS", 1.00, 1.00),
    Quoted("text", *_LLAMA, "GIF-MCTS", 0.58, -0.11),
)
