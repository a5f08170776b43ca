"""Planning against the published planners: one decision or one plan, side by side.

World models plan in the sandbox, all guards up. Where a published plan takes
minutes, fewer samples and iterations are measured and scaled to all of them.
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
    """Both sides of a claim: what opens a published planner, and one of ours.

    One act of ours makes so many decisions, one of theirs is scaled to one
    decision; short ones are `repeated`.
    """

    published: Callable[[], Act]
    ours: Callable[[], AbstractContextManager[Act]]
    scale: float = 1.0
    decisions: float = 1
    repeated: int = 1

    def measure(self, quick: bool) -> Measured:
        """Act in turn, and count the steps and the calls of one more act of ours."""
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
        if counted:  # else it was all done by threads that had begun before
            counts["calls"] = counted
        return Measured(times.gains, times.milliseconds("published", "ours"), counts)

    def _several(self, act: Act) -> Side:
        """Return what acts several times, as one of a row of acts."""

        def acts(number: int) -> None:
            for place in range(self.repeated):
                act(number * self.repeated + place)

        return acts


def tree(program: str) -> Row:
    """Compare decisions of the tree search in a world model of CartPole."""
    model = WorldModel(program, "CartPole-v1")
    return Row(model.trees, model.session("mcts"), repeated=20)


def values(program: str) -> Row:
    """Compare the tree search with decisions of the planner that wins the trial in CartPole."""
    model = WorldModel(program, "CartPole-v1")
    return Row(model.trees, model.session("grid", preset=""), repeated=20)


def plan(env_id: str, program: str, **options: Any) -> Row:
    """Compare plans of the cross-entropy method in a world model."""
    model = WorldModel(program, env_id)
    plans = options.get("episodes", 1) * options.get("workers", 1)
    return Row(partial(model.plans, SMALL), model.session("cem", **options), SCALE, plans)


def true_tree(env_id: str, *, repeated: int) -> Row:
    """Compare decisions of the tree search in a true environment."""
    ours = true_environments.simulated(env_id, "mcts")
    return Row(partial(true_environments.trees, env_id), ours, repeated=repeated)


def true_plan(env_id: str) -> Row:
    """Compare plans of the cross-entropy method in a true environment, one iteration of ours."""
    ours = true_environments.simulated(env_id, "cem", iterations=1)
    published = partial(true_environments.plans, env_id, SMALL)
    return Row(published, ours, SCALE, 1 / ENTROPY.iterations)


def claim(
    name: str, says: str, goal: float | None, row: Callable[[], Row], *, in_quick: bool = False
) -> Claim:
    """Claim that ours is so many times as fast."""
    return Claim(name, says, lambda quick: row().measure(quick), goal, in_quick=in_quick)


PENDULUM = ("Pendulum-v1", "pendulum_numpy")
TREE = "a tree-search decision in"
PLAN = "a CEM plan in"
# Goals of the tree search in CartPole: both trees are Python, and take most of the time. Steps of
# the model that take no time at all would give a ratio of 3.
CLAIMS = (
    claim(
        "grid-cartpole",
        "a decision of `grid`, after its value iteration, beside a tree-search decision in a model "
        "of CartPole",
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
        f"{TREE} a model of CartPole with methods of its own",
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
        f"{PLAN} a model of Pendulum, 8 episodes side by side",
        150,  # numpy works on one core; two workers have a goal of their own
        partial(plan, *PENDULUM, episodes=8),
    ),
    claim(
        "cem-pendulum-two-workers",
        f"{PLAN} a model of Pendulum, 8 episodes side by side in each of 2 workers",
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
        2.5,  # most of the time is MuJoCo's own steps: see `batches`
        partial(true_plan, "HalfCheetah-v5"),
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
