"""Laws of rounded and noisy recorded numbers."""

from typing import Any

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.attempts import held_back
from cwm_induction.effort import Effort
from cwm_induction.noisy import RecordedSeries, Writer, has_noise, induce
from cwm_induction.noisy.inducing import MAX_SOURCES, RecordedFindings, linear_law

Array = np.ndarray


def table(
    observations: list[Array], actions: list[Array], names: list[str], acted: list[list[str]]
) -> Dataset:
    """Return a dataset of recorded episodes, each with one more observation than actions."""
    before = np.concatenate([each[:-1] for each in observations])
    after = np.concatenate([each[1:] for each in observations])
    sizes = [len(each) for each in actions]
    high = before.max(axis=0) + 1
    space = Space(
        "box", "float64", high.shape, tuple((before.min(axis=0) - 1).tolist()), tuple(high.tolist())
    )
    count = len(before)
    columns = {
        "observations": before,
        "next_observations": after,
        "actions": np.concatenate(actions),
        "rewards": np.zeros(count),
        "terminations": np.zeros(count, bool),
        "truncations": np.zeros(count, bool),
        "episodes": np.repeat(np.arange(len(sizes)), sizes),
    }
    arguments = {"observed": [[name] for name in names], "acted": acted}
    metadata = {"env": "data/table", "env_args": arguments}
    return Dataset(columns, space, Space("discrete", low=(0,), high=(1,)), metadata)


def heated_room(noise: float, delay: int, seed: int = 0) -> Dataset:
    """Record a room that a heater warms some steps later, with a noisy thermometer."""
    rng = np.random.default_rng(seed)
    observations, actions = [], []
    for _ in range(10):
        on = np.repeat(rng.integers(0, 2, 20), 4)
        room = [rng.uniform(12, 22)]
        for step in range(len(on)):
            heat = 0.9 * on[max(0, step - delay)]
            room.append(room[-1] + heat - 0.05 * (room[-1] - 8.0))
        recorded = np.round(np.array(room) + noise * rng.normal(size=len(room)), 3)
        observations.append(recorded[:, None])
        actions.append(on)
    return table(observations, actions, ["room_c"], [["heater", "off", "on"]])


def program_of(data: Dataset, remembers: bool) -> str:
    """Induce a program from all rows."""
    series = RecordedSeries.of(data, ~held_back(data, 0))
    return Writer(induce(series, Effort(4000, 60), remembers)).text()


def errors_of(program: str, data: Dataset) -> Array:
    """Return the one-step errors of a program."""
    space: dict[str, Any] = {}
    exec(compile(program, "<program>", "exec"), space)
    environment = space["Environment"]()
    errors = []
    before, after = data.columns["observations"], data.columns["next_observations"]
    episodes = data.columns["episodes"]
    for row in range(len(data)):
        if not hasattr(environment, "correct"):
            environment.set_state(before[row])
        elif row == 0 or episodes[row] != episodes[row - 1]:
            environment.reset(before[row])
        else:
            environment.correct(before[row], 0.0)
        errors.append(environment.step(data.columns["actions"][row])[0] - after[row])
    return np.array(errors)


def test_only_coarsely_rounded_decimals_count_as_noisy() -> None:
    assert has_noise(heated_room(0.0, 0))
    exact = heated_room(0.0, 0)
    wide = {**exact.columns, "observations": exact.columns["observations"] * np.pi}
    assert not has_noise(Dataset(wide, exact.observation_space, exact.action_space, {}))


def test_rounded_data_give_a_plain_law_at_the_rounding_error() -> None:
    program = program_of(heated_room(0.0, 0), remembers=False)
    assert "correct" not in program
    assert "heater" in program
    assert errors_of(program, heated_room(0.0, 0, seed=1)).std() < 6e-4


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 2])
def test_noisy_data_give_an_observer_near_the_noise(delay: int) -> None:
    program = program_of(heated_room(0.3, delay), remembers=True)
    assert ("heater_2_ago" in program) == (delay == 2)
    errors = errors_of(program, heated_room(0.3, delay, seed=1))
    assert np.sqrt((errors**2).mean()) < 1.12 * 0.3


def reservoir(noise: float, seed: int = 0) -> Dataset:
    """Record a reservoir that a pump fills, and holds if it is almost full."""
    rng = np.random.default_rng(seed)
    observations, actions = [], []
    for _ in range(10):
        on = np.repeat(rng.integers(0, 2, 20), 4)
        level = [rng.uniform(2, 8)]
        for step in range(len(on)):
            is_full = on[step] and level[-1] >= 8.25
            level.append(level[-1] if is_full else 0.93 * level[-1] + 0.8 * on[step])
        recorded = np.round(np.array(level) + noise * rng.normal(size=len(level)), 3)
        observations.append(recorded[:, None])
        actions.append(on)
    return table(observations, actions, ["level_m"], [["pump", "off", "on"]])


def test_a_cut_off_is_found_with_its_threshold() -> None:
    errors = errors_of(program_of(reservoir(0.0), remembers=False), reservoir(0.0, seed=1))
    assert np.median(np.abs(errors)) < 6e-4
    assert np.mean(np.abs(errors) > 0.1) < 0.02


def thermostat(seed: int = 0) -> Dataset:
    """Record a room whose heater turns on below 17 and off above 20; the heater is hidden."""
    rng = np.random.default_rng(seed)
    observations, actions = [], []
    for _ in range(8):
        window = np.repeat(rng.integers(0, 2, 20), 4)
        room, heater = [rng.uniform(17, 20)], 0.0
        for step in range(len(window)):
            heater = 1.0 if room[-1] < 17 else 0.0 if room[-1] > 20 else heater
            loss = (0.03 + 0.02 * window[step]) * (room[-1] - 8.0)
            room.append(room[-1] + 0.9 * heater - loss)
        observations.append(np.round(np.array(room), 4)[:, None])
        actions.append(window)
    return table(observations, actions, ["room_c"], [["window", "closed", "open"]])


@pytest.mark.slow
def test_a_hidden_switch_is_found_with_its_thresholds() -> None:
    program = program_of(thermostat(), remembers=True)
    assert "ROOM_C_ON_BELOW = 17" in program or "ROOM_C_ON_BELOW = 16.9" in program
    errors = errors_of(program, thermostat(seed=1))
    assert np.median(np.abs(errors)) < 1e-3


def lamp(seed: int = 0) -> Dataset:
    """Record a heated room whose lamp has ten brightnesses without order, by temperature."""
    room = heated_room(0.0, 0, seed)
    before, after = (room.columns[name][:, 0] for name in ("observations", "next_observations"))
    levels = np.array([3.0, 9.0, 1.0, 7.0, 5.0, 0.0, 8.0, 2.0, 6.0, 4.0])
    shown = levels[np.clip(before.astype(int) - 9, 0, 9)]
    first = np.concatenate([[levels[0]], shown[:-1]])
    columns = {
        **room.columns,
        "observations": np.stack([before, first], axis=1),
        "next_observations": np.stack([after, shown], axis=1),
    }
    space = Space("box", "float64", (2,), (0.0, 0.0), (40.0, 10.0))
    table = {"observed": [["room_c"], ["brightness"]], "acted": [["heater", "off", "on"]]}
    return Dataset(columns, space, room.action_space, {"env_args": table})


def test_a_component_without_a_law_gets_a_tree_and_the_others_keep_their_laws() -> None:
    program = program_of(lamp(), remembers=False)
    assert "No law explains brightness: a regression tree of" in program
    assert "No law explains room_c" not in program
    errors = errors_of(program, lamp(seed=1))
    assert errors[:, 0].std() < 6e-4
    assert (np.abs(errors[:, 1]) < 0.5).mean() > 0.95


def test_few_whole_values_are_exact_numbers_instead_of_rounded_ones() -> None:
    room = heated_room(0.0, 0)
    gear = [2.0]
    for action in room.columns["actions"]:
        gear.append(float(np.clip(gear[-1] + (1 if action else -1), 1, 5)))
    columns = {
        **room.columns,
        "observations": np.column_stack([room.columns["observations"], gear[:-1]]),
        "next_observations": np.column_stack([room.columns["next_observations"], gear[1:]]),
    }
    space = Space("box", "float64", (2,), (0.0, 0.0), (40.0, 6.0))
    table = {"observed": [["room_c"], ["gear"]], "acted": [["shift", "down", "up"]]}
    data = Dataset(columns, space, room.action_space, {"env_args": table})
    assert np.abs(errors_of(program_of(data, remembers=False), data)[:, 1]).max() < 1e-6


def lagging_room(noise: float, pace: float = 0.0, window: int = 1, seed: int = 0) -> Dataset:
    """Record a room with a radiator that follows the heater slowly, or averages its last steps."""
    rng = np.random.default_rng(seed)
    observations, actions = [], []
    for _ in range(12):
        on = np.repeat(rng.integers(0, 2, 25), 4)
        room, radiator = [rng.uniform(12, 22)], float(on[0])
        for step in range(len(on)):
            mean = on[max(0, step - window + 1) : step + 1].mean()
            radiator = radiator + pace * (on[step] - radiator) if pace else mean
            room.append(room[-1] + 1.6 * radiator - 0.08 * (room[-1] - 8.0))
        recorded = np.round(np.array(room) + noise * rng.normal(size=len(room)), 3)
        observations.append(recorded[:, None])
        actions.append(on)
    return table(observations, actions, ["room_c"], [["heater", "off", "on"]])


LAGS: list[tuple[dict[str, Any], str]] = [
    ({"pace": 0.23}, "heater_lag_"),
    ({"window": 4}, "heater_mean_4"),
]


@pytest.mark.slow
@pytest.mark.parametrize("lag, name", LAGS)
def test_lags_and_moving_averages_of_actions_are_found(lag: dict[str, Any], name: str) -> None:
    program = program_of(lagging_room(0.0, **lag), remembers=True)
    assert name in program
    errors = errors_of(program, lagging_room(0.0, **lag, seed=1))
    assert np.sqrt((errors**2).mean()) < 6e-4


@pytest.mark.slow
@pytest.mark.parametrize("lag", [lag for lag, _ in LAGS])
def test_lags_are_found_behind_sensor_noise(lag: dict[str, Any]) -> None:
    errors = errors_of(
        program_of(lagging_room(0.2, **lag), remembers=True), lagging_room(0.2, **lag, seed=1)
    )
    assert np.sqrt((errors**2).mean()) < 1.12 * 0.2


@pytest.fixture(scope="module")
def ring() -> RecordedSeries:
    """Record forty rooms in a ring: each is warmed by the room before it, and by a switch."""
    rng = np.random.default_rng(0)
    observations, actions = [], []
    for _ in range(8):
        rooms, switch = [rng.normal(size=40)], rng.integers(0, 2, 50)
        for on in switch:
            rooms.append(0.9 * rooms[-1] + 0.3 * np.roll(rooms[-1], 1) + 0.1 * on)
        observations.append(np.round(np.array(rooms), 3))
        actions.append(switch)
    names = [f"room_{number}" for number in range(40)]
    data = table(observations, actions, names, [["switch", "off", "on"]])
    return RecordedSeries.of(data, ~held_back(data, 0))


def test_laws_of_many_components_read_the_correlated_ones(ring):
    found = RecordedFindings(ring, list(range(40)), remembers=False)
    for index, column in enumerate(ring.observed):
        found.estimates[index] = found.predicted[index] = column.values
    assert all((index - 1) % 40 in found.sources(index) for index in range(40))
    assert {len(found.sources(index)) for index in range(40)} == {MAX_SOURCES}
    law = linear_law(found, 7, Effort(4000, 60))
    assert found.target(7).typical_error(law) < 2e-3  # the changes are a hundred times larger


def test_laws_are_written_after_the_time_limit(ring):
    found = induce(ring, Effort(4000, 0.0), remembers=False)
    assert all(not law.size for law in found.laws.values())
    space: dict[str, Any] = {}
    exec(compile(Writer(found).text(), "<program>", "exec"), space)
    environment, rooms = space["Environment"](), np.arange(40.0) / 40
    environment.set_state(rooms)
    assert environment.step(0)[0] == pytest.approx(rooms)
