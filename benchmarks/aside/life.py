"""Living things: a fishery, a patient under an infusion and a greenhouse."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import Simulator, Vector, clamp, runge_kutta


class ReefFishery(Simulator):
    """A reef with a prey fish and its predator, of which a warden may take some.

    ## Action Space

    | Num | Action                     |
    |-----|----------------------------|
    | 0   | Leave the reef alone       |
    | 1   | Fish the prey              |
    | 2   | Cull the predators         |

    ## Observation Space

    | Num | Observation                | Min | Max |
    |-----|----------------------------|-----|-----|
    | 0   | Prey density (t/ha)        | 0   | Inf |
    | 1   | Predator density (t/ha)    | 0   | Inf |

    The reward is the catch, a cull costs 0.2 and a collapse 5. The episode ends when a species
    falls below its critical density.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.state: Vector = np.zeros(2)

    def _start(self) -> None:
        self.state = self.np_random.uniform((2.0, 0.8), (10.0, 3.5))

    def _advance(self, action: Any) -> tuple[float, bool]:
        fishing = 0.45 if action == 1 else 0.0
        culling = 0.6 if action == 2 else 0.0

        def slope(state: Vector) -> Vector:
            prey, predators = state
            eaten = 1.3 * prey * predators / (2.2 + prey)
            growth = 0.9 * prey * (1 - (prey / 11.5) ** 1.37)
            deaths = 0.31 * predators + 0.04 * predators**2
            return np.array(
                [
                    growth - eaten - fishing * prey,
                    0.55 * eaten - deaths - culling * predators,
                ]
            )

        caught = 0.25 * fishing * self.state[0]
        self.state = runge_kutta(slope, self.state, 0.25)
        collapsed = self.state[0] < 1.5 or self.state[1] < 0.75
        return caught - 0.2 * (action == 2) - 5.0 * collapsed, collapsed

    def _observe(self) -> Vector:
        return self.state.copy()


class Infusion(Simulator):
    """An anaesthetist chooses among five pump rates every half minute.

    The drug enters the blood, moves to and from the tissue, is cleared by the liver and acts at
    the brain with a delay. The observation holds the concentrations in blood, tissue and brain
    (mg/l) and the depth index, which falls from 97 as the concentration in the brain rises. A
    step with an index between 40 and 60 earns 1, others lose what the index is off by, in
    fiftieths. The episode ends when sleep is too deep (an index below 30) or the blood level
    toxic (above 9.5); that costs 10.
    """

    RATES = (0.0, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, np.array([np.inf] * 3 + [97.0]), dtype=np.float64)
        self.action_space = spaces.Discrete(5)
        self.state: Vector = np.zeros(3)

    def _start(self) -> None:
        self.state = self.np_random.uniform(0.0, (4.0, 1.5, 2.5))

    def _index(self) -> float:
        effect = self.state[2] ** 2.37
        return float(97.0 - 84.0 * effect / (effect + 3.4**2.37))

    def _advance(self, action: Any) -> tuple[float, bool]:
        rate = self.RATES[action]

        def slope(state: Vector) -> Vector:
            blood, tissue, brain = state
            return np.array(
                [
                    rate / 4.3 - 0.119 * blood - 0.112 * (blood - tissue),
                    0.055 * (blood - tissue),
                    0.456 * (blood - brain),
                ]
            )

        half = self.state + 0.25 * slope(self.state)
        self.state = self.state + 0.5 * slope(half)
        index = self._index()
        if index < 30.0 or self.state[0] > 9.5:
            return -10.0, True
        off = max(40.0 - index, index - 60.0)
        return (1.0 if off <= 0 else -off / 50.0), False

    def _observe(self) -> Vector:
        return np.append(self.state, self._index())


class Greenhouse(Simulator):
    """A tomato bed in a greenhouse, one hour a step.

    The grower may do nothing (0), water the bed (1), open or close the vent (2) or switch the
    lamp (3). Keys of the observation: `climate` has the air temperature in degrees, the moisture
    of the soil from 0 to 1 and the biomass in kg; `hour` is the hour of the day; `stage` is
    seedling, plant, flower or fruit; `switches` are the vent and the lamp. Growth follows light,
    moisture and a temperature near 23 degrees. Fruit ends the episode with 10, a bed gone dry
    with -5; the lamp costs 0.05 an hour and water 0.1.
    """

    STAGES = (0.55, 1.2, 2.1)

    def __init__(self) -> None:
        top = np.array([60.0, 1.0, np.inf], np.float32)
        self.observation_space = spaces.Dict(
            {
                "climate": spaces.Box(np.array([-10.0, 0.0, 0.0], np.float32), top),
                "hour": spaces.Discrete(24),
                "stage": spaces.Discrete(4),
                "switches": spaces.MultiBinary(2),
            }
        )
        self.action_space = spaces.Discrete(4)
        self.climate = (20.0, 0.5, 0.5)
        self.hour, self.stage, self.vent, self.lamp = 0, 0, 0, 0

    def _start(self) -> None:
        low, high = (12.0, 0.3, 0.3), (28.0, 0.9, 1.6)
        temperature, moisture, biomass = self.np_random.uniform(low, high).tolist()
        self.climate = (temperature, moisture, biomass)
        self.stage = sum(biomass >= mark for mark in self.STAGES)
        self.hour = int(self.np_random.integers(24))
        self.vent, self.lamp = (int(bit) for bit in self.np_random.integers(2, size=2))

    def _advance(self, action: Any) -> tuple[float, bool]:
        self.vent ^= int(action == 2)
        self.lamp ^= int(action == 3)
        temperature, moisture, biomass = self.climate
        light = 1.0 if 6 <= self.hour < 18 else 0.0
        outside = 13.0 + 7.5 * math.sin(2 * math.pi * (self.hour - 8) / 24)
        exchange = 0.34 if self.vent else 0.14
        warmth = math.exp(-(((temperature - 23.0) / 9.0) ** 2))
        growth = 0.085 * biomass**0.71 * moisture * warmth * max(light, 0.7 * self.lamp)
        drying = 0.0032 * max(temperature, 0.0) * moisture + 0.006 * self.vent
        temperature += exchange * (outside - temperature) + 1.9 * light + 1.3 * self.lamp
        moisture = clamp(moisture - drying + 0.22 * (action == 1), 0.0, 1.0)
        self.climate = (temperature, moisture, biomass + growth)
        self.hour = (self.hour + 1) % 24
        if self.stage < 3 and self.climate[2] >= self.STAGES[self.stage]:
            self.stage += 1
        fruit, dry = self.stage == 3, moisture < 0.16
        cost = 0.05 * self.lamp + 0.1 * (action == 1)
        return 10.0 * fruit - 5.0 * (dry and not fruit) - cost, fruit or dry

    def _observe(self) -> dict[str, Any]:
        return {
            "climate": np.array(self.climate, np.float32),
            "hour": self.hour,
            "stage": self.stage,
            "switches": np.array([self.vent, self.lamp], np.int8),
        }
