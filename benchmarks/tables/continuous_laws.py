"""Six systems with continuous states, deterministic apart from sensor noise."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from benchmarks.tables.recording import Array, Clock, Column, Law

GRAVITY = 9.81


def keep_or_choose(
    previous: float, choices: tuple[float, ...], change: float, rng: np.random.Generator
) -> float:
    """Return the previous choice, or a random one with probability `change`."""
    return float(rng.choice(choices)) if rng.random() < change else float(previous)


class Tank(Law):
    """An open tank with a valve at the inlet and a free outlet.

    The level rises with the inflow and falls with Torricelli's law; it is limited by
    the rim. With `delay`, the valve acts that number of steps later.
    """

    name = "tank"
    actions = (Column("inflow_valve", "label", labels=("closed", "low", "high")),)
    observations = (Column("level_m", decimals=4, noise=0.0137, lowest=0.0),)
    observed = (0,)
    smooth = (0,)
    clock = Clock("time", step=12.7, decimals=1)
    gaps = 4

    INFLOW_M3_S = np.array([0.0, 0.00473, 0.01172])
    AREA_M2, OUTLET_M2, RIM_M, STEP_S = 1.83, 0.00137, 1.93, 12.7

    def __init__(self, delay: int = 0) -> None:
        self.delay = delay
        self.warm_up = delay

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random levels and random valve positions in the delay line."""
        level = rng.uniform(0.31, 1.87, (n, 1))
        return np.hstack([level, rng.integers(0, 3, (n, self.delay))])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next levels and delay lines."""
        level = states[:, 0]
        valve = states[:, 1] if self.delay else np.full(len(states), action[0])
        inflow = self.INFLOW_M3_S[valve.astype(int)]
        outflow = self.OUTLET_M2 * np.sqrt(2 * GRAVITY * np.maximum(level, 0.0))
        following = level + self.STEP_S * (inflow - outflow) / self.AREA_M2
        line = np.roll(states[:, 1:], -1, axis=1)
        line[:, -1:] = action[0]
        return np.column_stack([np.clip(following, 0.0, self.RIM_M), line])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Change the valve at random, towards the middle of the tank."""
        if rng.random() > 0.14:
            return previous
        weights = [0.5, 0.3, 0.2] if recorded[0] > 1.4 else [0.15, 0.4, 0.45]
        return np.array([rng.choice(3, p=weights)], dtype=float)


class Thermostat(Law):
    """A room with a two-point heater controller; the heater state is not recorded.

    The heater starts below the set point minus the half band and stops above the set
    point plus the half band. Inside the band only the history reveals its state.
    """

    name = "thermostat"
    actions = (
        Column("setpoint", "label", labels=("low", "high")),
        Column("window_open", "boolean"),
    )
    observations = (Column("room_c", decimals=4, noise=0.118),)
    observed = (0,)
    smooth = (0,)
    clock = Clock("timestamp", step=180, start=datetime(2023, 11, 6, 6, 42))
    gaps = 5
    warm_up = 1

    SETPOINT_C = (17.3, 21.4)
    HALF_BAND_C, OUTDOOR_C, HEATING_C = 0.6347, 4.6, 0.457
    LOSS = (0.0153, 0.0413)

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random temperatures and heater states."""
        return np.column_stack([rng.uniform(15.8, 22.3, n), rng.integers(0, 2, n)])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next temperatures and heater states."""
        room, heater = states.T
        setpoint = self.SETPOINT_C[int(action[0])]
        heater = np.where(room < setpoint - self.HALF_BAND_C, 1.0, heater)
        heater = np.where(room > setpoint + self.HALF_BAND_C, 0.0, heater)
        loss = self.LOSS[int(action[1])]
        room = room + loss * (self.OUTDOOR_C - room) + self.HEATING_C * heater
        return np.column_stack([room, heater])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Change the set point rarely and open the window for short times."""
        setpoint = keep_or_choose(previous[0], (0.0, 1.0), 0.06, rng)
        window = rng.random() < (0.7 if previous[1] else 0.045)
        return np.array([setpoint, float(window)])


class Battery(Law):
    """A home battery with efficiencies, heating and three cut-offs."""

    name = "battery"
    actions = (Column("setpoint_kw", decimals=1),)
    observations = (
        Column("soc_pct", decimals=3, noise=0.43, lowest=0.0),
        Column("temp_c", decimals=3, noise=0.27),
        Column("power_kw", decimals=2, noise=0.046),
    )
    observed = (0, 1, 2)
    smooth = (0, 1, 2)
    reward_name = "reward"
    clock = Clock("time", step=300, start=datetime(2024, 3, 11, 0, 5))
    gaps = 4

    CAPACITY_KWH, HOURS = 13.7, 300 / 3600
    CHARGING, DISCHARGING = 0.948, 0.931
    LOW_PCT, HIGH_PCT, HOT_C = 8.7, 93.4, 41.3
    HEATING, COOLING, AMBIENT_C = 0.0213, 0.0417, 21.6
    PRICE_EUR_KWH, WEAR_EUR = 0.283, 0.00173
    MAX_KW = 7.3

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random charges and temperatures, with zero power."""
        return np.column_stack(
            [rng.uniform(23.0, 78.0, n), rng.uniform(20.0, 27.0, n), np.zeros(n)]
        )

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next charges, temperatures and delivered powers."""
        charge, temp, _ = states.T
        power = np.full(len(states), action[0])
        power[(charge >= self.HIGH_PCT) & (power > 0)] = 0.0
        power[(charge <= self.LOW_PCT) & (power < 0)] = 0.0
        power[temp >= self.HOT_C] = 0.0
        stored = np.where(power > 0, power * self.CHARGING, power / self.DISCHARGING)
        charge = charge + 100.0 * self.HOURS * stored / self.CAPACITY_KWH
        temp = temp + self.HEATING * power**2 - self.COOLING * (temp - self.AMBIENT_C)
        return np.column_stack([charge, temp, power])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold a random power for several steps, so that all cut-offs occur."""
        if rng.random() > 0.11:
            return previous
        if rng.random() < 0.35:
            return np.array([self.MAX_KW if recorded[0] < 50 else -self.MAX_KW])
        return np.array([np.round(rng.uniform(-self.MAX_KW, self.MAX_KW), 1)])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return the revenue of the delivered energy minus wear, in euros."""
        power = float(after[0, 2])
        return -power * self.HOURS * self.PRICE_EUR_KWH - self.WEAR_EUR * power**2


class PredatorPrey(Law):
    """Fish and their predators with logistic growth, saturation and harvest.

    Rosenzweig-MacArthur equations, integrated with four Euler steps a week.
    """

    name = "predator_prey"
    actions = (Column("harvest", decimals=2),)
    observations = (
        Column("prey_kt", decimals=4, noise=0.011, noise_relative=0.037, lowest=0.0),
        Column("predator_kt", decimals=4, noise=0.014, noise_relative=0.041, lowest=0.0),
    )
    observed = (0, 1)
    smooth = (0, 1)
    reward_name = "catch_value"
    done_name = "done"
    episode_name = "episode"
    episode_rows = 140
    clock = Clock("week", step=1, restarts=True)

    GROWTH, CAPACITY_KT, ATTACK, SATURATION = 0.314, 9.73, 0.213, 0.174
    CONVERSION, DEATH, SUBSTEPS = 0.432, 0.131, 4
    PRICE, EXTINCT_KT = 1.87, 0.23

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random stocks in thousand tonnes."""
        return np.column_stack([rng.uniform(0.7, 7.2, n), rng.uniform(0.5, 2.9, n)])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the stocks a week later."""
        prey, predator = np.maximum(states, 0.0).T
        size = 1.0 / self.SUBSTEPS
        for _ in range(self.SUBSTEPS):
            eaten = self.ATTACK * prey * predator / (1.0 + self.SATURATION * prey)
            growth = self.GROWTH * prey * (1.0 - prey / self.CAPACITY_KT)
            change = growth - eaten - action[0] * prey
            predator = predator + size * (self.CONVERSION * eaten - self.DEATH * predator)
            prey = np.maximum(prey + size * change, 0.0)
        return np.column_stack([prey, predator])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold one of three harvest rates for several weeks."""
        return np.array([keep_or_choose(previous[0], (0.0, 0.08, 0.23), 0.15, rng)])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return the value of the catch at the prey stock before the step."""
        return float(self.PRICE * action[0] * before[0, 0])

    def done(self, state: Array) -> bool:
        """Return whether the predators are extinct."""
        return bool(state[0, 1] < self.EXTINCT_KT)


class Vehicle(Law):
    """A car with five gears, drag, an engine map, a brake and a rev limiter.

    A gear change opens the clutch for one step. A shift down is refused if the engine
    would exceed its limit.
    """

    name = "vehicle"
    actions = (
        Column("throttle_pct", "integer"),
        Column("brake", "boolean", labels=("0", "1")),
        Column("shift", "label", labels=("down", "hold", "up")),
    )
    observations = (
        Column("speed_kmh", decimals=3, noise=0.57),
        Column("gear", "integer"),
        Column("rpm", "integer", noise=31.0),
    )
    smooth = (0,)
    episode_name = "trip"
    episode_rows = 180
    clock = Clock("t_s", step=1, restarts=True)
    actions_first = True

    RATIOS = np.array([3.615, 2.053, 1.393, 1.031, 0.837]) * 3.94
    WHEEL_M, MASS_KG, EFFICIENCY = 0.298, 1287.0, 0.913
    DRAG, ROLLING_N, BRAKE_N = 0.417, 164.0, 4130.0
    IDLE_RPM, LIMIT_RPM = 873.0, 6180.0

    def rpm(self, speed_kmh: Array, gear: Array) -> Array:
        """Return the engine speed; the clutch slips below the idle speed."""
        ratio = self.RATIOS[gear.astype(int) - 1]
        engine = speed_kmh / 3.6 / self.WHEEL_M * ratio * 60.0 / (2.0 * np.pi)
        return np.asarray(np.maximum(engine, self.IDLE_RPM))

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random speeds in km/h in second gear."""
        return np.column_stack([rng.uniform(0.0, 37.0, n), np.full(n, 2.0)])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the speeds and gears one second later."""
        speed, gear = states.T
        wanted = np.clip(gear + action[2] - 1.0, 1.0, 5.0)
        allowed = (wanted >= gear) | (self.rpm(speed, wanted) < self.LIMIT_RPM)
        following = np.where(allowed, wanted, gear)
        engine = self.rpm(speed, following)
        full = 41.3 + 0.0627 * engine - 9.3e-6 * engine**2
        drag_torque = 9.7 + 0.0041 * engine
        throttle = np.where(engine < self.LIMIT_RPM, action[0] / 100.0, 0.0)
        torque = throttle * full - (1.0 - throttle) * drag_torque
        ratio = self.RATIOS[following.astype(int) - 1]
        drive = np.where(following == gear, torque * ratio * self.EFFICIENCY / self.WHEEL_M, 0.0)
        metres = np.maximum(speed, 0.0) / 3.6
        force = drive - self.DRAG * metres**2 - self.ROLLING_N - self.BRAKE_N * action[1]
        return np.column_stack([3.6 * np.maximum(metres + force / self.MASS_KG, 0.0), following])

    def observe(self, states: Array) -> Array:
        """Return speed, gear and engine speed."""
        return np.column_stack([states, self.rpm(states[:, 0], states[:, 1])])

    def place(self, states: Array, observations: Array) -> Array:
        """Return states from the recorded speed and gear; the rpm follows from both."""
        return observations[:, :2].copy()

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Shift by engine speed most of the time; hold throttle and brake for a while."""
        throttle = keep_or_choose(previous[0], (0, 12, 27, 44, 63, 81, 100), 0.18, rng)
        brake = float(rng.random() < (0.72 if previous[1] else 0.04))
        shift = 1.0
        if recorded[2] > 3900 + 1500 * rng.random():
            shift = 2.0
        elif recorded[2] < 1500 * rng.random() and recorded[1] > 1:
            shift = 0.0
        if rng.random() < 0.06:
            shift = float(rng.integers(0, 3))
        return np.array([0.0 if brake else throttle, brake, shift])


class HeatExchanger(Law):
    """A heat exchanger whose sensor sits at the end of a pipe.

    The hot valve reaches the sensor after four steps; the pump acts without delay.
    """

    name = "heat_exchanger"
    actions = (
        Column("hot_valve_pct", "integer"),
        Column("pump", "label", labels=("low", "high")),
    )
    observations = (Column("outlet_c", decimals=3, noise=0.36),)
    observed = (0,)
    smooth = (0,)
    episode_name = "run"
    episode_rows = 250
    warm_up = 4

    DELAY = 4
    HOT_C, COLD_C, GAIN = 83.4, 14.7, 0.00131
    COOLING = (0.0523, 0.117)

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random outlet temperatures, with a closed valve in the delay line."""
        return np.hstack([rng.uniform(16.2, 44.0, (n, 1)), np.zeros((n, self.DELAY))])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next outlet temperatures and delay lines."""
        outlet, delayed = states[:, 0], states[:, 1]
        heating = self.GAIN * delayed * (self.HOT_C - outlet)
        cooling = self.COOLING[int(action[1])] * (outlet - self.COLD_C)
        line = np.column_stack([states[:, 2:], np.full(len(states), action[0])])
        return np.column_stack([outlet + heating - cooling, line])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold valve and pump for several steps each."""
        valve = keep_or_choose(previous[0], (0.0, 35.0, 70.0, 100.0), 0.17, rng)
        return np.array([valve, keep_or_choose(previous[1], (0.0, 1.0), 0.09, rng)])
