"""Which contract rows need: plain, chance or memory, found out from the rows."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from contract_systems import CHANCE, MEMORY, PLAIN, predictions, record
from cwm_cli.commands.synthesize import synthesize
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.finding import find_contract, reexamine
from cwm_cli.registry import environment
from random_steps import recorded, rows_of

NUMBER = space_of(gym.spaces.Discrete(12))
MOVES = space_of(gym.spaces.Discrete(2))


def made(name: str, seed: int = 0, **arguments: Any) -> Dataset:
    """Record an environment with arguments, `hide` and `noise` among them."""
    env = environment(name).make(**arguments)
    try:
        return rows_of(env, seed=seed)
    finally:
        env.close()


CERTAIN: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "MountainCar-v0": {},
    "MountainCarContinuous-v0": {},
    "Pendulum-v1": {},
    "Acrobot-v1": {},
    "InvertedPendulum-v5": {},
    "InvertedDoublePendulum-v5": {},
    "Swimmer-v5": {},
    "Reacher-v5": {},
    "Hopper-v5": {},
    "FrozenLake-v1": {"is_slippery": False},
    "CliffWalking-v1": {},
    "Taxi-v4": {},
}


@pytest.mark.slow
def test_environments_without_chance_and_all_seen_are_plain() -> None:
    found = {name: find_contract(made(name, **args)) for name, args in CERTAIN.items()}
    assert {name for name, each in found.items() if each.contract != "plain"} == set()


@pytest.mark.slow
def test_chance_in_finite_worlds_is_told_from_equal_situations() -> None:
    cases = {
        "FrozenLake-v1": {"is_slippery": True},
        "CliffWalking-v1": {"is_slippery": True},
        "Taxi-v4": {"is_rainy": True},
        "Blackjack-v1": {},
    }
    found = {name: find_contract(made(name, **args)) for name, args in cases.items()}
    assert {name: each.contract for name, each in found.items()} == dict.fromkeys(cases, "chance")
    lake = found["FrozenLake-v1"]
    assert lake.conflicts > 30 and lake.conflicting > 600
    assert f"{lake.conflicts} of {lake.repeated} pairs" in lake.words()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1"])
def test_hidden_velocities_are_memory(name: str) -> None:
    found = find_contract(made(name, hide="velocities"))
    assert found.contract == "memory" and re.match(r"component \d seen \d", found.told_by)
    assert found.told > 0.5 and found.p_value < 0.001


def test_noise_on_real_numbers_is_chance() -> None:
    cases = {
        "CartPole-v1": {"noise": {"force_mag": 1.0}},
        "Pendulum-v1": {"noise": {"action": 0.5}},
    }
    found = {name: find_contract(made(name, seed=3, **args)) for name, args in cases.items()}
    assert {each.contract for each in found.values()} == {"chance"}
    assert 2 in found["Pendulum-v1"].components
    assert "almost equal observation and action" in found["Pendulum-v1"].words()


def walk(rows: int, step: Callable[[list[tuple[int, int, float]], int, Any], Any]) -> Dataset:
    """Record what `step` makes of the history, an action and a generator, in episodes of 40."""
    rng = np.random.default_rng(0)

    def steps() -> Iterator[Transition]:
        for episode in range(rows // 40):
            history: list[tuple[int, int, float]] = []
            seen = int(rng.integers(3))
            for _ in range(40):
                action = int(rng.integers(2))
                after, reward = step([*history, (seen, action, 0.0)], action, rng)
                yield Transition(seen, action, after, reward, False, episode=episode)
                history.append((seen, action, reward))
                seen = after

    return recorded(NUMBER, MOVES, steps())


def test_memory_names_the_part_of_the_history_that_explains_outcomes() -> None:
    def sticky(history: list[Any], action: int, rng: Any) -> Any:
        done = history[-2][1] if len(history) > 1 else 0  # the previous action takes effect
        return (history[-1][0] + (1 if done else 11)) % 12, 0.0

    def third(history: list[Any], action: int, rng: Any) -> Any:
        return (history[-1][0] + 1 + action * (len(history) % 3 == 0)) % 12, 0.0

    def bell(history: list[Any], action: int, rng: Any) -> Any:
        rang = [place for place, each in enumerate(history[:-1]) if each[1] == 1][-1:]
        return (history[-1][0] + 1) % 12, float(bool(rang) and len(history) - 1 - rang[0] == 3)

    cases = {
        "the action 1 step earlier": sticky,
        "the number of steps modulo 3": third,
        "how many steps ago action 1 occurred": bell,
    }
    for words, world in cases.items():
        found = find_contract(walk(1200, world))
        assert (found.contract, found.told_by) == ("memory", words)
        assert found.told > 0.9 and words in found.words()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_deterministic_systems_are_plain(name: str) -> None:
    for rows in (600, 1500):
        found = find_contract(record(PLAIN[name], rows))
        assert found.contract == "plain", found.words()
    assert found.words() == "deterministic (no sign of randomness or hidden state in the data)"


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY)
def test_delays_lags_and_hidden_state_are_memory(name: str) -> None:
    found = find_contract(record(MEMORY[name], 1800))
    assert found.contract == "memory", found.words()
    assert found.p_value < 0.001 and found.tests > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANCE)
def test_random_systems_are_chance(name: str) -> None:
    found = find_contract(record(CHANCE[name], 1800))
    assert found.contract == "chance", found.words()


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_lag_of_an_action_is_named(steps: int) -> None:
    found = find_contract(record(MEMORY[f"delay of {steps}"]))
    plural = "s" if steps > 1 else ""
    assert found.told_by == f"the action {steps} step{plural} earlier" and found.told > 0.9
    assert f"after correction for {found.tests} tests" in found.words()


def test_names_of_components_replace_their_numbers() -> None:
    words = find_contract(record(MEMORY["filtered sensor"])).words(["Temperature"])
    assert words.startswith("Temperature seen 1 step earlier explains")


def pendulum_law(observation: Any, action: int) -> tuple[Any, float, bool]:
    """Predict a pendulum whose actions have no delay."""
    angle, speed = (float(each) for each in observation)
    speed += 0.15 * (action - 1) + 0.1 * np.sin(angle)
    angle += 0.1 * speed
    return (angle, speed), np.cos(angle), abs(angle) > 3


def spring_law(observation: Any, action: int) -> tuple[Any, float, bool]:
    """Predict a spring without random forces and without an end."""
    x, v = (float(each) for each in observation)
    v = 0.95 * v + 0.1 * (action - 1) - 0.1 * x
    x += 0.2 * v
    return (x, v), -x * x, False


def flight_law(observation: Any, action: int) -> tuple[Any, float, bool]:
    """Predict a ball that never meets a wall."""
    x, y, vx, vy = (float(each) for each in observation)
    vx, vy = vx + 0.2 * (action - 1), vy - 0.1
    x, y = x + 0.1 * vx, y + 0.1 * vy
    return (x, y, vx, vy), float(y > 0.8), False


def empty_law(observation: Any, action: int) -> tuple[Any, float, bool]:
    """Predict a grid without cargo."""
    x, y = (int(each) for each in observation)
    x = int(np.clip(x + (action == 0) - (action == 1), 0, 5))
    y = int(np.clip(y + (action == 2) - (action == 3), 0, 5))
    return (x, y), -0.01, False


@pytest.mark.slow
def test_errors_of_a_program_show_memory() -> None:
    for steps in (1, 2, 3):
        rows = record(MEMORY[f"delay of {steps}"], 1000)
        found = reexamine(rows, predictions(rows, pendulum_law), "plain")
        assert (found.contract, found.of_program) == ("memory", True)
        assert found.told_by.startswith(f"the action {steps} step")
        assert "of the errors of the program in rows with almost equal" in found.words()
    rows = record(MEMORY["hidden clock"], 1000)
    assert reexamine(rows, predictions(rows, spring_law), "plain").contract == "memory"
    rows = record(MEMORY["hidden cargo"])
    found = reexamine(rows, predictions(rows, empty_law), "plain")
    assert found.contract == "memory" and found.conflicts


@pytest.mark.slow
def test_errors_of_a_program_show_chance() -> None:
    for name in ("random force", "random reward"):
        rows = record(CHANCE[name])
        found = reexamine(rows, predictions(rows, spring_law), "plain")
        assert (found.contract, found.of_program) == ("chance", True), name


@pytest.mark.slow
def test_a_wrong_program_of_a_plain_environment_shows_neither() -> None:
    rows = record(PLAIN["bouncing ball"])
    assert reexamine(rows, predictions(rows, flight_law), "plain").contract == "plain"
    rows = record(PLAIN["rare zone"])
    assert reexamine(rows, wrong_in_a_zone(rows), "plain").contract == "plain"


def wrong_in_a_zone(rows: Dataset) -> dict[str, np.ndarray]:
    """Predict rows correctly, except that the first component is wrong in a ball."""
    columns = {n: c.copy() for n, c in rows.columns.items() if n in ANSWERS}
    inside = np.linalg.norm(rows.columns["observations"], axis=1) < 0.8
    columns["next_observations"][inside, 0] += 0.1
    return columns


ANSWERS = ("next_observations", "rewards", "terminations")


def test_a_correct_program_with_memory_does_not_make_its_environment_plain() -> None:
    rows = record(MEMORY["delay of 2"], 1000)
    right = {name: rows.columns[name] for name in ANSWERS}
    assert reexamine(rows, right, "plain").contract == "plain"
    assert reexamine(rows, right, "memory").contract == "memory"
    none = rows[np.arange(0)]
    assert reexamine(none, {name: none.columns[name] for name in ANSWERS}, "plain").rows == 0


def test_chance_that_does_not_depend_on_the_past_is_no_memory() -> None:
    def dice(history: list[Any], action: int, rng: Any) -> Any:
        return (history[-1][0] + int(rng.integers(1 + action, 4))) % 12, float(rng.random() < 0.2)

    found = find_contract(walk(2000, dice))
    assert (found.contract, found.told_by) == ("chance", "")


def test_no_rows_and_few_rows_are_plain() -> None:
    rows = made("CartPole-v1", hide="velocities")
    for count in (0, 1, 2, 20):
        assert find_contract(rows[np.arange(count)]).contract == "plain"


def test_episodes_of_one_step_have_no_history() -> None:
    rows = record(PLAIN["bouncing ball"]._replace(steps=1), 300)
    assert find_contract(rows).contract == "plain"


def test_a_search_says_which_contract_it_needs_and_keeps_it(tmp_path: Path) -> None:
    rows = made("FrozenLake-v1", is_slippery=True)
    rows.columns["split"][:] = rows.columns["episodes"] % 5 == 4
    rows.save(tmp_path / "rows.npz")
    program = tmp_path / "program.py"
    program.write_text(
        "class Environment:\n"
        "    def set_state(self, observation):\n        self.at = observation\n"
        "    def step(self, action):\n        return self.at, 0.0, False\n"
    )
    choices: dict[str, Any] = {
        "dataset": tmp_path / "rows.npz",
        "backend": "replay",
        "options": {"search.start": str(program)},
    }
    with pytest.raises(CwmError, match="unknown contract 'memry': did you mean memory"):
        synthesize("FrozenLake-v1", contract="memry", **choices)  # type: ignore[arg-type]


def recorded_level(sensor: float, process: float, *, counted: bool = False) -> Dataset:
    """Record a level that falls by a tenth, with noise of the sensor and of the process.

    A counted level is a whole number of twentieths.
    """
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(8):
        level, levels = rng.uniform(4, 8), []
        pump = np.repeat(rng.integers(0, 2, 20), 4)
        for on in pump:
            levels.append(level + sensor * rng.normal())
            level += 0.8 * on - 0.1 * level + process * rng.normal()
        rows.append((np.rint(20 * np.array(levels)) if counted else np.round(levels, 3), pump))
    before = np.concatenate([levels[:-1] for levels, _ in rows])[:, None]
    after = np.concatenate([levels[1:] for levels, _ in rows])[:, None]
    count = len(before)
    columns = {
        "observations": before,
        "next_observations": after,
        "actions": np.concatenate([pump[:-1] for _, pump in rows]),
        "rewards": np.zeros(count),
        "terminations": np.zeros(count, bool),
        "truncations": np.zeros(count, bool),
        "episodes": np.repeat(np.arange(8), 79),
        "split": np.zeros(count, np.int8),
    }
    return Dataset(columns, space_of(gym.spaces.Box(-400, 400, (1,), np.float64)), MOVES, {})


@pytest.mark.parametrize(
    ("sensor", "process", "contract"),
    [(0.0, 0.0, "plain"), (0.2, 0.0, "memory"), (0.0, 0.2, "chance")],
)
def test_sensor_noise_needs_memory_but_random_outcomes_do_not(
    sensor: float, process: float, contract: str
) -> None:
    found = find_contract(recorded_level(sensor, process))
    assert found.contract == contract
    assert ("sensor noise" in found.words(["level"])) == (sensor > 0)


@pytest.mark.parametrize(("counted", "contract"), [(True, "chance"), (False, "memory")])
def test_weak_sensor_noise_of_counts_needs_no_memory(counted: bool, contract: str) -> None:
    assert find_contract(recorded_level(0.16, 0.2, counted=counted)).contract == contract
