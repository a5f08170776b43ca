"""Items of the benchmark: environments with chance or hidden state, and their measures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import cwm_cli as cwm
from benchmarks.chance.optimum import plan_return, program_dynamics, share, true_dynamics
from cwm_cli.commands.evaluate import EvaluationResult
from cwm_cli.commands.synthesize import SynthesisResult
from cwm_cli.envs.tasks import step_limit
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds import ProgramModel

COMPLETIONS = 10
"""Completions of induction, the default of `cwm synthesize`. Each fits other rows."""


class Measure(NamedTuple):
    """A figure and its goal, None if it is only reported."""

    name: str
    value: float
    goal: float | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether the value is at least the goal."""
        return None if self.goal is None else self.value >= self.goal


@dataclass(frozen=True)
class Item:
    """An environment and its measure.

    Attributes:
        name: Name on the command line.
        env: Environment id.
        measure: Yields the measures.
        env_args: Arguments of the environment.
        rows: Number of recorded rows; half are held out.
        policy: Policy of the recording.
        plays: Number of episodes with the program and with the true environment.
        contract: Model type for the search.
    """

    name: str
    env: str
    measure: Callable[["Material"], Iterator[Measure]]
    env_args: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 5000
    policy: str = "random"
    plays: int = 10
    contract: Literal["auto", "chance"] = "auto"


class Material(NamedTuple):
    """An item with its recorded rows, its program and the scores on held-out rows."""

    item: Item
    seed: int
    file: Path
    found: SynthesisResult
    scored: EvaluationResult

    @classmethod
    def of(cls, item: Item, seed: int, folder: Path) -> "Material":
        """Record rows, induce a program, and score it."""
        file, args = folder / f"{item.name}-{seed}.npz", item.env_args
        if not file.exists():
            cwm.collect(
                item.env,
                env_args=args,
                min_rows=item.rows,
                max_steps=200,  # the time limit of Taxi
                policy=item.policy,
                seed=seed,
                out=file,
            )
        run = folder / f"{item.name}-{seed}"
        found = cwm.synthesize(
            item.env,
            env_args=args,
            dataset=file,
            budget=COMPLETIONS,
            contract=item.contract,
            seed=seed,
            run=run,
        )
        scored = cwm.evaluate(run, dataset=file, split="test", metric="skill")
        return cls(item, seed, file, found, scored)

    def skills(self, goal: float) -> Iterator[Measure]:
        """Yield the skill on held-out rows."""
        score = self.scored.scores.test
        if score is None or score.skill is None:
            yield Measure("skill", 0.0, goal)
            return
        yield Measure("skill", score.skill, goal)
        if score.uniformity is not None:
            yield Measure("uniformity (p)", score.uniformity, 0.01)

    def returns(self, goal: float) -> Iterator[Measure]:
        """Yield the mean return of plans, also as a share of the return of the oracle.

        The oracle plans in the true environment, with its complete state.
        """
        played = cwm.plan(
            self.found.run, oracle=True, episodes=self.item.plays, seed=1000 + self.seed
        )
        oracle = played.sides["oracle"].mean.mean
        yield Measure("return", played.mean)
        yield Measure("of the oracle", share(played.mean, oracle), goal)


def measure_skill(material: Material) -> Iterator[Measure]:
    """Yield the skill."""
    yield from material.skills(0.98)


def measure_policy(material: Material) -> Iterator[Measure]:
    """Yield the skill, and the exact return of plans under the true probabilities."""
    yield from material.skills(0.98)
    item, spec = material.item, environment(material.item.env)
    env = spec.make(**item.env_args)
    truth, limit = true_dynamics(env), step_limit(env)
    starts = np.array(env.unwrapped.initial_state_distrib, dtype=float)  # type: ignore[attr-defined]
    with Sandbox() as sandbox:
        model = ProgramModel(material.found.program.read_text(), sandbox)  # type: ignore[union-attr]
        program = program_dynamics(model, env, truth)
    best = plan_return(truth, truth, starts, limit)
    value = plan_return(program, truth, starts, limit)
    yield Measure("planned return", value)
    yield Measure("of the optimum", share(value, best), 0.98)


def measure_play(material: Material, skill: float = 0.98, goal: float = 0.98) -> Iterator[Measure]:
    """Yield the skill, and the return compared with the oracle."""
    yield from material.skills(skill)
    yield from material.returns(goal)


def measure_hands(material: Material) -> Iterator[Measure]:
    """Yield the skill, and the mean return of many short episodes."""
    yield from material.skills(0.95)
    result = cwm.plan(material.found.run, episodes=material.item.plays, seed=1000 + material.seed)
    yield Measure("return", result.mean, -0.06)


def measure_memory(material: Material) -> Iterator[Measure]:
    """Yield the share of exact held-out rows from the third step of an episode on."""
    rows, found = material.scored.rows["test"], material.scored.found["test"]
    episodes = rows.columns["episodes"]
    late = np.concatenate([[False] * 2, (episodes[2:] == episodes[:-2])])
    if found.failure is None:
        from cwm_cli.evaluation import match

        losses = match(found.predictions, rows).losses(rows.columns["terminations"])
        yield Measure("exact from step 3", float((losses[late] == 0).mean()), 0.99)
    else:
        yield Measure("exact from step 3", 0.0, 0.99)
    yield from material.returns(0.9)


def measure_familiar_views(material: Material) -> Iterator[Measure]:
    """Yield the share of exact observations among familiar held-out rows."""
    rows, found = material.scored.rows["test"], material.scored.found["test"]
    if found.failure is not None:
        yield Measure("observation", 0.0, 0.9)
        return
    leaf = max(rows.observation_space.leaves("next_observations"), key=lambda each: each.space.size)
    then = rows.columns[leaf.name].reshape(len(rows), -1)
    predicted = found.predictions[leaf.name].reshape(len(rows), -1)
    familiar = familiar_rows(then, rows.columns["episodes"])
    right = (predicted == then).all(axis=1) & ~rows.columns["terminations"]
    yield Measure("observation", float(right[familiar].mean()), 0.9)
    yield Measure("familiar rows", float(familiar.mean()))


def familiar_rows(views: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Return the mask of rows whose view occurs earlier in the same episode."""
    known: set[tuple[int, bytes]] = set()
    mask = np.zeros(len(views), bool)
    for row, (view, episode) in enumerate(zip(views, episodes.tolist(), strict=True)):
        key = episode, view.tobytes()
        mask[row] = key in known
        known.add(key)
    return mask


RAIN, FICKLE = {"is_rainy": True}, {"fickle_passenger": True}
HIDDEN, FORCE = {"hide": ["velocities"]}, {"noise": {"force_mag": 2.0}}
NOISY = partial(measure_play, skill=0.95, goal=0.95)

ITEMS = [
    Item("lake", "FrozenLake-v1", measure_policy),
    Item("lake-8x8", "FrozenLake-v1", measure_policy, {"map_name": "8x8"}),
    Item("cliff", "CliffWalkingSlippery-v1", measure_policy),
    Item("taxi-rain-random", "Taxi-v4", measure_skill, RAIN),  # rarely delivers a passenger
    Item("taxi-rain", "Taxi-v4", measure_policy, RAIN, policy="curated"),
    Item("taxi-fickle", "Taxi-v4", measure_play, FICKLE, policy="curated", plays=300),
    Item("taxi-both", "Taxi-v4", measure_play, RAIN | FICKLE, policy="curated", plays=300),
    Item("blackjack", "Blackjack-v1", measure_hands, plays=20_000),
    # With random actions, the pole falls long before the cart reaches its limit, so plans would
    # drive there. With curated data, the noise is detected only if the contract is named.
    Item("cart-pole-force", "CartPole-v1", NOISY, FORCE, 1000, "curated", contract="chance"),
    Item("pendulum-torque", "Pendulum-v1", NOISY, {"noise": {"action": 0.3}}, 1000, "curated"),
    Item("cart-pole-hidden", "CartPole-v1", measure_memory, HIDDEN, 1000, "curated"),
    Item("pendulum-hidden", "Pendulum-v1", measure_memory, HIDDEN, 1000, "curated"),
    Item("mountain-car-hidden", "MountainCar-v0", measure_memory, HIDDEN, 1000, "curated"),
    Item("acrobot-hidden", "Acrobot-v1", measure_memory, HIDDEN, 1000, "curated"),
    Item(
        "door-key-view",
        "MiniGrid-DoorKey-5x5-v0",
        measure_familiar_views,
        {"view": "partial"},
        rows=3000,
    ),
]
"""All items of the benchmark."""
