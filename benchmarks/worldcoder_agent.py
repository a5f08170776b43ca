"""Measure the parts of WorldCoder's agent: optimism, transfer, guessed rewards, frozen states.

`python -m benchmarks.worldcoder_agent [--seeds 5] [--steps 300] [--part NAME]` prints a line of
JSON for each measurement. Offline rules write the programs, so that no language model is needed.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.envs.tasks import Setting, step_limit
from cwm_cli.planning.model import Model, Step
from cwm_cli.registry import environment
from cwm_cli.sandbox import Limits, Sandbox
from cwm_learn.learn import learn
from cwm_learn.missions import StateView
from cwm_learn.search.missions import find_plans
from cwm_learn.strategy import LearningSession, LearningTask
from cwm_worldcoder.agent import TaskLearner, WorldCoderAgent
from cwm_worldcoder.world_program import WorldProgram

EASY, DOOR, UNLOCK = "MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Unlock-v0"
FETCH = "MiniGrid-Fetch-6x6-N2-v0"
SOKOBAN, TELEPORT = "Sokoban-v0", "Sokoban-Teleport-v0"
CURRICULA = ((EASY, DOOR), (SOKOBAN, TELEPORT))
SOLVED = {DOOR: 0.0, TELEPORT: 9.0}
"""Returns above which an episode is solved: the last box of Sokoban pays 10."""


def task_of(name: str, **env_args: Any) -> LearningTask:
    """Return the learning task of an environment."""
    spec = environment(name)
    with closing(spec.make(**env_args)) as env:
        task = Setting(name, env_args, 0, step_limit(env)).task(spec)
        schema = spec.objects(env) if spec.objects else None
        names = tuple(spec.action_names(env)) if spec.action_names else ()
    return LearningTask(name, task, schema, names)


def first_reward(session: LearningSession) -> int | None:
    """Return the number of steps up to the first reward, None without a reward."""
    return next((n for n, row in enumerate(session.rows, 1) if row.reward > 0), None)


def learn_sequence(
    sandbox: Sandbox, names: list[str], seed: int, steps: int, **options: Any
) -> Any:
    """Learn a sequence of environments; return the session and the duration in seconds."""
    session = LearningSession([task_of(n) for n in names], sandbox, seed=seed, steps=steps)
    chosen = {"plan_nodes": 1500, "patience": 3, **options}
    began = time.perf_counter()
    WorldCoderAgent(**chosen).learn(session)
    return session, round(time.perf_counter() - began, 1)


def optimism(sandbox: Sandbox, seeds: range, steps: int) -> Iterator[dict[str, Any]]:
    """Count the steps to the first reward with phi 2, without it, and with random actions."""
    arms: dict[str, dict[str, Any]] = {
        "phi 1 and phi 2": {},
        "phi 1": {"optimism": False},
        "random": {"exploration": 1.0, "warm": 10**6},
    }
    for name in (DOOR, UNLOCK):
        for arm, options in arms.items():
            found = []
            for seed in seeds:
                session, _ = learn_sequence(
                    sandbox, [name], seed, steps, patience=1, episodes=3, **options
                )
                found.append(first_reward(session))
            reached = [each if each is not None else steps for each in found]
            yield {"part": "optimism", "env": name, "arm": arm, "steps": found,
                   "median": median(reached)}  # fmt: skip


def transfer(sandbox: Sandbox, seeds: range, steps: int) -> Iterator[dict[str, Any]]:
    """Count steps and requests up to the first reward, with and without an earlier world model.

    `steps` is the budget of each environment.
    """
    agent = WorldCoderAgent(plan_nodes=1500, patience=3)
    for (earlier, later), seed in product(CURRICULA, seeds):
        found: dict[str, Any] = {}
        world: WorldProgram | None = None
        for name, arm in ((earlier, "before"), (later, "carried"), (later, "fresh")):
            session = LearningSession([task_of(name)], sandbox, seed=seed, steps=steps)
            given = None if arm == "fresh" else world
            with closing(TaskLearner(agent, session, session.tasks[0], given)) as learner:
                while not session.over and first_reward(session) is None:
                    learner.play_episode(len(learner.succeeded))
                found[arm] = {"steps": first_reward(session), "asked": learner.request_count}
                if arm == "before":
                    learner.learn()
                world = learner.world
        yield {"part": "transfer", "env": later, "after": earlier, "seed": seed, **found}


def curriculum(sandbox: Sandbox, seeds: range, steps: int) -> Iterator[dict[str, Any]]:
    """Count the steps of `cwm learn` up to the end of the first solved episode of play.

    It learns the environment alone, and after an easier one. `steps` is the budget of each.
    """
    del sandbox
    for (earlier, later), seed in product(CURRICULA, seeds):
        found = {}
        for arm, before in (("carried", [earlier]), ("fresh", [])):
            with TemporaryDirectory() as folder:
                result = learn(
                    later, curriculum=before, steps=steps, seed=seed, run=Path(folder) / "run"
                )
            solved = (each["steps"] for each in result.returns if each["return"] > SOLVED[later])
            found[arm] = next(solved, None)
        yield {"part": "curriculum", "env": later, "after": earlier, "seed": seed, **found}


def guessing(sandbox: Sandbox, seeds: range, steps: int) -> Iterator[dict[str, Any]]:
    """Record the success of the first episode with each new mission."""
    for seed in seeds:
        session = LearningSession([task_of(FETCH)], sandbox, seed=seed, steps=steps, seconds=120)
        agent = WorldCoderAgent(plan_nodes=1500, episodes=12)
        with closing(TaskLearner(agent, session, session.tasks[0])) as learner:
            met, first = set[str](), []
            for number in range(agent.episodes):
                if session.over:
                    break
                learner.play_episode(number)
                mission = session.rows[-1].observation["mission"]
                if met and mission not in met:
                    first.append(learner.succeeded[-1])
                met.add(mission)
        yield {"part": "guessing", "seed": seed, "missions": len(met), "first": first}


class Copying(Model):
    """A world program that copies each state six times, like the published code."""

    def __init__(self, environment: Any, action_space: Space, copy_state: Callable[[Any], Any]):
        self.environment, self.action_space, self.counter = environment, action_space, [0]
        self._copy, self.deterministic = copy_state, True

    def stand(self, state: Any) -> None:
        """Set the state to an observation."""
        self.environment.set_state(state)

    def step(self, action: Any) -> Step:
        """Take a step after six copies of the state."""
        self.counter[0] += 1
        for _ in range(6):
            self._copy(self.environment.state)
        return Step(*self.environment.step(action))


def planner(sandbox: Sandbox, seeds: range, steps: int) -> Iterator[dict[str, Any]]:
    """Measure nodes per second of the planner, with frozen states and with deep copies."""
    del sandbox, seeds, steps
    task = task_of(DOOR)
    with closing(task.task.make()) as env:
        start, _ = env.reset(seed=0)
        from cwm_cli.envs.spec import space_of

        space, actions = space_of(env.observation_space), space_of(env.action_space, "actions")
    moves = (
        "def transition(state, action):\n    agent = state[0]\n    x, y = agent.direction\n"
        "    if action == 'turn left':\n        agent.direction = (y, -x)\n"
        "    elif action == 'move forward' and not "
        "entities_by_position(state, agent.x + x, agent.y + y):\n"
        "        agent.x, agent.y = agent.x + x, agent.y + y\n    return state\n"
    )
    names: dict[str, Any] = {}
    program = WorldProgram(moves).source(StateView(space, task.schema, task.actions))
    exec(compile(program, "world", "exec"), names)
    speeds = {}
    for how, copying in (("frozen", lambda state: None), ("deepcopy", copy.deepcopy)):
        model = Copying(names["Environment"](), actions, copying)
        began, nodes = time.perf_counter(), 0
        while time.perf_counter() - began < 1.0:
            found = find_plans(
                model, space.pack("observations", [start]), space=space.to_json(), budget=500
            )
            nodes += int(found["nodes"][0])
        speeds[how] = nodes / (time.perf_counter() - began)
    yield {"part": "planner", **{f"{n}_nodes_per_s": round(v) for n, v in speeds.items()},
           "ratio": round(speeds["frozen"] / speeds["deepcopy"], 1)}  # fmt: skip


PARTS = {
    "optimism": optimism,
    "transfer": transfer,
    "curriculum": curriculum,
    "guessing": guessing,
    "planner": planner,
}


def main() -> None:
    """Run the selected measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--part", choices=PARTS, action="append")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    np.seterr(all="ignore")
    with Sandbox(Limits(), 3) as sandbox:
        for name in arguments.part or PARTS:
            for line in PARTS[name](sandbox, seeds, arguments.steps):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
