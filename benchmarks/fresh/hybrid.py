"""Deterministic machines with modes, contacts and limits, observed as real numbers."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Floats = NDArray[np.float32]
StepResult = tuple[Floats, float, bool, bool, dict[str, Any]]


def _box(bounds: list[tuple[float, float]]) -> spaces.Space[Floats]:
    """Return a float32 box with one (low, high) pair per component."""
    low, high = np.array(bounds, dtype=np.float32).T
    return spaces.Box(low, high, dtype=np.float32)


def _pack(space: spaces.Space[Floats], values: list[float]) -> Floats:
    """Return the values as a float32 array inside the bounds of the space."""
    assert isinstance(space, spaces.Box)
    clipped: Floats = np.clip(np.array(values, dtype=np.float32), space.low, space.high)
    return clipped


class Drawbridge(gymnasium.Env[Floats, np.int64]):
    """A bridge leaf that a winch raises with an elastic rope.

    Observation (5 numbers):
        0. leaf angle above the road, in rad (0 is closed, about 1.3 is upright)
        1. angular rate of the leaf, in rad/s (positive opens the bridge)
        2. free length of the rope between tower and leaf, in m
        3. rope speed at the drum, in m/s (positive pays out)
        4. nose bolt: 1 if the bolt holds the closed leaf, 0 if it is withdrawn

    Actions: 0 brake the drum, 1 pay out rope, 2 haul slowly, 3 haul fast.

    The drum approaches the commanded speed at a limited acceleration; the brake acts faster.
    The rope runs from the tip of the leaf to the top of a tower above the hinge. It stretches
    like a spring and only pulls. If a hauling drum meets too much tension, its clutch slips and
    the rope runs out slowly. The drum stops at both ends of the rope.
    The weight of the leaf, reduced by a counterweight, closes the bridge; its torque shrinks as
    the leaf rises. The hinge has dry friction, and a rubber buffer pushes back near the upright
    position. A leaf that lands gently stays down, a faster one bounces, and a hard landing
    breaks the bridge and ends the episode with a penalty. If the leaf lies still on a slack
    rope, the nose bolt engages. The bolt holds the leaf until the tension is large enough.
    Motion of the drum costs energy. A bolted road earns a small toll and a high leaf earns
    more, because boats pass. A leaf that is almost upright and almost at rest lets the large
    ship pass: this pays a large bonus and ends the episode.
    """

    _LEAF_M = 8.9
    _TOWER_M = 7.3
    _DT_S = 0.26
    _DRUM_SPEEDS = (0.0, 1.12, -0.58, -1.34)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = _box([(0, 1.45), (-3, 3), (2.2, 12.4), (-1.5, 1.5), (0, 1)])
        self.action_space = spaces.Discrete(4)
        self.state: Floats = np.array([0, 0, 11, 0, 0], dtype=np.float32)

    def _distance(self, angle: float) -> float:
        """Return the distance in m between the tower top and the leaf tip."""
        product = 2 * self._LEAF_M * self._TOWER_M
        return math.sqrt(self._LEAF_M**2 + self._TOWER_M**2 - product * math.sin(angle))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start with a closed leaf or with a leaf that hangs on the rope."""
        super().reset(seed=seed)
        closed = self.np_random.random() < 0.58
        angle = 0.0 if closed else self.np_random.uniform(0.08, 1.08)
        rope = self._distance(angle) + self.np_random.uniform(-0.5, 0.6)
        rope = min(11.6, max(3.8, rope))
        rate = 0.0 if closed else self.np_random.uniform(-0.15, 0.15)
        bolt = 1.0 if closed and self.np_random.random() < 0.85 else 0.0
        self.state = _pack(self.observation_space, [angle, rate, rope, 0.0, bolt])
        return self.state.copy(), {}

    def _turn_drum(self, drum: float, rope: float, tension: float, action: int) -> list[float]:
        """Return the new rope length and drum speed."""
        change = 0.71 if action == 0 else 0.33
        drum += float(np.clip(self._DRUM_SPEEDS[action] - drum, -change, change))
        if tension > 13700.0 and drum < 0.0:
            drum = 0.11
        rope += drum * self._DT_S
        if rope < 3.74:
            rope, drum = 3.74, 0.0
        elif rope > 11.64:
            rope, drum = 11.64, 0.0
        return [rope, drum]

    def _swing(self, angle: float, rate: float, tension: float) -> tuple[float, float]:
        """Return the angle and rate of the free leaf after one time step."""
        arm = self._LEAF_M * self._TOWER_M * math.cos(angle) / self._distance(angle)
        torque = tension * arm - 51300.0 * math.cos(angle) - 9400.0 * rate
        if angle > 1.03:
            torque -= 187000.0 * (angle - 1.03)
        if abs(rate) < 0.009 and abs(torque) < 4100.0:
            return angle, 0.0
        friction = math.copysign(4100.0, rate if abs(rate) >= 0.009 else torque)
        rate += self._DT_S * (torque - friction) / 53600.0
        return angle + self._DT_S * rate, rate

    def step(self, action: np.int64) -> StepResult:
        """Advance the bridge by 0.26 seconds."""
        angle, rate, rope, drum, bolt = (float(value) for value in self.state)
        tension = 20600.0 * max(0.0, self._distance(angle) - rope)
        rope, drum = self._turn_drum(drum, rope, tension, int(action))
        reward, terminated = -0.07 * abs(drum), False
        if bolt > 0.5 and tension > 9870.0:
            bolt = 0.0
        if bolt > 0.5:
            angle, rate = 0.0, 0.0
            reward += 0.23
        else:
            angle, rate = self._swing(angle, rate, tension)
        if angle <= 0.0:
            landing, angle = -rate, 0.0
            if landing > 0.203:
                reward, terminated = reward - 22.0, True
            rate = 0.36 * landing if landing > 0.076 else 0.0
            if rate == 0.0 and tension == 0.0:
                bolt = 1.0
        elif angle > 1.04:
            reward += 0.64
        if angle > 1.12 and abs(rate) < 0.07:
            reward, terminated = reward + 26.0, True
        self.state = _pack(self.observation_space, [angle, rate, rope, drum, bolt])
        return self.state.copy(), reward, terminated, False, {}


class Airbrake(gymnasium.Env[Floats, np.int64]):
    """A goods train with a compressed-air brake that descends to a terminus.

    Observation (5 numbers):
        0. distance to the end of the track, in m
        1. speed, in m/s
        2. brake pipe pressure, in bar
        3. reservoir pressure, in bar
        4. brake cylinder pressure, in bar

    Actions: 0 charge the pipe, 1 lap (keep the pipe closed), 2 service brake (vent the pipe
    slowly), 3 emergency brake (vent the pipe fast).

    Air flows in proportion to the square root of the pressure difference that drives the flow.
    The closed pipe leaks slowly. A triple valve compares pipe and reservoir. If the pipe is
    clearly below the reservoir, the reservoir feeds the cylinder until both are equal. If the
    pipe is slightly above the reservoir, the cylinder vents to the outside and the pipe recharges
    the reservoir. Between these two thresholds the valve closes all ports.
    The cylinder presses the brake shoes. Friction of the shoes decreases with speed, according
    to a table. Too much cylinder pressure on a moving train locks the wheels, and locked wheels
    brake worse. The gradient depends on the section of the track. Rolling resistance grows with
    speed. A train at rest stays at rest while brakes and resistance can hold it.
    Speed earns a small reward and each second costs a little. Excessive speed derails the train
    and a fast arrival at the end of the track hits the buffers: both end the episode with a
    penalty. A slow arrival, or a stop within the platform before the end of the track, ends the
    episode with a bonus.
    """

    _SUPPLY_BAR = 5.17
    _SECTIONS_M = (127.0, 310.0, 720.0, 1150.0)
    _GRADES = (-0.0021, 0.0193, 0.0574, 0.0136, 0.0413)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = _box([(-40, 1700), (0, 30), (0, 5.3), (0, 5.3), (0, 5.3)])
        self.action_space = spaces.Discrete(4)
        self.state: Floats = np.array([900, 9, 5, 5, 0], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start somewhere on the descent with a partly charged brake."""
        super().reset(seed=seed)
        draw = self.np_random.uniform
        reservoir = draw(3.2, 5.0)
        pipe = min(5.0, max(1.0, reservoir + draw(-0.9, 0.4)))
        distance, speed = draw(300, 1600), draw(4, 18.5)
        if self.np_random.random() < 0.45:
            distance, speed = draw(45, 460), draw(1, 12)
        values = [distance, speed, pipe, reservoir, draw(0, 0.6 * reservoir)]
        self.state = _pack(self.observation_space, values)
        return self.state.copy(), {}

    def _set_pipe(self, pipe: float, action: int) -> float:
        """Return the pipe pressure after the driver's valve has acted."""
        if action == 0:
            return pipe + 0.47 * math.sqrt(max(0.0, self._SUPPLY_BAR - pipe))
        if action == 1:
            return pipe - 0.0064 * pipe
        if action == 2:
            return pipe - 0.083 * math.sqrt(pipe)
        return pipe - 0.31 * math.sqrt(pipe)

    @staticmethod
    def _triple_valve(pipe: float, reservoir: float, cylinder: float) -> list[float]:
        """Return the three pressures after the triple valve has acted."""
        difference = pipe - reservoir
        if difference < -0.17 and reservoir > cylinder:
            flow = 0.156 * math.sqrt(reservoir - cylinder)
            flow = min(flow, (reservoir - cylinder) / 3.7)
            return [pipe, reservoir - flow, cylinder + 2.7 * flow]
        if difference > 0.06:
            flow = min(0.213 * math.sqrt(difference), 0.6 * difference)
            cylinder -= 0.37 * math.sqrt(cylinder)
            return [pipe - 0.41 * flow, reservoir + flow, max(0.0, cylinder)]
        return [pipe, reservoir, cylinder]

    def _accelerate(self, distance: float, speed: float, cylinder: float) -> float:
        """Return the speed one second later."""
        section = sum(distance > edge for edge in self._SECTIONS_M)
        push = 9.81 * self._GRADES[section]
        friction = float(np.interp(speed, [0, 4.5, 11.0, 22.0], [0.298, 0.221, 0.164, 0.127]))
        if cylinder > 3.05 and speed > 2.2:
            friction = 0.083
        resistance = 0.0147 + 0.00018 * speed**2 + 0.68 * friction * cylinder
        if speed == 0.0 and push <= resistance:
            return 0.0
        return max(0.0, speed + push - resistance)

    def step(self, action: np.int64) -> StepResult:
        """Advance the train by one second."""
        distance, speed, pipe, reservoir, cylinder = (float(value) for value in self.state)
        pipe = max(0.0, self._set_pipe(pipe, int(action)))
        pipe, reservoir, cylinder = self._triple_valve(pipe, reservoir, cylinder)
        speed = self._accelerate(distance, speed, cylinder)
        distance -= speed
        reward, terminated = 0.043 * speed - 0.19, False
        if speed > 18.7:
            reward, terminated = reward - 33.0, True
        elif distance <= 0.0:
            if speed > 7.2:
                reward, terminated = reward - 2.6 * speed, True
            else:
                reward, terminated = reward + 29.0, True
        elif distance < 127.0 and speed == 0.0:
            reward, terminated = reward + 47.0, True
        self.state = _pack(self.observation_space, [distance, speed, pipe, reservoir, cylinder])
        return self.state.copy(), reward, terminated, False, {}


class Hydrofoil(gymnasium.Env[Floats, Floats]):
    """A boat that rises out of the water on a submerged wing.

    Observation (6 numbers):
        0. speed, in m/s
        1. height of the hull above its floating position, in m
        2. climb rate, in m/s
        3. propeller thrust, in kN
        4. ventilation: 1 if air has reached the wing, 0 if the wing is wet
        5. fuel, in kg

    Action (2 numbers): throttle from 0 to 1 and flap from -1 (down) to 1 (up).

    The thrust follows the throttle with a lag. Fuel consumption depends on the thrust through a
    table with linear pieces. Without fuel the thrust fades.
    The wing lifts in proportion to the square of the speed; the flap changes the lift. The hull
    has buoyancy that decreases with height and is zero once the hull is clear of the water. A
    wet hull also damps vertical motion and causes drag, which is much larger in a band of
    middle speeds because of the bow wave. The wing has drag that grows with its lift.
    If a fast boat brings the wing close to the surface, air reaches the wing and most of the
    lift is lost. The air stays until the wing is deep again or the boat is slow.
    A clear hull earns a reward that grows with speed. A hull that falls back into the water
    fast slams: this costs a penalty and part of the speed. If the hull rises so high that the
    wing leaves the water, the boat crashes; the episode ends with a penalty. The episode also
    ends if the tank is empty and the boat is slow.
    """

    _DT_S = 0.2
    _MASS_T = 3.42
    _CLEAR_M = 0.83

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = _box([(0, 25), (-1, 3), (-5, 5), (0, 12), (0, 1), (0, 6)])
        low = np.array([0.0, -1.0], dtype=np.float32)
        self.action_space = spaces.Box(low, np.ones(2, dtype=np.float32), dtype=np.float32)
        self.state: Floats = np.array([6, 0, 0, 4, 0, 4], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start slow on the hull or fast on the wing."""
        super().reset(seed=seed)
        draw = self.np_random.uniform
        if self.np_random.random() < 0.5:
            values = [draw(1, 9), draw(-0.1, 0.2), 0.0, draw(2, 9), 0.0, draw(0.2, 3.1)]
        else:
            values = [draw(9, 15), draw(0.4, 1.2), draw(-0.3, 0.3), draw(5, 11), 0, draw(0.2, 3.1)]
        self.state = _pack(self.observation_space, values)
        return self.state.copy(), {}

    @staticmethod
    def _run_engine(thrust: float, fuel: float, throttle: float) -> tuple[float, float]:
        """Return the new thrust in kN and the fuel left in kg."""
        if fuel <= 0.0:
            return 0.66 * thrust, 0.0
        thrust += 0.34 * (11.3 * throttle - thrust)
        burnt = float(np.interp(thrust, [0.0, 3.8, 8.1, 11.3], [0.0071, 0.0183, 0.0402, 0.0794]))
        return thrust, max(0.0, fuel - burnt)

    @staticmethod
    def _ventilate(speed: float, height: float, air: float) -> float:
        """Return 1 if the wing is ventilated in this step, else 0."""
        depth = 1.87 - height
        if air < 0.5 and depth < 0.44 and speed > 7.6:
            return 1.0
        if air > 0.5 and (depth > 1.03 or speed < 5.9):
            return 0.0
        return air

    def _forces(self, speed: float, height: float, flap: float, air: float) -> list[float]:
        """Return the vertical force, the drag (both kN) and the wet share of the hull."""
        coefficient = 0.39 + 0.17 * flap
        if air > 0.5:
            coefficient *= 0.37
        lift = 0.713 * coefficient * speed**2
        drag = 0.0124 * speed**2 * (1.0 + 5.2 * coefficient**2)
        wet = max(0.0, 1.0 - height / self._CLEAR_M)
        hull = 0.0552 * speed**2 * min(wet, 1.2)
        if wet > 0.0 and 4.8 < speed < 7.9:
            hull *= 1.58
        return [lift + 9.81 * self._MASS_T * (wet - 1.0), drag + hull, wet]

    def step(self, action: Floats) -> StepResult:
        """Advance the boat by a fifth of a second."""
        speed, height, climb, thrust, air, fuel = (float(value) for value in self.state)
        throttle = float(np.clip(action[0], 0.0, 1.0))
        flap = float(np.clip(action[1], -1.0, 1.0))
        thrust, fuel = self._run_engine(thrust, fuel, throttle)
        air = self._ventilate(speed, height, air)
        force, drag, wet = self._forces(speed, height, flap, air)
        speed = max(0.0, speed + self._DT_S * (thrust - drag) / self._MASS_T)
        damping = 2.9 if wet > 0.0 else 0.7
        climb += self._DT_S * (force / self._MASS_T - damping * climb)
        before, height = height, height + self._DT_S * climb
        reward, terminated = -1.9 * (float(self.state[5]) - fuel), False
        if height > self._CLEAR_M:
            reward += 0.062 * speed
        elif before > self._CLEAR_M and climb < -0.74:
            reward -= 5.3
            speed *= 0.78
            climb *= 0.45
        if height > 1.87:
            reward, terminated = reward - 19.0, True
        elif fuel == 0.0 and speed < 5.2:
            reward, terminated = reward - 7.0, True
        self.state = _pack(self.observation_space, [speed, height, climb, thrust, air, fuel])
        return self.state.copy(), reward, terminated, False, {}
