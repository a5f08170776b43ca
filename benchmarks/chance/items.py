"""What is measured: worlds that roll dice, and worlds that hide something."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import cwm_cli as cwm
from benchmarks.chance.optimum import planned, share, told_dynamics, true_dynamics
from cwm_cli.commands.evaluate import EvaluationResult
from cwm_cli.commands.synthesize import SynthesisResult
from cwm_cli.envs.tasks import step_limit
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds import ProgramModel

COMPLETIONS = 10
"""Completions of induction, as `cwm synthesize` has them; each believes other rows."""


class Measure(NamedTuple):
    """A figure, and what it has to reach; None where it is only reported."""

    name: str
    value: float
    goal: float | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether it is at least the goal."""
        return None if self.goal is None else self.value >= self.goal


@dataclass(frozen=True)
class Item:
    """A world and what is measured in it; `rows` are recorded with `policy`, half of them held out.

    `plays` are the episodes that are played with the program and with the true environment.
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
    """What is measured with: the folder of an item, a program and its scores on held-out rows."""

    item: Item
    seed: int
    file: Path
    found: SynthesisResult
    scored: EvaluationResult

    @classmethod
    def of(cls, item: Item, seed: int, folder: Path) -> "Material":
        """Record rows, have a program induced, and score it."""
        file, args = folder / f"{item.name}-{seed}.npz", item.env_args
        most = 200  # steps: so long an episode of Taxi lasts
        if not file.exists():
            cwm.collect(
                item.env,
                env_args=args,
                min_rows=item.rows,
                max_steps=most,
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
        """Yield the mean return of plans, as a share of the oracle's, which sees everything."""
        played = cwm.plan(
            self.found.run, oracle=True, episodes=self.item.plays, seed=1000 + self.seed
        )
        oracle = played.sides["oracle"].mean.mean
        yield Measure("return", played.mean)
        yield Measure("of the oracle", share(played.mean, oracle), goal)


def skilled(material: Material) -> Iterator[Measure]:
    """Yield the skill."""
    yield from material.skills(0.98)


def tabled(material: Material) -> Iterator[Measure]:
    """Yield the skill, and what plans are worth in the true probabilities."""
    yield from material.skills(0.98)
    item, spec = material.item, environment(material.item.env)
    env = spec.make(**item.env_args)
    truth, limit = true_dynamics(env), step_limit(env)
    starts = np.array(env.unwrapped.initial_state_distrib, dtype=float)  # type: ignore[attr-defined]
    with Sandbox() as sandbox:
        model = ProgramModel(material.found.program.read_text(), sandbox)  # type: ignore[union-attr]
        told = told_dynamics(model, env, truth)
    best, value = planned(truth, truth, starts, limit), planned(told, truth, starts, limit)
    yield Measure("planned return", value)
    yield Measure("of the optimum", share(value, best), 0.98)


def played(material: Material, skill: float = 0.98, goal: float = 0.98) -> Iterator[Measure]:
    """Yield the skill, and the return beside that of the oracle."""
    yield from material.skills(skill)
    yield from material.returns(goal)


def hands(material: Material) -> Iterator[Measure]:
    """Yield the skill, and the mean return of many short episodes."""
    yield from material.skills(0.95)
    result = cwm.plan(material.found.run, episodes=material.item.plays, seed=1000 + material.seed)
    yield Measure("return", result.mean, -0.06)


def remembered(material: Material) -> Iterator[Measure]:
    """Yield how many held-out rows are exact from the third step of an episode on."""
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


def seen_before(material: Material) -> Iterator[Measure]:
    """Yield in how many held-out rows the observation is exact of which all was seen before."""
    rows, found = material.scored.rows["test"], material.scored.found["test"]
    if found.failure is not None:
        yield Measure("observation", 0.0, 0.9)
        return
    leaf = max(rows.observation_space.leaves("next_observations"), key=lambda each: each.space.size)
    then = rows.columns[leaf.name].reshape(len(rows), -1)
    told = found.predictions[leaf.name].reshape(len(rows), -1)
    familiar = familiar_rows(then, rows.columns["episodes"])
    right = (told == then).all(axis=1) & ~rows.columns["terminations"]
    yield Measure("observation", float(right[familiar].mean()), 0.9)
    yield Measure("familiar rows", float(familiar.mean()))


def familiar_rows(views: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Return the mask of rows whose view has come up before in the episode."""
    known: set[tuple[int, bytes]] = set()
    mask = np.zeros(len(views), bool)
    for row, (view, episode) in enumerate(zip(views, episodes.tolist(), strict=True)):
        key = episode, view.tobytes()
        mask[row] = key in known
        known.add(key)
    return mask


RAIN, FICKLE = {"is_rainy": True}, {"fickle_passenger": True}
HIDDEN, FORCE = {"hide": ["velocities"]}, {"noise": {"force_mag": 2.0}}
NOISY = partial(played, skill=0.95, goal=0.95)

ITEMS = [
    Item("lake", "FrozenLake-v1", tabled),
    Item("lake-8x8", "FrozenLake-v1", tabled, {"map_name": "8x8"}),
    Item("cliff", "CliffWalkingSlippery-v1", tabled),
    Item("taxi-rain-random", "Taxi-v4", skilled, RAIN),  # hardly ever is a passenger brought home
    Item("taxi-rain", "Taxi-v4", tabled, RAIN, policy="curated"),
    Item("taxi-fickle", "Taxi-v4", played, FICKLE, policy="curated", plays=300),
    Item("taxi-both", "Taxi-v4", played, RAIN | FICKLE, policy="curated", plays=300),
    Item("blackjack", "Blackjack-v1", hands, plays=20_000),
    # at random a pole falls long before the cart comes to its limit, into which plans then drive;
    # played by plans as well the noise is not noticed unless the contract is named
    Item("cart-pole-force", "CartPole-v1", NOISY, FORCE, 1000, "curated", contract="chance"),
    Item("pendulum-torque", "Pendulum-v1", NOISY, {"noise": {"action": 0.3}}, 1000, "curated"),
    Item("cart-pole-hidden", "CartPole-v1", remembered, HIDDEN, 1000, "curated"),
    Item("pendulum-hidden", "Pendulum-v1", remembered, HIDDEN, 1000, "curated"),
    Item("mountain-car-hidden", "MountainCar-v0", remembered, HIDDEN, 1000, "curated"),
    Item("acrobot-hidden", "Acrobot-v1", remembered, HIDDEN, 1000, "curated"),
    Item(
        "door-key-view",
        "MiniGrid-DoorKey-5x5-v0",
        seen_before,
        {"view": "partial"},
        rows=3000,
    ),
]
"""The list of figures to reach."""
