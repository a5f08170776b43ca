"""Print how many tokens prompts to improve have, and with `--show` such prompts in full.

Each environment is asked about twice: for a program that says that nothing changes, and for one
that is nearly right, of which one component, and the reward or the end, are wrong under one
condition. The texts shown stand in for it in length: hand-written programs, of the same
environment where there is one.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.evidence import NINETEEN, SHOWN, problem, tokenizer
from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.problems.feedback import report
from cwm_cli.problems.world_model import PARTS, WorldModelProblem
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import IMPROVE, Message, Move, Verdict

PROGRAMS = Path(__file__).parents[1] / "tests" / "world_models"
NOTHING_CHANGES = """class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, 0.0, False
"""
WRITTEN = {
    "Blackjack-v1": "blackjack_random",
    "CliffWalking-v1": "cliff_branches",
    "Taxi-v4": "taxi_map",
    "CartPole-v1": "cartpole_helpers",
    "MountainCar-v0": "mountain_car_scalars",
    "Acrobot-v1": "acrobot_lists",
    "Pendulum-v1": "pendulum_numpy",
    "Reacher-v5": "reacher_slices",
    "InvertedPendulum-v5": "inverted_pendulum_slices",
    "HalfCheetah-v5": "cheetah_vectors",
    "FrozenLake-v1": "lake_strings",
}
USUAL = "lander_early_returns"
"""What stands in for a program of an environment for which none is written, of middle length."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each environment and the medians, or the prompts themselves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "envs", nargs="*", help="ids; those of the prompts to generate unless given"
    )
    parser.add_argument("--show", action="store_true", help="print prompts in full")
    chosen = parser.parse_args(arguments)
    count, name = tokenizer()
    sizes: list[list[int]] = []
    for env in chosen.envs or (SHOWN if chosen.show else NINETEEN):
        asked = problem(env, 0)
        prompts = [asked_to_improve(env, asked, nearly_right=nearly) for nearly in (False, True)]
        sizes.append([sum(count(each.content) for each in prompt) for prompt in prompts])
        nothing, nearly = sizes[-1]
        print(f"{env:26} {nothing:6,} tokens where nothing changes, {nearly:6,} nearly right")
        if chosen.show:
            texts = [each.content for prompt in prompts for each in prompt]
            print("\n".join(["-" * 80, *texts, "-" * 80]))
    medians = [statistics.median(column) for column in zip(*sizes, strict=True)]
    every = statistics.median(size for pair in sizes for size in pair)
    print(f"{'median':26} {medians[0]:6,.0f} and {medians[1]:,.0f}, of both {every:,.0f} ({name})")


def asked_to_improve(
    env: str, asked: WorldModelProblem, *, nearly_right: bool
) -> tuple[Message, ...]:
    """Return the prompt to improve one of the programs."""
    rows = asked.dataset[asked.dataset.fitted]
    guess = _nearly_right(rows) if nearly_right else _unchanged(rows)
    text = (PROGRAMS / f"{WRITTEN.get(env, USUAL)}.py").read_text().removeprefix("# ruff: noqa\n")
    found = asked.metric.score(guess, rows)
    parts = {k: v for k, v in found.model_dump(include=set(PARTS)).items() if v is not None}
    failure = Failure("mismatch", report(rows, guess, asked.metric, asked.description))
    verdict = Verdict(score=found.value, parts=parts, failure=failure)
    return asked.messages(
        Move(IMPROVE, program=text if nearly_right else NOTHING_CHANGES, verdict=verdict)
    )


def _unchanged(rows: Dataset) -> Columns:
    """Say that nothing changes, no reward and no end."""
    guess = {f"next_{name}": column for name, column in rows.select("observations").items()}
    guess["rewards"] = np.zeros(len(rows))
    guess["terminations"] = np.zeros(len(rows), dtype=np.bool_)
    return guess | rows.select(VALID)


def _nearly_right(rows: Dataset) -> Columns:
    """Say what was recorded, but for a component and the reward, or the end, in some rows."""
    guess = dict(rows.select("next_observations", "rewards", "terminations", VALID))
    leaf = next(rows.observation_space.leaves("observations"))
    before, after = (rows.columns[f"{stem}{leaf.name}"] for stem in ("", "next_"))
    flat, known = after.reshape(len(rows), -1).copy(), before.reshape(len(rows), -1)
    if leaf.space.is_float:
        there = known[:, 0] > np.median(known[:, 0])
        flat[there, 0] += 0.1 * np.abs(flat[:, 0] - known[:, 0]).mean() + 1e-3
        guess["rewards"] = guess["rewards"] + 0.1 * there
    else:
        acts = rows.columns["actions"].reshape(len(rows), -1)[:, 0]
        there = acts == acts.min()
        flat[there] = known[there]
        guess["terminations"] = guess["terminations"] & ~there
    return guess | {f"next_{leaf.name}": flat.reshape(after.shape)}


if __name__ == "__main__":
    main()
