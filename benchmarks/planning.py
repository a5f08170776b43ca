"""Measure planning against the published planners: one decision or one plan, side by side.

World models plan in the sandbox, all guards up. Where a published plan takes
minutes, fewer samples and iterations are measured and scaled to all of them.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks.published import ENTROPY, Copied, Entropy, cem, mcts
from benchmarks.scoring import machine
from cwm_cli.environments import space_of
from cwm_cli.packing import Space
from cwm_cli.planning import PLANNERS, Decider, Moment
from cwm_cli.registry import environment
from cwm_cli.sandbox import Limits, Sandbox, Session
from cwm_cli.simulators import simulator

PROGRAMS = Path(__file__).parent.parent / "tests" / "world_models"
LIMITS = Limits(wall_seconds=600, cpu_seconds=600, stall_seconds=10)
SMALL = Entropy(samples=20, iterations=1)
"""A plan of 1 % of the samples and 5 % of the iterations."""

SCALE = ENTROPY.samples * ENTROPY.iterations / (SMALL.samples * SMALL.iterations)

Act = Callable[[int], None]
"""Makes the decision of a number, or the plan of that number."""


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
    yield Row("MCTS CartPole, true", 12, *_true_trees("CartPole-v1"), repeated=10)
    yield Row("MCTS Taxi, true", 50, *_true_trees("Taxi-v4"), repeated=2)
    pendulum = ("Pendulum-v1", "pendulum_numpy")
    yield _plan_row("CEM Pendulum, world model", 100, *pendulum)
    yield _plan_row("CEM HalfCheetah-sized world model", 50, "HalfCheetah-v5", "cheetah_vectors")
    yield _plan_row("CEM Pendulum, 8 episodes in lockstep", 300, *pendulum, episodes=8)
    yield _plan_row("CEM Pendulum, 16 episodes in lockstep", 300, *pendulum, episodes=16)
    yield _tree_row("MCTS CartPole, 512 episodes in lockstep", 50, "cartpole_float32", episodes=512)
    true = _true_plans("HalfCheetah-v5")
    yield Row("CEM HalfCheetah, true", 5, *true, scale=SCALE, decisions=1 / ENTROPY.iterations)
    yield Row("CEM HalfCheetah, true: bare C steps", 1, *_bare_steps("HalfCheetah-v5"))


def _fast_rows() -> Iterator[Row]:
    """Yield the claims for compiled world models."""
    for name in ("cartpole_float32", "cartpole_helpers"):
        yield _tree_row(f"MCTS CartPole, compiled {name}", 150, name, form="compiled")
    yield _plan_row("CEM Pendulum, compiled", 150, "Pendulum-v1", "pendulum_numpy", form="compiled")


def _tree_row(name: str, goal: float, program: str, **options: Any) -> Row:
    """Compare decisions of the tree search in a world model of CartPole."""
    text, env = (PROGRAMS / f"{program}.py").read_text(), gym.make("CartPole-v1")
    episodes = options.get("episodes", 1)

    def published() -> Act:
        model = Copied(_made(text))
        starts = _starts(env)

        def act(number: int) -> None:
            model.environment.set_state(starts[number % len(starts)].astype(float))
            mcts(model, range(2), Random(number))

        return act

    ours, times = _session(text, env, "mcts", **options), 20 if episodes == 1 else 1
    return Row(name, goal, published, ours, decisions=episodes, repeated=times)


def _plan_row(name: str, goal: float, env_id: str, program: str, **options: Any) -> Row:
    """Compare plans of the cross-entropy method in a world model."""
    text, env = (PROGRAMS / f"{program}.py").read_text(), gym.make(env_id)
    low, high = (np.asarray(bound, float) for bound in _bounds(env))
    episodes = options.get("episodes", 1)

    def published() -> Act:
        model = Copied(_made(text))
        starts = _starts(env)

        def act(number: int) -> None:
            model.environment.set_state(starts[number % len(starts)].astype(float))
            cem(model, (low, high), np.random.default_rng(number), SMALL)

        return act

    ours = _session(text, env, "cem", **options)
    return Row(name, goal, published, ours, SCALE, episodes)


def _session(
    text: str, env: gym.Env, planner: str, *, episodes: int = 1, form: str = "auto"
) -> Callable[[], AbstractContextManager[Act]]:
    """Return what opens a session and plans for some episodes at once."""

    @contextmanager
    def ours() -> Iterator[Act]:
        spaces = (space_of(env.observation_space), space_of(env.action_space, "actions"))
        starts = _starts(env)
        with (
            Sandbox(LIMITS, workers=1, accepted=_gaps(form)) as box,
            _opened(box, text, spaces, planner, rows=_real(env), form=form) as session,
        ):

            def act(number: int) -> None:
                moments = [
                    Moment(episode, number, starts[(number + episode) % len(starts)], 200)
                    for episode in range(episodes)
                ]
                failures = [plan.failure for plan in session.plan(moments) if plan.failure]
                assert not failures, failures[0]

            yield act
            print(f"  {session.report}")

    return ours


def _opened(
    box: Sandbox, text: str, spaces: tuple[Space, Space], planner: str, **options: Any
) -> Session:
    """Open a session with a planner as published."""
    box.prepare(compiling=options["form"] == "compiled")
    return box.session(text, spaces, planners=[(planner, {"preset": "paper"})], **options)


def _gaps(form: str) -> Sequence[str]:
    """Name the gaps that a form of programs leaves open."""
    return ["machine-code"] if form == "compiled" else []


def _true_trees(env_id: str) -> tuple[Callable[[], Act], Callable[[], AbstractContextManager[Act]]]:
    """Compare decisions of the tree search in a true environment."""

    def published() -> Act:
        env = gym.make(env_id).unwrapped
        actions = range(int(env.action_space.n))  # type: ignore[attr-defined]

        def act(number: int) -> None:
            env.reset(seed=number)
            mcts(Copied(env), actions, Random(number))

        return act

    return published, _simulated(env_id, "mcts")


def _true_plans(env_id: str) -> tuple[Callable[[], Act], Callable[[], AbstractContextManager[Act]]]:
    """Compare plans of the cross-entropy method in a true environment."""

    def published() -> Act:
        spec = environment(env_id)
        env = spec.make().unwrapped
        assert spec.rewinder is not None
        rewinder = spec.rewinder(env)
        assert rewinder is not None
        model = Rewound(env, rewinder)
        low, high = (np.asarray(bound, float) for bound in _bounds(env))

        def act(number: int) -> None:
            env.reset(seed=number)
            cem(model, (low, high), np.random.default_rng(number), SMALL)

        return act

    return published, _simulated(env_id, "cem", iterations=1)


def _bare_steps(
    env_id: str,
) -> tuple[Callable[[], Act], Callable[[], AbstractContextManager[Act]]]:
    """Compare with as many steps of MuJoCo as a plan takes, called from C on all cores."""

    def bare() -> Act:
        import mujoco
        from mujoco.batch import Batch

        env: Any = gym.make(env_id).unwrapped
        batch = Batch(env.model, 1000, nthread=_cores())
        controls = batch.bind("ctrl")
        state = np.zeros(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION.value))

        def act(number: int) -> None:
            env.reset(seed=number)
            mujoco.mj_getState(
                env.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION.value
            )
            batch.state[:] = state
            controls[:] = np.random.default_rng(number).uniform(-1, 1, controls.shape)
            for _ in range(100):
                batch.step(nstep=env.frame_skip)

        return act

    return bare, _simulated(env_id, "cem", iterations=1)


class Rewound:
    """A true environment whose state is saved and restored exactly."""

    def __init__(self, env: Any, rewinder: Any) -> None:
        self.step = env.step
        self.save, self.load = rewinder.save, rewinder.load


def _simulated(
    env_id: str, planner: str, **options: Any
) -> Callable[[], AbstractContextManager[Act]]:
    """Return what plans in a true environment."""

    @contextmanager
    def ours() -> Iterator[Act]:
        model, env = simulator(environment(env_id), {}, 0), gym.make(env_id)
        decider = Decider([PLANNERS[planner](preset="paper", **options)], model, seed=0)

        def act(number: int) -> None:
            observation, _ = env.reset(seed=number)
            decider.plan([Moment(number, 0, model.state_of(env, observation), 200)])

        yield act

    return ours


def _made(text: str) -> Any:
    """Run a program and make its Environment."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["Environment"]()


def _starts(env: gym.Env[Any, Any]) -> list[np.ndarray]:
    """Return some observations at which episodes begin."""
    return [env.reset(seed=seed)[0] for seed in range(64)]


def _real(env: gym.Env[Any, Any]) -> dict[str, np.ndarray]:
    """Return observations and actions of random episodes."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    rows = []
    for _ in range(509):
        action = env.action_space.sample()
        rows.append((observation, action))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    observations, actions = zip(*rows, strict=True)
    return {"observations": np.array(observations), "actions": np.array(actions)}


def _bounds(env: gym.Env[Any, Any]) -> tuple[Any, Any]:
    """Return the lowest and the highest action."""
    space: Any = env.action_space
    return space.low, space.high


def _cores() -> int:
    """Count the cores that may be used."""
    return len(os.sched_getaffinity(0))


def _seconds(act: Act, number: int, times: int) -> float:
    """Time one act, as one of several that follow each other."""
    started = time.perf_counter()
    for place in range(times):
        act(number * times + place)
    return (time.perf_counter() - started) / times


if __name__ == "__main__":
    main()
