"""Small systems whose contract is known, as generators, and simple laws that predict them.

A system receives a generator of random numbers. It yields its first observation, then for each
action the next observation, the reward and whether the episode ends.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.spec import space_of

Play = Generator[Any, Any, None]


class System(NamedTuple):
    """A system with its spaces and the length of its episodes."""

    play: Callable[[np.random.Generator], Play]
    observations: gym.Space[Any]
    actions: gym.Space[Any]
    steps: int = 100


def record(system: System, rows: int = 1500, seed: int = 0) -> Dataset:
    """Record random actions."""
    rng = np.random.default_rng([seed, 17])
    system.actions.seed(seed)

    def steps() -> Iterator[Transition]:
        total = episode = 0
        while total < rows:
            play = system.play(rng)
            observation = next(play)
            for _ in range(system.steps):
                action = system.actions.sample()
                after, reward, ended = play.send(action)
                yield Transition(
                    observation, action, after, float(reward), bool(ended), episode=episode
                )
                observation, total = after, total + 1
                if ended:
                    break
            episode += 1

    observations, actions = space_of(system.observations), space_of(system.actions)
    return Dataset.of(list(steps()), observation_space=observations, action_space=actions)


def predictions(rows: Dataset, law: Callable[[Any, Any], tuple[Any, float, bool]]) -> Columns:
    """Predict each row by a law of the observation and the action."""
    every = [law(row.observation, row.action) for row in rows]
    return {
        "next_observations": np.array([after for after, _, _ in every]),
        "rewards": np.array([float(reward) for _, reward, _ in every]),
        "terminations": np.array([bool(ended) for _, _, ended in every]),
    }


def real(count: int) -> gym.Space[Any]:
    """Return the space of real observations."""
    return gym.spaces.Box(-np.inf, np.inf, (count,), np.float32)


def seen(*values: float) -> np.ndarray:
    """Return a real observation."""
    return np.array(values, np.float32)


ONE = gym.spaces.Box(-1, 1, (1,), np.float32)
MOVES = gym.spaces.Discrete(3)


def logistic(rng: np.random.Generator) -> Play:
    x = rng.uniform(0.1, 0.9)
    action = yield seen(x)
    while True:
        x = (3.9 if action else 3.7) * x * (1 - x)
        action = yield seen(x), float(x > 0.9), False


def bounce(rng: np.random.Generator) -> Play:
    place, speed = rng.uniform(0, 1, 2), rng.uniform(-1, 1, 2)
    action = yield seen(*place, *speed)
    while True:
        speed += (0.2 * (action - 1), -0.1)
        place += 0.1 * speed
        speed = np.where((place < 0) | (place > 1), -0.8 * speed, speed)
        place = np.where(place < 0, -place, np.where(place > 1, 2 - place, place))
        action = yield seen(*place, *speed), float(place[1] > 0.8), False


def wrapped(rng: np.random.Generator) -> Play:
    x, y = rng.uniform(0, 1, 2)
    action = yield seen(x, y)
    while True:
        y = (y + 0.4 * np.sin(2 * np.pi * x) + 0.1 * action) % 1
        x = (x + y) % 1
        action = yield seen(x, y), 0.0, False


def steep(rng: np.random.Generator) -> Play:
    x, y = rng.uniform(-1, 1, 2)
    action = yield seen(x, y)
    while True:
        x, y = np.tanh(20 * np.sin(5 * x + y)), 0.7 * y + 0.5 * np.sin(9 * x) + 0.2 * action
        action = yield seen(x, y), float(x * y > 0), False


def rare_zone(rng: np.random.Generator) -> Play:
    s = rng.uniform(-1, 1, 3)
    action = yield seen(*s)
    while True:
        s = 0.9 * s + 0.3 * np.array([action - 1, s[0] * s[2], np.sin(3 * s[1])])
        inside = bool((np.abs(s - 0.5) < 0.15).all())
        action = yield seen(*s), 5.0 * inside, inside


def walled_grid(rng: np.random.Generator) -> Play:
    x, y, key = rng.integers(12), rng.integers(12), 0
    action = yield np.array([x, y, key])
    while True:
        to = (x + (action == 0) - (action == 1), y + (action == 2) - (action == 3))
        if 0 <= to[0] < 12 and 0 <= to[1] < 12 and (to[0] != 5 or to[1] == 6):
            x, y = to
        key |= int((x, y) == (2, 2) and action == 4)
        action = yield np.array([x, y, key]), float(key and x > 9), bool(key and x > 9)


def delayed(steps: int) -> Callable[[np.random.Generator], Play]:
    def play(rng: np.random.Generator) -> Play:
        angle, speed, queue = rng.uniform(-1, 1), rng.uniform(-0.5, 0.5), [1] * steps
        action = yield seen(angle, speed)
        while True:
            queue.append(action)
            speed += 0.15 * (queue.pop(0) - 1) + 0.1 * np.sin(angle)
            angle += 0.1 * speed
            action = yield seen(angle, speed), np.cos(angle), abs(angle) > 3

    return play


def delayed_force(rng: np.random.Generator) -> Play:
    x, v, queue = *rng.uniform(-1, 1, 2), [0.0, 0.0]
    action = yield seen(x, v)
    while True:
        queue.append(float(action[0]))
        v = 0.95 * v + 0.2 * queue.pop(0) - 0.1 * x
        x += 0.1 * v
        action = yield seen(x, v), -x * x, False


def delayed_grid(rng: np.random.Generator) -> Play:
    x, y, queue = *rng.integers(0, 8, 2), [0, 0, 0]
    action = yield np.array([x, y])
    while True:
        queue.append(action)
        used = queue.pop(0)
        x = int(np.clip(x + (used == 0) - (used == 1), 0, 7))
        y = int(np.clip(y + (used == 2) - (used == 3), 0, 7))
        action = yield np.array([x, y]), float(x == y == 7), False


def lagging_sensor(rng: np.random.Generator) -> Play:
    x, v = rng.uniform(-1, 1, 2)
    action = yield seen(x, v)
    while True:
        shown = x
        x += 0.2 * v
        v = 0.95 * v + 0.1 * (action - 1) - 0.1 * x
        action = yield seen(shown, v), -(shown**2), False


def filtered_sensor(rng: np.random.Generator) -> Play:
    heat = shown = rng.uniform(15, 25)
    action = yield seen(shown)
    while True:
        heat += 0.8 * (action - 1) - 0.05 * (heat - 20)
        shown += 0.3 * (heat - shown)
        action = yield seen(shown), -abs(shown - 20), False


def hidden_cargo(rng: np.random.Generator) -> Play:
    x, y, loaded = *rng.integers(0, 6, 2), False
    action = yield np.array([x, y])
    while True:
        x = int(np.clip(x + (action == 0) - (action == 1), 0, 5))
        y = int(np.clip(y + (action == 2) - (action == 3), 0, 5))
        reward = -0.01
        if action == 4 and x == 0:
            loaded = True
        elif action == 4 and x >= 4 and loaded:
            loaded, reward = False, 1.0
        action = yield np.array([x, y]), reward, False


def hidden_mode(rng: np.random.Generator) -> Play:
    x, v, sign = *rng.uniform(-1, 1, 2), 1
    action = yield seen(x, v)
    while True:
        sign = -sign if action == 3 else sign
        v += 0.15 * (action - 1) * sign if action < 3 else 0
        v = 0.95 * v - 0.05 * x
        x += 0.1 * v
        action = yield seen(x, v), -x * x, False


def timed_wind(rng: np.random.Generator) -> Play:
    x, v, time = *rng.uniform(-1, 1, 2), 0
    action = yield seen(x, v)
    while True:
        time += 1
        v = 0.9 * v + 0.1 * (action - 1) - 0.1 * x + 0.15 * (time % 10 < 3)
        x += 0.1 * v
        action = yield seen(x, v), 0.0, False


def alternating(rng: np.random.Generator) -> Play:
    x, time = int(rng.integers(9)), 0
    action = yield x
    while True:
        time += 1
        x = (x + 1 + action * (time % 2)) % 9
        action = yield x, float(x == 0), False


def delayed_reward(rng: np.random.Generator) -> Play:
    x, v, last = *rng.uniform(-1, 1, 2), 0.0
    action = yield seen(x, v)
    while True:
        force = float(action[0])
        v = 0.95 * v + 0.2 * force - 0.1 * x
        x += 0.1 * v
        reward, last = -x * x - last * last, force
        action = yield seen(x, v), reward, False


def counted_reward(rng: np.random.Generator) -> Play:
    x, count = int(rng.integers(10)), 0
    action = yield x
    while True:
        x, count = int(np.clip(x + action - 1, 0, 9)), count + (action == 1)
        reward = float(count >= 4 and x == 0)
        count = 0 if reward else count
        action = yield x, reward, False


def hidden_clock(rng: np.random.Generator) -> Play:
    x, v, time = *rng.uniform(-1, 1, 2), 0
    action = yield seen(x, v)
    while True:
        v = 0.95 * v + 0.1 * (action - 1) - 0.1 * x
        x, time = x + 0.2 * v, time + 1
        action = yield seen(x, v), 1.0, time >= 40


def hidden_stock(rng: np.random.Generator) -> Play:
    level, heat, stock = rng.uniform(0, 1), rng.uniform(0, 1), 0
    action = yield seen(level, heat)
    while True:
        heat, reward = 0.9 * heat + 0.07 * action, 0.0
        stock = min(3, stock + (action == 0))
        if action == 2 and stock:
            stock, level, reward = stock - 1, level + 0.2, 1.0
        level *= 0.92
        action = yield seen(level, heat), reward, False


def random_force(rng: np.random.Generator) -> Play:
    x, v = rng.uniform(-1, 1, 2)
    action = yield seen(x, v)
    while True:
        v = 0.95 * v + 0.1 * (action - 1) - 0.1 * x + rng.normal(0, 0.03)
        x += 0.2 * v
        action = yield seen(x, v), -x * x, False


def random_gust(rng: np.random.Generator) -> Play:
    s = rng.uniform(-1, 1, 3)
    action = yield seen(*s)
    while True:
        gust = 0.3 * (rng.random() < 0.3)
        s = 0.9 * s + (0.2 * float(action[0]) + gust, 0.2 * np.sin(2 * s[0]), 0.1 * s[1])
        action = yield seen(*s), -abs(s[0]), False


def random_reward(rng: np.random.Generator) -> Play:
    x, v = rng.uniform(-1, 1, 2)
    action = yield seen(x, v)
    while True:
        v = 0.95 * v + 0.1 * (action - 1) - 0.1 * x
        x += 0.2 * v
        action = yield seen(x, v), float(rng.random() < 0.3), False


def dice(rng: np.random.Generator) -> Play:
    total = 0
    action = yield total
    while True:
        reward = total / 20 if action == 1 else 0.0
        total = 0 if action == 1 else min(20, total + int(rng.integers(1, 7)))
        action = yield total, reward, total == 20


GRID = gym.spaces.MultiDiscrete([8, 8])

PLAIN = {
    "logistic map": System(logistic, real(1), gym.spaces.Discrete(2)),
    "bouncing ball": System(bounce, real(4), MOVES),
    "wrapped chaotic map": System(wrapped, real(2), gym.spaces.Discrete(2)),
    "steep law": System(steep, real(2), gym.spaces.Discrete(2)),
    "rare zone": System(rare_zone, real(3), MOVES, 50),
    "grid with a wall": System(
        walled_grid, gym.spaces.MultiDiscrete([12, 12, 2]), gym.spaces.Discrete(5)
    ),
}

MEMORY = {
    "delay of 1": System(delayed(1), real(2), MOVES),
    "delay of 2": System(delayed(2), real(2), MOVES),
    "delay of 3": System(delayed(3), real(2), MOVES),
    "delayed force": System(delayed_force, real(2), ONE),
    "delayed grid": System(delayed_grid, GRID, gym.spaces.Discrete(4), 50),
    "lagging sensor": System(lagging_sensor, real(2), MOVES),
    "filtered sensor": System(filtered_sensor, real(1), MOVES),
    "hidden cargo": System(
        hidden_cargo, gym.spaces.MultiDiscrete([6, 6]), gym.spaces.Discrete(5), 120
    ),
    "hidden mode": System(hidden_mode, real(2), gym.spaces.Discrete(4)),
    "timed wind": System(timed_wind, real(2), MOVES),
    "alternating": System(alternating, gym.spaces.Discrete(9), gym.spaces.Discrete(2), 60),
    "delayed reward": System(delayed_reward, real(2), ONE),
    "counted reward": System(counted_reward, gym.spaces.Discrete(10), MOVES, 80),
    "hidden clock": System(hidden_clock, real(2), MOVES, 200),
    "hidden stock": System(hidden_stock, real(2), MOVES),
}

CHANCE = {
    "random force": System(random_force, real(2), MOVES),
    "random gust": System(random_gust, real(3), ONE),
    "random reward": System(random_reward, real(2), MOVES),
    "dice": System(dice, gym.spaces.Discrete(21), gym.spaces.Discrete(2), 40),
}
