"""Compare planning with the published planners: one decision, or one plan.

World models plan in the sandbox, with all protections. If a published plan takes minutes, a part of
its samples and iterations is measured and scaled.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import true_environments
from benchmarks.claims import Claim, Measured
from benchmarks.measuring import Side, Times, calls, in_turn
from benchmarks.published import ENTROPY, Entropy
from benchmarks.script import main
from benchmarks.world_models import Act, WorldModel

SMALL = Entropy(samples=20, iterations=1)
"""A plan of 1 % of the samples and 5 % of the iterations."""

SCALE = ENTROPY.samples * ENTROPY.iterations / (SMALL.samples * SMALL.iterations)


@dataclass(frozen=True)
class Row:
    """Both sides of a claim: functions that open a published planner and one of ours.

    Attributes:
        published: Opens the published planner.
        ours: Opens our planner.
        scale: Time of a published decision divided by the time of its measured act.
        decisions: Decisions of one act of ours.
        repeated: Number of acts per measurement, for short acts.
    """

    published: Callable[[], Act]
    ours: Callable[[], AbstractContextManager[Act]]
    scale: float = 1.0
    decisions: float = 1
    repeated: int = 1

    def measure(self, quick: bool) -> Measured:
        """Act alternately, and count the steps and calls of one more act of ours."""
        published = self.published()
        with self.ours() as ours:
            sides = self._several(published), self._several(ours)
            times = in_turn(*sides, 1 if quick else 7)
            steps: list[int] = []
            counted = calls(lambda: steps.append(ours(0)))
        one = self.repeated * self.decisions
        theirs = [seconds * self.scale / self.repeated for seconds in times.theirs]
        times = Times(theirs, [seconds / one for seconds in times.ours])
        counts = {"model steps": round(steps[0] / self.decisions)}
        if counted:  # 0 if existing threads did all the work
            counts["calls"] = counted
        return Measured(times.gains, times.milliseconds("published", "ours"), counts)

    def _several(self, act: Act) -> Side:
        """Return a function that acts `repeated` times."""

        def acts(number: int) -> None:
            for place in range(self.repeated):
                act(number * self.repeated + place)

        return acts


def tree(program: str) -> Row:
    """Compare decisions of the tree search in a world model of CartPole."""
    model = WorldModel(program, "CartPole-v1")
    return Row(model.trees, model.session("mcts"), repeated=20)


def values(program: str) -> Row:
    """Compare the tree search with the planner that `cwm plan` chooses for CartPole."""
    model = WorldModel(program, "CartPole-v1")
    return Row(model.trees, model.session("grid", preset=""), repeated=20)


def plan(env_id: str, program: str, **options: Any) -> Row:
    """Compare plans of the cross-entropy method in a world model."""
    model = WorldModel(program, env_id)
    plans = options.get("episodes", 1) * options.get("workers", 1)
    return Row(partial(model.plans, SMALL), model.session("cem", **options), SCALE, plans)


def true_tree(env_id: str, *, repeated: int) -> Row:
    """Compare decisions of the tree search in a true environment."""
    ours = true_environments.planner_session(env_id, "mcts")
    return Row(partial(true_environments.trees, env_id), ours, repeated=repeated)


def true_plan(env_id: str) -> Row:
    """Compare plans of the cross-entropy method in a true environment, one iteration of ours."""
    ours = true_environments.planner_session(env_id, "cem", iterations=1)
    published = partial(true_environments.plans, env_id, SMALL)
    return Row(published, ours, SCALE, 1 / ENTROPY.iterations)


def claim(
    name: str, says: str, goal: float | None, row: Callable[[], Row], *, in_quick: bool = False
) -> Claim:
    """Return the claim that our planner is `goal` times as fast."""
    return Claim(name, says, lambda quick: row().measure(quick), goal, in_quick=in_quick)


PENDULUM = ("Pendulum-v1", "pendulum_numpy")
TREE = "a tree-search decision in"
PLAN = "a CEM plan in"
# Goals of the tree search in CartPole: both trees are written in Python and take most of the time.
# A model without any cost per step would give a ratio of 3.
CLAIMS = (
    claim(
        "grid-cartpole",
        "a decision of `grid`, after its value iteration, against a tree-search decision in a "
        "model of CartPole",
        10,
        partial(values, "cartpole_float32"),
    ),
    claim(
        "mcts-cartpole",
        f"{TREE} a model of CartPole",
        2,
        partial(tree, "cartpole_float32"),
        in_quick=True,
    ),
    claim(
        "mcts-cartpole-helpers",
        f"{TREE} a model of CartPole with helper methods",
        2,
        partial(tree, "cartpole_helpers"),
    ),
    claim(
        "mcts-cartpole-true",
        f"{TREE} the true CartPole",
        8,
        partial(true_tree, "CartPole-v1", repeated=10),
        in_quick=True,
    ),
    claim(
        "mcts-taxi-true",
        f"{TREE} the true Taxi",
        50,
        partial(true_tree, "Taxi-v4", repeated=1),
    ),
    claim(
        "mcts-cliff-true",
        f"{TREE} the true CliffWalking",
        50,
        partial(true_tree, "CliffWalking-v1", repeated=1),
        in_quick=True,
    ),
    claim(
        "cem-pendulum",
        f"{PLAN} a model of Pendulum",
        100,
        partial(plan, *PENDULUM),
        in_quick=True,
    ),
    claim(
        "cem-pendulum-eight",
        f"{PLAN} a model of Pendulum, 8 episodes at a time",
        150,  # numpy uses one core; two workers have their own goal
        partial(plan, *PENDULUM, episodes=8),
    ),
    claim(
        "cem-pendulum-two-workers",
        f"{PLAN} a model of Pendulum, 8 episodes at a time in each of 2 workers",
        300,
        partial(plan, *PENDULUM, episodes=8, workers=2),
    ),
    claim(
        "cem-cheetah-sized",
        f"{PLAN} a model the size of HalfCheetah",
        50,
        partial(plan, "HalfCheetah-v5", "cheetah_vectors"),
    ),
    claim(
        "cem-cheetah-true",
        f"{PLAN} the true HalfCheetah",
        2.5,  # the steps of MuJoCo take most of the time: see `batches`
        partial(true_plan, "HalfCheetah-v5"),
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
