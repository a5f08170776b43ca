"""Six systems whose dynamics switch: friction, gears, valves, gates, slack ropes and bounces."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Info = dict[str, Any]


class Slab(gymnasium.Env[Floats, Floats]):
    """A stone slab that a winch drags over a floor through an elastic strap.

    The observation holds the slab's position (m), the slab's velocity (m/s) and the position of
    the winch hook (m). The action between -1 and 1 is the speed of the hook as a share of its
    maximum. The strap acts as a spring in both directions around its natural length. The floor
    has static and kinetic friction: a slab at rest stays at rest until the spring force exceeds
    the static limit, and a slab whose motion would reverse stops first. The floor is rough at
    the start and oiled from 2.2 m on. Each step costs a little, and large commands cost more.
    The episode ends with a prize when the slab rests between 3.0 m and 3.3 m, and with a
    penalty when the strap is stretched or compressed too far.
    """

    mass, stiffness, length, hook_speed, dt = 3.2, 38.0, 0.4, 0.87, 0.1
    rough, oiled = (9.5, 6.1), (4.4, 2.3)

    def __init__(self) -> None:
        """Declare the spaces."""
        low, high = [-1.0, -6.0, -1.0], [6.0, 6.0, 6.0]
        self.observation_space = Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.state: Floats = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start with a slab at rest and an almost relaxed strap."""
        super().reset(seed=seed)
        slab = self.np_random.uniform(0.3, 2.9)
        hook = slab + self.length + self.np_random.uniform(-0.2, 0.2)
        self.state = np.array([slab, 0.0, hook], np.float32)
        return self.state.copy(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        """Move the hook, then apply the spring force and friction to the slab."""
        slab, velocity, hook = self.state.tolist()
        command = float(np.clip(action[0], -1.0, 1.0))
        hook = min(max(hook + self.dt * self.hook_speed * command, -1.0), 6.0)
        stretch = hook - slab - self.length
        force = self.stiffness * stretch
        static, kinetic = self.oiled if slab >= 2.2 else self.rough
        if velocity != 0.0 or abs(force) > static:
            direction = math.copysign(1.0, velocity if velocity != 0.0 else force)
            moved = velocity + self.dt * (force - direction * kinetic) / self.mass
            velocity = moved if moved * direction > 0.0 else 0.0
        velocity = min(max(velocity, -6.0), 6.0)
        slab = min(max(slab + self.dt * velocity, -1.0), 6.0)
        self.state = np.array([slab, velocity, hook], np.float32)
        reward = -0.05 - 0.04 * command**2
        broken = abs(stretch) > 0.38
        placed = velocity == 0.0 and 3.0 <= slab <= 3.3
        reward += -5.0 if broken else 10.0 if placed else 0.0
        return self.state.copy(), reward, broken or placed, False, {}


class Lorry(gymnasium.Env[Floats, np.int64]):
    """A loaded lorry with four gears on a road with a climb.

    The observation holds the position (m), the speed (m/s), the gear (1 to 4) and the fuel (l).
    The actions are 0 coast, 1 half throttle, 2 full throttle, 3 shift up, 4 shift down and
    5 brake. The clutch is always closed, so the engine speed is the road speed times the ratio
    of the gear. The pull of the engine is largest at a middle engine speed, and a limiter cuts
    the pull at high engine speed. Without throttle the engine brakes. The lorry coasts without
    engine braking while it shifts, and the gearbox refuses shifts that would bring the engine
    outside its range. The road is flat until 300 m, climbs until 700 m and then descends gently.
    In first gear the clutch slips at low speed; in higher gears the engine stalls there, which
    ends the episode with a penalty. The episode also ends at 1,150 m with a prize and when the
    tank is empty. Time and fuel cost reward.
    """

    mass, torque, ratios = 9400.0, 395.0, (9.5, 5.2, 3.1, 2.0)
    slopes = ((300.0, 0.0), (700.0, 0.052), (math.inf, -0.013))

    def __init__(self) -> None:
        """Declare the spaces."""
        low, high = [0.0, 0.0, 1.0, 0.0], [1300.0, 40.0, 4.0, 1.5]
        self.observation_space = Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = Discrete(6)
        self.state: Floats = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start anywhere before the descent's end, in a gear that fits the speed."""
        super().reset(seed=seed)
        position, speed = self.np_random.uniform([0.0, 2.5], [950.0, 13.0])
        gear = 1 + sum(speed * ratio > 31.0 for ratio in self.ratios[:3])
        fuel = self.np_random.uniform(0.15, 1.0)
        self.state = np.array([position, speed, gear, fuel], np.float32)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, Info]:
        """Shift, or drive for one second."""
        position, speed, shown_gear, fuel = self.state.tolist()
        gear, choice = int(shown_gear), int(action)
        ratio = self.ratios[gear - 1]
        engine = max(speed * ratio, 11.0) if gear == 1 else speed * ratio
        force, burnt = 0.0, 0.0006
        if choice in (3, 4):
            other = gear + (1 if choice == 3 else -1)
            if 1 <= other <= 4 and 12.0 <= speed * self.ratios[other - 1] <= 41.0:
                gear = other
        elif choice in (1, 2):
            throttle = 0.5 * choice
            bulge = max(1.0 - ((engine - 24.0) / 25.0) ** 2, 0.0)
            force = 0.0 if engine > 38.0 else 2 * math.pi * ratio * self.torque * throttle * bulge
            burnt += 0.00055 * throttle * engine
        else:
            force = -16.0 * ratio * engine - (26000.0 if choice == 5 else 0.0)
        slope = next(rise for end, rise in self.slopes if position < end)
        force -= 9.81 * self.mass * (0.009 + slope) + 3.3 * speed**2
        speed = min(max(speed + force / self.mass, 0.0), 40.0)
        position = min(position + speed, 1300.0)
        fuel = max(fuel - burnt, 0.0)
        self.state = np.array([position, speed, gear, fuel], np.float32)
        stalled = gear > 1 and speed * self.ratios[gear - 1] < 10.5
        reward = -0.15 - 20.0 * burnt
        arrived = position >= 1150.0
        reward += 30.0 if arrived else -12.0 if stalled else -8.0 if fuel == 0.0 else 0.0
        return self.state.copy(), reward, arrived or stalled or fuel == 0.0, False, {}


class Autoclave(gymnasium.Env[Floats, Floats]):
    """A heated pressure vessel. A reagent in it turns into product and gas.

    The observation holds the temperature (deg C), the reagent (kg), the pressure (bar) and
    whether the relief valve is open (0 or 1). The actions are the jacket power between -1
    (cooling) and 1 (heating) and the feed between 0 and 1. Cold feed is refused when it would
    raise the reagent above 6 kg. Above 62 deg C the reagent reacts at a rate that grows with
    the temperature; the reaction releases heat and gas. The pressure follows the ideal gas law.
    The relief valve opens above 6.3 bar and closes below 4.9 bar; while open it lets gas out
    with the square root of the overpressure. The reward pays for product and charges for power,
    for feed and for an open valve. The episode ends with a penalty above 8.2 bar.
    """

    gas_constant, heat_of_reaction, yield_of_gas = 0.00131, 17.5, 2.6

    def __init__(self) -> None:
        """Declare the spaces."""
        low, high = [0.0, 0.0, 0.0, 0.0], [300.0, 6.0, 30.0, 1.0]
        self.observation_space = Box(np.array(low, np.float32), np.array(high, np.float32))
        actions = np.array([[-1.0, 0.0], [1.0, 1.0]], np.float32)
        self.action_space = Box(actions[0], actions[1])
        self.state: Floats = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start warm, with some reagent and the valve closed."""
        super().reset(seed=seed)
        state = self.np_random.uniform([35.0, 1.0, 1.5], [95.0, 5.0, 5.5])
        self.state = np.array([*state, 0.0], np.float32)
        return self.state.copy(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        """React, exchange heat, release gas and switch the valve."""
        temperature, reagent, pressure, valve = self.state.tolist()
        power = float(np.clip(action[0], -1.0, 1.0))
        feed = 0.45 * float(np.clip(action[1], 0.0, 1.0))
        gas = pressure / (self.gas_constant * (temperature + 273.15))
        product = 0.0
        if temperature > 62.0:
            product = min(0.021 * reagent * (1.0 + (temperature - 62.0) / 14.0), reagent)
        if reagent + feed > 6.0:
            feed = 0.0
        reagent = reagent - product + feed
        temperature += 4.2 * power + self.heat_of_reaction * product
        temperature -= 0.021 * (temperature - 18.0) + 5.5 * feed
        temperature = min(max(temperature, 0.0), 300.0)
        gas += self.yield_of_gas * product
        if valve == 1.0:
            gas -= 0.37 * math.sqrt(max(pressure - 1.0, 0.0))
        pressure = min(max(self.gas_constant * max(gas, 0.0) * (temperature + 273.15), 0.0), 30.0)
        opened = pressure > 6.3 or (valve == 1.0 and pressure >= 4.9)
        self.state = np.array([temperature, reagent, pressure, float(opened)], np.float32)
        burst = pressure > 8.2
        reward = 6.0 * product - 0.08 * abs(power) - 0.5 * feed - 0.4 * valve
        return self.state.copy(), reward - (25.0 if burst else 0.0), burst, False, {}


class Lock(gymnasium.Env[Floats, np.int64]):
    """A canal lock that lifts or lowers a boat between two pools.

    The observation holds the levels of the upper pool and of the chamber (m), the boat's place
    (0 lower pool, 1 chamber, 2 upper pool) and its destination (0 lower pool, 2 upper pool).
    The lower pool stays at 1 m. The actions are 0 wait, 1 open the upper valve, 2 open the lower
    valve, 3 sail up and 4 sail down. An open valve passes water with the square root of the
    level difference until the levels are equal; the upper pool is 7.5 times as large as the
    chamber. A brook feeds the upper pool up to its weir. The boat sails between the chamber and
    a pool only if their levels differ by less than 0.12 m. Time costs reward, water let into the
    lower pool costs more, and a strong current with the boat in the chamber is penalised. The
    episode ends with a prize at the destination and with a penalty when the upper pool is
    below 3.15 m.
    """

    flow, area, lower, weir, brook = 0.52, 7.5, 1.0, 3.85, 0.011

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(
            np.array([2.0, 0.5, 0.0, 0.0], np.float32), np.array([4.0, 4.0, 2.0, 2.0], np.float32)
        )
        self.action_space = Discrete(5)
        self.state: Floats = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start with a boat that is not yet at its destination."""
        super().reset(seed=seed)
        upper, chamber = self.np_random.uniform([3.35, 1.0], [3.85, 3.3])
        destination = 2 * int(self.np_random.integers(2))
        place = int(self.np_random.choice([1, 2 - destination]))
        self.state = np.array([upper, chamber, place, destination], np.float32)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, Info]:
        """Open a valve or sail."""
        upper, chamber, place, destination = self.state.tolist()
        reward = -0.1
        if action == 1:
            gap = upper - chamber
            moved = min(self.flow * math.sqrt(abs(gap)), abs(gap) * self.area / (1.0 + self.area))
            moved = math.copysign(moved, gap)
            chamber, upper = chamber + moved, upper - moved / self.area
            reward -= 0.8 if place == 1.0 and abs(moved) > 0.65 else 0.0
        elif action == 2:
            gap = chamber - self.lower
            moved = min(self.flow * math.sqrt(abs(gap)), abs(gap))
            chamber -= math.copysign(moved, gap)
            reward -= 0.35 * moved + (0.8 if place == 1.0 and moved > 0.65 else 0.0)
        elif action in (3, 4):
            target = min(max(place + (1.0 if action == 3 else -1.0), 0.0), 2.0)
            pool = upper if 2.0 in (place, target) else self.lower
            if target != place and abs(pool - chamber) < 0.12:
                place = target
            else:
                reward -= 0.3
        upper = min(upper + self.brook, self.weir)
        self.state = np.array([upper, chamber, place, destination], np.float32)
        arrived, aground = place == destination, upper < 3.15
        reward += 15.0 if arrived else -9.0 if aground else 0.0
        return self.state.copy(), reward, arrived or aground, False, {}


class Towboat(gymnasium.Env[Floats, Floats]):
    """A tug that tows a barge along a channel on a rope that can only pull.

    The observation holds the tug's position (m) and velocity (m/s) and the barge's position and
    velocity. The action between -1 and 1 is the tug's thrust; backward thrust is weaker. The
    rope pulls both vessels together when they are more than 8 m apart and is slack otherwise.
    Both vessels feel drag that grows with the square of the velocity. If the distance falls
    below 2.4 m, the vessels collide with little restitution, and the impact is penalised. The
    barge bounces softly off the quay at 0 m. The episode ends with a prize when the barge is
    between 30 m and 33 m at less than 0.35 m/s, and with a penalty when the rope tears or the
    barge passes 40 m. Thrust and time cost reward.
    """

    tug_mass, barge_mass, stiffness, length, dt = 13.5, 31.0, 6.6, 8.0, 0.5

    def __init__(self) -> None:
        """Declare the spaces."""
        self.high = np.array([70.0, 8.0, 70.0, 8.0], np.float32)
        self.low = np.array([-10.0, -8.0, -10.0, -8.0], np.float32)
        self.observation_space = Box(self.low, self.high)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.state: Floats = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start with the tug ahead of the barge and both vessels slow."""
        super().reset(seed=seed)
        barge = self.np_random.uniform(1.0, 29.0)
        gap, tug_speed, barge_speed = self.np_random.uniform([4.0, -0.3, -0.2], [8.5, 1.4, 1.1])
        self.state = np.array([barge + gap, tug_speed, barge, barge_speed], np.float32)
        return self.state.copy(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        """Integrate both vessels, then resolve collisions."""
        tug, tug_speed, barge, barge_speed = self.state.tolist()
        command = float(np.clip(action[0], -1.0, 1.0))
        thrust = command * (17.0 if command > 0.0 else 10.5)
        tension = max(self.stiffness * (tug - barge - self.length), 0.0)
        drag = 1.9 * tug_speed * abs(tug_speed)
        tug_speed += self.dt * (thrust - tension - drag) / self.tug_mass
        drag = 2.7 * barge_speed * abs(barge_speed)
        barge_speed += self.dt * (tension - drag) / self.barge_mass
        tug += self.dt * tug_speed
        barge += self.dt * barge_speed
        reward = -0.05 - 0.06 * command**2
        if tug - barge < 2.4 and barge_speed > tug_speed:
            closing = barge_speed - tug_speed
            impulse = 1.25 * closing * self.tug_mass * self.barge_mass
            impulse /= self.tug_mass + self.barge_mass
            tug_speed += impulse / self.tug_mass
            barge_speed -= impulse / self.barge_mass
            tug = barge + 2.4
            reward -= 1.5 * closing
        if barge < 0.0:
            barge, barge_speed = 0.0, max(-0.4 * barge_speed, barge_speed)
        values = np.array([tug, tug_speed, barge, barge_speed], np.float32)
        self.state = np.clip(values, self.low, self.high)
        torn, lost = tension > 21.0, barge > 40.0
        moored = 30.0 <= barge <= 33.0 and abs(barge_speed) < 0.35
        reward += -10.0 if torn or lost else 20.0 if moored else 0.0
        return self.state.copy(), reward, torn or lost or moored, False, {}


class Paddleball(gymnasium.Env[Floats, Floats]):
    """A ball that bounces between a moving paddle and a soft ceiling.

    The observation holds the ball's height (m), the ball's velocity (m/s, positive upwards) and
    the paddle's height (m). The action between -1 and 1 sets the paddle's velocity for one step;
    the paddle stays between 0 m and 0.6 m. The ball falls freely with a little drag. At the
    paddle it rebounds with restitution relative to the paddle's actual velocity, and at the
    ceiling at 2.3 m it loses more speed. The reward is one point when the ball turns from rising
    to falling between 1.25 m and 1.6 m without touching the ceiling. Ceiling contact and paddle
    motion cost a little. The episode ends with a penalty when a rebound is slower than 1.2 m/s.
    """

    gravity, drag, paddle_speed, ceiling, dt = 9.81, 0.037, 1.35, 2.3, 0.05

    def __init__(self) -> None:
        """Declare the spaces."""
        low, high = [0.0, -9.0, 0.0], [2.3, 9.0, 0.6]
        self.observation_space = Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.state: Floats = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start with the ball in the air."""
        super().reset(seed=seed)
        state = self.np_random.uniform([0.9, -1.5, 0.0], [1.9, 2.5, 0.6])
        self.state = np.array(state, np.float32)
        return self.state.copy(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        """Move the paddle and the ball, then resolve contacts."""
        height, velocity, paddle = self.state.tolist()
        command = float(np.clip(action[0], -1.0, 1.0))
        moved = min(max(paddle + self.dt * self.paddle_speed * command, 0.0), 0.6)
        paddle_velocity = (moved - paddle) / self.dt
        rising = velocity > 0.0
        velocity -= self.dt * (self.gravity + self.drag * velocity * abs(velocity))
        height += self.dt * velocity
        reward, dead = -0.02 * command**2, False
        if height <= moved and velocity < paddle_velocity:
            height = moved
            velocity = paddle_velocity + 0.79 * (paddle_velocity - velocity)
            dead = velocity < 1.2
            reward -= 3.0 if dead else 0.0
        elif height >= self.ceiling and velocity > 0.0:
            height, velocity = self.ceiling, -0.52 * velocity
            reward -= 0.4
        elif rising and velocity <= 0.0 and 1.25 <= height <= 1.6:
            reward += 1.0
        height, velocity = min(max(height, 0.0), 2.3), min(max(velocity, -9.0), 9.0)
        self.state = np.array([height, velocity, moved], np.float32)
        return self.state.copy(), reward, dead, False, {}
