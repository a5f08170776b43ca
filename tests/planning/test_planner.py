"""Requirements of every planner, and planners of plugins."""

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from candidates import open_session, plan_at
from cwm_cli.commands.plan import choose_planners
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import (
    PLANNERS,
    Decider,
    Moment,
    Planner,
    Unsuited,
    automatic,
    find_planner,
    serving,
)
from cwm_cli.planning.model import Counter, Model, Step
from cwm_cli.planning.planner import Situation
from cwm_cli.presets import preset_values
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds.messages import PlanningJob

KNOWN = {name: find_planner(name) for name in PLANNERS}
FOR_ONE = {name: planner for name, planner in KNOWN.items() if not planner.TWO_PLAYERS}
REAL = space_of(spaces.Box(-1, 1, (2,)))
FEW = space_of(spaces.Discrete(3, start=-1))
EVERY = pytest.mark.parametrize("planner", FOR_ONE.values(), ids=FOR_ONE)


class Line(Model):
    """A walk on a line, one step or less at a time, which ends ten steps away from its start."""

    deterministic = True
    examples = np.linspace(-9, 9, 19)[:, None]

    def __init__(self, action_space: Space) -> None:
        self.action_space = action_space
        self.counter: Counter = [0]

    def stand(self, state: Any) -> None:
        self.place = state.item() if isinstance(state, np.ndarray) else state

    def here(self) -> Any:
        return self.place

    def step(self, action: Any) -> Step:
        assert np.all((self.action_space.low <= np.ravel(action)) & (action <= 1))
        self.counter[0] += 1
        self.place = self.place + (action if self.action_space is FEW else float(action[0]))
        return Step(self.place, float(self.place), bool(abs(self.place) >= 10))


def line(planner: type[Planner]) -> Line:
    return Line(REAL if planner.serves(REAL) else FEW)


def at(place: Any, horizon: int = 9, seed: int = 0, **rest: Any) -> Situation:
    return Situation(place, horizon, (seed,), **rest)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (spaces.Discrete(3), ["tabular", "grid", "mcts", "icem"]),
        (spaces.Box(-1, 1, (2,)), ["grid", "feedback", "icem", "cem"]),
        (spaces.Box(-np.inf, np.inf, (2,)), []),
        (spaces.Box(0, 9, (2,), np.int64), list(FOR_ONE)),
        (spaces.MultiDiscrete([2, 2]), list(FOR_ONE)),
        (spaces.MultiDiscrete([99, 99]), ["grid", "feedback", "icem", "cem"]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), []),
    ],
    ids=str,
)
def test_planners_serve_their_kind_of_actions(space: gym.Space, names: list[str]) -> None:
    assert serving(KNOWN, space_of(space)) == names


def test_ranks_order_the_automatic_planners() -> None:
    class Eager(KNOWN["mcts"]):  # type: ignore[misc]
        @classmethod
        def rank(cls, observation_space: Space, action_space: Space) -> float:
            return 0.5

    finite, endless = space_of(spaces.Discrete(5)), space_of(spaces.Box(-1, 1))
    assert automatic(KNOWN, finite, FEW) == ["tabular", "mcts"]
    many = space_of(spaces.Box(-1, 1, (13,)))
    assert automatic(KNOWN, endless, FEW) == ["grid", "mcts"]
    assert automatic(KNOWN, many, FEW) == ["mcts"]
    assert automatic(KNOWN, endless, REAL) == ["grid", "icem", "feedback"]
    assert automatic(KNOWN, many, REAL) == ["icem", "feedback"]
    assert automatic(KNOWN, space_of(spaces.Box(-1, 1, (41,))), REAL) == ["icem"]
    assert automatic(KNOWN | {"eager": Eager}, finite, FEW) == ["tabular", "eager", "mcts"]
    few, more = (space_of(spaces.MultiDiscrete([n, n])) for n in (5, 9))
    assert automatic(KNOWN, finite, few) == ["tabular", "mcts", "icem"]
    assert automatic(KNOWN, finite, more) == ["tabular", "icem", "mcts"]


@EVERY
def test_every_option_has_a_default_and_a_description(planner: type[Planner]) -> None:
    options = {field.name for field in fields(planner) if field.init}
    body = ast.parse(dedent(inspect.getsource(planner))).body[0].body  # type: ignore[attr-defined]
    told = {
        node.target.id
        for node, text in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert options <= told, options - told
    assert planner.__doc__ and planner.NEEDS
    assert planner() == planner()
    assert all(getattr(planner(), option) is not None for option in options)


@EVERY
def test_a_preset_sets_the_unset_options(planner: type[Planner]) -> None:
    for preset in planner.PRESETS:
        values = preset_values(planner, preset)
        made = planner(preset=preset)  # type: ignore[call-arg]
        assert {name: getattr(made, name) for name in values} == dict(values)
        for name, value in values.items():
            other = (value or 9) + 1
            changed = planner(preset=preset, **{name: other})  # type: ignore[call-arg]
            assert changed == replace(made, **{name: other})  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("options", "doubt"),
    [
        ((), "careful"),
        (("preset=paper",), "ignore"),
        (("preset=paper", "doubt=curious"), "curious"),
    ],
)
@pytest.mark.parametrize("name", ["mcts", "cem"])
def test_published_planners_ignore_doubt_by_default(
    name: str, options: tuple[str, ...], doubt: str
) -> None:
    actions = spaces.Discrete(2) if name == "mcts" else spaces.Box(-1, 1, (1,))
    both = space_of(spaces.Box(-1, 1, (1,))), space_of(actions, "actions")
    assert choose_planners(name, options, both, {}).doubt == doubt


NONSENSE = {
    "mcts": [
        {"simulations": 0},
        {"budget": 0},
        {"rollout": -1},
        {"discount": 1.5},
        {"temperature": -0.1},
        {"exploration": float("nan")},
    ],
    "tabular": [{"states": 0}, {"discount": 1.5}, {"tolerance": float("nan")}],
    "cem": [{"elites": 6, "samples": 5}, {"replan": 0}],
    "icem": [{"budget": 11}, {"horizon": 0}, {"fine": 1.5}, {"decay": 0.5}, {"deviation": 0.0}],
    "feedback": [{"policies": 8}, {"rollout": 0}, {"spread": 0.0}],
}


def test_invalid_options_are_refused_by_name() -> None:
    for name, several in NONSENSE.items():
        for options in several:
            with pytest.raises(ValueError, match=next(iter(options))):
                KNOWN[name](**options)


class Undecided(KNOWN["mcts"]):  # type: ignore[misc]
    """A planner that finds out in the model that it cannot plan."""

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        for _ in range(1000):
            model.stand(0)
            model.step(0)
        raise Unsuited("is not for this planner")


def test_steps_of_a_decision_leave_out_those_of_unsuited_planners() -> None:
    model = line(KNOWN["mcts"])
    decider = Decider([Undecided(), KNOWN["mcts"](simulations=5)], model, seed=0)
    decider.plan([Moment(0, 0, 0, 5)])
    assert decider.passed_over == ["is not for this planner"]
    assert 0 < sum(decider.steps) <= model.counter[0] - 1000


@EVERY
@pytest.mark.parametrize("horizon", [1, 2, 9])
def test_plans_have_existing_actions_within_the_horizon(
    planner: type[Planner], horizon: int
) -> None:
    model, made = line(planner), planner()
    [plan] = made.plan(model, [at(0 if model.action_space is FEW else 0.0, horizon)])
    assert 1 <= len(plan) <= horizon
    assert np.shape(plan[0]) == model.action_space.shape
    assert np.all(np.abs(plan) <= 1)
    assert np.all(np.ravel(plan[0])[:1] > 0.3), "the direction with reward"


@pytest.mark.slow
@EVERY
def test_equal_seeds_give_equal_plans_in_any_group(planner: type[Planner]) -> None:
    def plans(*seeds: int) -> list[str]:
        made, model = planner(), line(planner)
        situations = [at(0.5 * (seed % 2), seed=seed, horizon=5 + seed % 3) for seed in seeds]
        found = []
        for _ in range(2):
            found = [str(plan) for plan in made.plan(model, situations)]
            for situation in situations:
                vars(situation).pop("rng", None)
        return found

    assert plans(1, 2, 3, 4) == [*plans(1), *plans(2), *plans(3), *plans(4)]


def test_only_valid_actions_are_chosen() -> None:
    for name in serving(KNOWN, FEW):
        found = KNOWN[name]().plan(Line(FEW), [at(0, valid=(-1, 0)), at(0, valid=(-1,))])
        assert found == [[0], [-1]], name


MOVES = """
class Environment:
    def set_state(self, observation):
        self.place = observation

    def step(self, action):
        return self.place, float(action), False
"""

HEAD = """
from dataclasses import dataclass
from typing import ClassVar

from cwm_cli.planning import Planner

"""


def test_a_planner_of_a_plugin_plans_in_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = dedent((Planner.__doc__ or "").partition("next reward:\n\n")[2])
    (tmp_path / "greedy_plugin.py").write_text(HEAD + example)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    address = "greedy_plugin:Greedy"
    greedy = find_planner(address)
    assert greedy().plan(Line(FEW), [at(3), at(3, valid=(-1, 0))]) == [[1], [0]]
    assert greedy.rank(FEW, FEW) is None
    with Sandbox(Limits(wall_seconds=30)) as sandbox:
        sandbox.prepare(PlanningJob.handler, address)
        both = (space_of(spaces.Box(-9, 9, (1,))), FEW)
        with open_session(sandbox, MOVES, both, planners=[(address, {})]) as session:
            assert plan_at(session, np.zeros(1, np.float32)).actions == [1]


# Decisions of several episodes.


@dataclass(frozen=True)
class Counting(Planner):
    """Plays how often it has decided in an episode, up to a number of times."""

    NEEDS: ClassVar[str] = "discrete actions"
    most: int = 99

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        return action_space.kind == "discrete"

    def plan(self, model: Any, situations: Sequence[Situation]) -> list[list[Any]]:
        for situation in situations:
            situation.memory = (situation.memory or 0) + 1
        if any(situation.memory > self.most for situation in situations):
            raise Unsuited("cannot count any further")
        return [[situation.memory] for situation in situations]


def test_a_planner_is_found_by_its_address() -> None:
    assert find_planner(f"{__name__}:Counting") is Counting
    assert Counting.rank(FEW, FEW) is None


def test_memory_belongs_to_one_episode() -> None:
    decider = Decider([Counting()], Line(FEW), seed=0)

    def plan(*pairs: tuple[int, int]) -> list[int]:
        return [n for [n] in decider.plan([Moment(*pair, state=0, horizon=9) for pair in pairs])]

    assert plan((0, 0), (1, 0)) == [1, 1]
    assert plan((0, 1), (1, 1)) == [2, 2]
    assert plan((2, 0), (1, 2)) == [1, 3]  # one has ended, another began
    assert plan((2, 1), (1, 3)) == [2, 4]
    assert plan((1, 0)) == [1], "a repeated episode starts without memory"
    assert plan((0, 5)) == [1], "finished episodes are forgotten"


def test_the_next_planner_replaces_an_unsuited_one() -> None:
    decider = Decider([Counting(most=2), Counting(most=3)], Line(FEW), seed=0)
    moments = [Moment(0, number, 0, 9) for number in range(9)]
    assert [decider.plan([moment]) for moment in moments[:5]] == [[[n]] for n in (1, 2, 1, 2, 3)]
    assert decider.passed_over == ["cannot count any further"]
    with pytest.raises(Unsuited, match="cannot count any further"):
        decider.plan(moments[5:6])


def test_a_stochastic_model_is_seeded_for_each_decision() -> None:
    begun: list[Moment] = []
    decider = Decider([Counting()], Line(FEW), seed=0, begin=begun.append)
    moments = [Moment(number, 0, 0, 9) for number in range(3)]
    assert decider.plan(moments) == [[1]] * 3
    assert begun == moments
