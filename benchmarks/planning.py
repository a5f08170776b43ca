"""Measure planning against the published planners: one decision or one plan, side by side.

World models plan in the sandbox, all guards up. Where a published plan takes
minutes, fewer samples and iterations are measured and scaled to all of them.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks import true_environments
from benchmarks.published import ENTROPY, Entropy
from benchmarks.scoring import machine
from benchmarks.world_models import Act, WorldModel

SMALL = Entropy(samples=20, iterations=1)
"""A plan of 1 % of the samples and 5 % of the iterations."""

SCALE = ENTROPY.samples * ENTROPY.iterations / (SMALL.samples * SMALL.iterations)


class Row(NamedTuple):
    """A claim: what is measured, how many times faster it is to be, and both sides of it.

    `published` and `ours` give an act. One of ours makes so many decisions, one of
    theirs is scaled to one decision; short ones are `repeated`.
    """

    name: str
    goal: float
    published: Callable[[], Act]
    ours: Callable[[], AbstractContextManager[Act]]
    scale: float = 1.0
    decisions: float = 1
    repeated: int = 1


def main() -> None:
    """Measure the rows that are asked for, all unless any are named, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="words that the names of the rows begin with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compiled", action="store_true", help="with cwm-cli[fast]")
    arguments = parser.parse_args()
    for row in _fast_rows() if arguments.compiled else _rows():
        if not arguments.rows or row.name.startswith(tuple(arguments.rows)):
            print(_line(row, arguments.rounds), flush=True)
    print(machine())


def _line(row: Row, rounds: int) -> str:
    """Measure both sides of a row in turn, after one round that does not count."""
    published = row.published()
    with row.ours() as ours:
        pairs = [
            (
                _seconds(published, number, row.repeated) * row.scale,
                _seconds(ours, number, row.repeated) / row.decisions,
            )
            for number in range(rounds + 1)
        ][1:]
    theirs, mine = (median(column) * 1000 for column in zip(*pairs, strict=True))
    ratio = median(one / other for one, other in pairs)
    return f"{row.name:58} {theirs:12,.2f} ms {mine:10,.3f} ms {ratio:7.1f}x (goal {row.goal:g}x)"


def _rows() -> Iterator[Row]:
    """Yield the claims that hold for the core install."""
    for name in ("cartpole_float32", "cartpole_helpers"):
        yield _tree_row(f"MCTS CartPole, world model {name}", 10, name)
    yield _true_tree_row("MCTS CartPole, true", 12, "CartPole-v1", repeated=10)
    yield _true_tree_row("MCTS Taxi, true", 50, "Taxi-v4", repeated=2)
    pendulum = ("Pendulum-v1", "pendulum_numpy")
    yield _plan_row("CEM Pendulum, world model", 100, *pendulum)
    yield _plan_row("CEM HalfCheetah-sized world model", 50, "HalfCheetah-v5", "cheetah_vectors")
    yield _plan_row("CEM Pendulum, 8 episodes in lockstep", 300, *pendulum, episodes=8)
    two = "CEM Pendulum, 8 episodes in lockstep in each of 2 workers"
    yield _plan_row(two, 300, *pendulum, episodes=8, workers=2)
    yield _tree_row("MCTS CartPole, 512 episodes in lockstep", 50, "cartpole_float32", episodes=512)
    yield from _cheetah_rows("HalfCheetah-v5")


def _fast_rows() -> Iterator[Row]:
    """Yield the claims for compiled world models."""
    for name in ("cartpole_float32", "cartpole_helpers"):
        yield _tree_row(f"MCTS CartPole, compiled {name}", 150, name, form="compiled")
        many = f"MCTS CartPole, 64 in lockstep, compiled {name}"
        yield _tree_row(many, 150, name, form="compiled", episodes=64)
    yield _plan_row("CEM Pendulum, compiled", 150, "Pendulum-v1", "pendulum_numpy", form="compiled")


def _tree_row(name: str, goal: float, program: str, **options: Any) -> Row:
    """Compare decisions of the tree search in a world model of CartPole."""
    model, episodes = WorldModel(program, "CartPole-v1"), options.get("episodes", 1)
    ours, times = model.session("mcts", **options), 20 if episodes == 1 else 1
    return Row(name, goal, model.trees, ours, decisions=episodes, repeated=times)


def _plan_row(name: str, goal: float, env_id: str, program: str, **options: Any) -> Row:
    """Compare plans of the cross-entropy method in a world model."""
    model = WorldModel(program, env_id)
    plans = options.get("episodes", 1) * options.get("workers", 1)
    ours = model.session("cem", **options)
    return Row(name, goal, partial(model.plans, SMALL), ours, SCALE, plans)


def _true_tree_row(name: str, goal: float, env_id: str, *, repeated: int) -> Row:
    """Compare decisions of the tree search in a true environment."""
    published = partial(true_environments.trees, env_id)
    ours = true_environments.simulated(env_id, "mcts")
    return Row(name, goal, published, ours, repeated=repeated)


def _cheetah_rows(env_id: str) -> Iterator[Row]:
    """Compare plans in a true environment of MuJoCo, and with its steps alone."""
    ours = true_environments.simulated(env_id, "cem", iterations=1)
    published = partial(true_environments.plans, env_id, SMALL)
    share = 1 / ENTROPY.iterations
    yield Row("CEM HalfCheetah, true", 5, published, ours, SCALE, share)
    bare = partial(true_environments.bare_steps, env_id)
    yield Row("CEM HalfCheetah, true: bare C steps", 0.75, bare, ours)


def _seconds(act: Act, number: int, times: int) -> float:
    """Time one act, as one of several that follow each other."""
    started = time.perf_counter()
    for place in range(times):
        act(number * times + place)
    return (time.perf_counter() - started) / times


if __name__ == "__main__":
    main()
