"""Four further simulated systems: a reactor, a car park, a greenhouse and a crane."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from benchmarks.tables.continuous_laws import keep_or_choose
from benchmarks.tables.random_laws import binomial
from benchmarks.tables.recording import Array, Clock, Column, Law


class Reactor(Law):
    """A stirred tank with a slow electric heater and a cold feed.

    The heat flow follows the selected power with a first-order lag and is not
    recorded. The feed replaces warm contents by cold liquid in the same step. Each
    batch starts with a cold heater.
    """

    name = "reactor"
    actions = (
        Column("heating", "label", labels=("off", "half", "full")),
        Column("feed_l_min", decimals=1),
    )
    observations = (Column("temp_c", decimals=4, noise=0.237),)
    observed = (0,)
    smooth = (0,)
    reward_name = "reward"
    episode_name = "batch"
    episode_rows = 230
    clock = Clock("minute", step=0.8, decimals=1, restarts=True)

    POWER_KW = (0.0, 6.37, 14.83)
    LAG, HEATING_C_KW = 0.183, 0.0713
    DILUTION_L, FEED_C, MAX_FEED_L_MIN = 0.00617, 11.36, 9.4
    LOSS, AMBIENT_C = 0.0213, 19.74
    TARGET_C, DEVIATION_COST, POWER_COST = 47.3, 0.00314, 0.0217

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random temperatures and zero heat flows in kW."""
        return np.column_stack([rng.uniform(13.2, 58.6, n), np.zeros(n)])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next temperatures and heat flows."""
        temp, heat = states.T
        heat = heat + self.LAG * (self.POWER_KW[int(action[0])] - heat)
        dilution = self.DILUTION_L * action[1] * (temp - self.FEED_C)
        loss = self.LOSS * (temp - self.AMBIENT_C)
        return np.column_stack([temp + self.HEATING_C_KW * heat - dilution - loss, heat])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold the power and the feed for several steps each."""
        feed = previous[1]
        if rng.random() < 0.13:
            closed = rng.random() < 0.37
            feed = 0.0 if closed else np.round(rng.uniform(0.3, self.MAX_FEED_L_MIN), 1)
        return np.array([keep_or_choose(previous[0], (0.0, 1.0, 2.0), 0.16, rng), feed])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return minus the cost of the deviation from the target and of the power."""
        deviation = float(after[0, 0]) - self.TARGET_C
        power = self.POWER_KW[int(action[0])]
        return -self.DEVIATION_COST * deviation**2 - self.POWER_COST * power


class Parking(Law):
    """A car park with random arrivals, random departures and a limited capacity.

    The sign at the street is open or closed; some drivers ignore a closed sign. The
    departures happen before the arrivals. The column `arrived` counts all cars at the
    gate, including cars that are rejected because the car park is full.
    """

    name = "parking"
    actions = (Column("sign", "label", labels=("closed", "open")),)
    observations = (
        Column("cars", "integer", noise=1.63, lowest=0.0),
        Column("arrived", "integer"),
    )
    observed = (0, 1)
    reward_name = "income_eur"
    clock = Clock("timestamp", step=300, start=datetime(2024, 9, 17, 5, 35))
    gaps = 4

    ARRIVALS = (1.274, 6.83)
    LEAVING, CAPACITY = 0.0637, 87.0
    FEE_EUR, FULL_EUR = 0.173, 4.86

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return partly filled car parks with no arrivals so far."""
        return np.column_stack([rng.integers(9, 64, n), np.zeros(n)]).astype(float)

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the numbers of parked cars and of arrived cars."""
        cars = np.minimum(states[:, 0], self.CAPACITY)
        stayed = cars - binomial(rng, cars, self.LEAVING)
        arrived = rng.poisson(self.ARRIVALS[int(action[0])], len(states)).astype(float)
        return np.column_stack([np.minimum(stayed + arrived, self.CAPACITY), arrived])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold the sign for a while; prefer "open" unless the car park is almost full."""
        if rng.random() > 0.083:
            return previous
        return np.array([float(rng.random() < (0.42 if recorded[0] > 79 else 0.74))])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return the fees of the parked cars minus the cost of a full car park."""
        full = float(after[0, 0] >= self.CAPACITY)
        return self.FEE_EUR * float(after[0, 0]) - self.FULL_EUR * full


class Greenhouse(Law):
    """A sunny greenhouse with a fan and a water sprayer.

    The fan cools with the mean air flow of the current and the two previous settings.
    It dries the air with the current setting only. The sprayer cools more in dry air,
    and plants transpire more in warm air.
    """

    name = "greenhouse"
    actions = (
        Column("fan", "label", labels=("off", "low", "high")),
        Column("sprayer", "boolean"),
    )
    observations = (
        Column("temp_c", decimals=4, noise=0.264),
        Column("humidity_pct", decimals=3, noise=0.87),
    )
    observed = (0, 1)
    smooth = (0, 1)
    clock = Clock("time", step=420, start=datetime(2023, 5, 23, 9, 14))
    gaps = 4
    warm_up = 2

    FLOW = np.array([0.0, 1.37, 3.18])
    SUN_C, WALL, VENTING = 0.613, 0.0217, 0.0329
    OUTDOOR_C, OUTDOOR_PCT = 13.74, 41.6
    SPRAY_COOLING, SPRAY_WETTING = 0.0124, 0.0783
    TRANSPIRATION, PLANT_C, LEAK, DRYING = 0.0847, 6.83, 0.0391, 0.0276

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random temperatures, humidities and two earlier fan settings."""
        air = np.column_stack([rng.uniform(16.4, 31.7, n), rng.uniform(48.0, 79.0, n)])
        return np.hstack([air, rng.integers(0, 3, (n, 2))])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next temperatures, humidities and earlier fan settings."""
        temp, humidity = states[:, 0], states[:, 1]
        flow = float(self.FLOW[int(action[0])])
        mean_flow = (self.FLOW[states[:, 2:].astype(int)].sum(axis=1) + flow) / 3.0
        dryness = action[1] * (100.0 - humidity)
        exchange = (self.WALL + self.VENTING * mean_flow) * (temp - self.OUTDOOR_C)
        wetting = self.SPRAY_WETTING * dryness + self.TRANSPIRATION * (temp - self.PLANT_C)
        drying = (self.LEAK + self.DRYING * flow) * (humidity - self.OUTDOOR_PCT)
        return np.column_stack(
            [
                temp + self.SUN_C - exchange - self.SPRAY_COOLING * dryness,
                humidity + wetting - drying,
                states[:, 3],
                np.full(len(states), action[0]),
            ]
        )

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Change the fan often, prefer more air in warm rows; spray for short times."""
        fan = previous[0]
        if rng.random() < 0.29:
            weights = [0.24, 0.35, 0.41] if recorded[0] > 27.3 else [0.47, 0.32, 0.21]
            fan = float(rng.choice(3, p=weights))
        spraying = 0.64 if previous[1] else (0.17 if recorded[1] < 71.0 else 0.04)
        return np.array([fan, float(rng.random() < spraying)])


class Crane(Law):
    """A trolley on a track with dry and viscous friction and a stop at both ends.

    Dry friction reduces the speed by a fixed amount per step, down to standstill. A
    trolley that would leave the track halts at its end with zero velocity.
    """

    name = "crane"
    actions = (Column("force_n", "integer"),)
    observations = (
        Column("position_m", decimals=4, noise=0.0372),
        Column("velocity_m_s", decimals=4, noise=0.0431),
    )
    observed = (0, 1)
    smooth = (0, 1)
    episode_name = "shift"
    episode_rows = 340
    clock = Clock("t_s", step=0.31, decimals=2, restarts=True)

    FORCES_N = (-743.0, -318.0, 0.0, 318.0, 743.0)
    MASS_KG, STEP_S, TRACK_M = 862.7, 0.31, 11.74
    DRY_M_S2, VISCOUS_PER_S = 0.1176, 0.1873

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random positions on the track and velocities in m/s."""
        return np.column_stack([rng.uniform(1.7, 9.8, n), rng.uniform(-0.63, 0.63, n)])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next positions and velocities."""
        position = np.clip(states[:, 0], 0.0, self.TRACK_M)
        velocity = states[:, 1]
        acceleration = action[0] / self.MASS_KG - self.VISCOUS_PER_S * velocity
        driven = velocity + self.STEP_S * acceleration
        speed = np.maximum(np.abs(driven) - self.STEP_S * self.DRY_M_S2, 0.0)
        velocity = np.sign(driven) * speed
        moved = position + self.STEP_S * velocity
        stopped = (moved < 0.0) | (moved > self.TRACK_M)
        return np.column_stack(
            [np.clip(moved, 0.0, self.TRACK_M), np.where(stopped, 0.0, velocity)]
        )

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold a random force for several steps; prefer forces towards the middle."""
        if rng.random() > 0.23:
            return previous
        weights = np.array([0.17, 0.18, 0.3, 0.18, 0.17])
        ahead = recorded[0] + 1.3 * recorded[1]
        if ahead < 2.9:
            weights = np.array([0.08, 0.11, 0.23, 0.27, 0.31])
        elif ahead > self.TRACK_M - 2.9:
            weights = np.array([0.31, 0.27, 0.23, 0.11, 0.08])
        return np.array([float(rng.choice(self.FORCES_N, p=weights))])
