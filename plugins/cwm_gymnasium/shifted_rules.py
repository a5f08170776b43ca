"""Shifts of classic control and toy text environments whose rules are hard-coded.

Subclasses turn the constants of a rule into attributes with the original values as defaults.
Functions draw new maps, whose goals can be reached, and new rewards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv, angle_normalize
from gymnasium.envs.toy_text.blackjack import BlackjackEnv, draw_card, is_natural

from cwm_cli.private_parts import private_part

Cell = tuple[int, int]


class Pendulum(PendulumEnv):
    """A pendulum with adjustable weights of its cost.

    If `explicit`, a step changes the angle by the speed before the step, not after it.
    """

    angle_weight = 1.0
    speed_weight = 0.1
    torque_weight = 0.001
    explicit = False

    def step(self, action: Any) -> Any:
        """Take a step; the cost depends on the state before it."""
        angle, speed = self.state
        observation, *_ = super().step(action)  # type: ignore[no-untyped-call]
        cost = self.angle_weight * angle_normalize(angle) ** 2  # type: ignore[no-untyped-call]
        cost += self.speed_weight * speed**2 + self.torque_weight * self.last_u**2
        if self.explicit:
            self.state[0] = angle + speed * self.dt
            angle, speed = self.state
            observation = np.array([np.cos(angle), np.sin(angle), speed], np.float32)
        return observation, -cost, False, False, {}


class Acrobot(AcrobotEnv):
    """An acrobot whose tip has to reach `height`."""

    height = 1.0

    def step(self, action: Any) -> Any:
        """Take a step; terminate if the tip is high enough."""
        observation, *_, info = super().step(action)  # type: ignore[no-untyped-call]
        assert self.state is not None, "not reset yet"
        first, second = self.state[:2]
        terminated = bool(-np.cos(first) - np.cos(second + first) > self.height)
        return observation, 0.0 if terminated else -1.0, terminated, False, info


class MountainCar(MountainCarEnv):
    """A mountain car whose reward is `-charge` per step."""

    charge = 1.0

    def step(self, action: Any) -> Any:
        """Take a step."""
        observation, _, terminated, *rest = super().step(action)
        return observation, -self.charge, terminated, *rest


class Blackjack(BlackjackEnv):
    """Blackjack with an adjustable limit of the sum, dealer and stakes.

    Attributes:
        limit: The largest sum of a hand.
        margin: The dealer draws until the sum is at least `limit - margin`.
        win: The reward of a win.
        loss: The negative reward of a loss.
    """

    limit = 21
    margin = 4
    win = 1.0
    loss = 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # type: ignore[override]
        """Deal two cards to the player and two to the dealer."""
        super().reset(seed=seed, options=options)
        return self._get_obs(), {}

    def step(self, action: Any) -> Any:
        """Draw a card if the action is 1; otherwise the dealer plays, and the episode ends."""
        if action:
            self.player.append(draw_card(self.np_random))  # type: ignore[no-untyped-call]
            terminated = self._sum(self.player)[0] > self.limit
            return self._get_obs(), -self.loss if terminated else 0.0, terminated, False, {}
        while self._sum(self.dealer)[0] < self.limit - self.margin:
            self.dealer.append(draw_card(self.np_random))  # type: ignore[no-untyped-call]
        (own, _), (other, _) = self._sum(self.player), self._sum(self.dealer)
        ahead = (own if own <= self.limit else 0) - (other if other <= self.limit else 0)
        if self.sab and is_natural(self.player) and not is_natural(self.dealer):  # type: ignore[no-untyped-call]
            ahead = 1
        reward = self.win if ahead > 0 else -self.loss if ahead < 0 else 0.0
        return self._get_obs(), reward, True, False, {}

    def _sum(self, hand: list[int]) -> tuple[int, int]:
        """Return the sum of a hand, and 1 if an ace counts 11 in it, else 0."""
        usable = 1 in hand and sum(hand) + 10 <= self.limit
        return sum(hand) + 10 * usable, int(usable)

    def _get_obs(self) -> tuple[int, int, int]:
        own, usable = self._sum(self.player)
        return own, self.dealer[0], usable


def cliff(env: Any, rng: np.random.Generator) -> None:
    """Draw new cells of the cliff and a new start, such that the goal can be reached."""
    on_cliff = private_part(env, "_cliff")
    outcomes = private_part(env, "_calculate_transition_prob")
    rows, columns = env.shape
    goal, size = (rows - 1, columns - 1), int(on_cliff.sum())
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    while True:
        start = int(rng.integers(rows)), 0
        free = [cell for cell in cells if cell not in (start, goal)]
        chosen = {free[place] for place in rng.permutation(len(free))[:size]}
        if _reaches(start, goal, set(cells) - chosen):
            break
    on_cliff[:] = False
    on_cliff[tuple(np.array(sorted(chosen)).T)] = True
    env.start_state_index = np.ravel_multi_index(start, env.shape)
    env.initial_state_distrib[:] = 0.0
    env.initial_state_distrib[env.start_state_index] = 1.0
    for state, position in enumerate(cells):
        for action in range(env.nA):
            env.P[state][action] = outcomes(position, action)


def lake(env: Any, rng: np.random.Generator) -> None:
    """Draw new holes, such that the goal can be reached, and the slipperiness of the ice."""
    rows, columns = env.desc.shape
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    count = int((env.desc == b"H").sum())
    while True:
        order = rng.permutation(len(cells) - 2) + 1
        holes = {cells[place] for place in order[:count]}
        if _reaches(cells[0], cells[-1], set(cells) - holes):
            break
    tiles = ["H" if cell in holes else "F" for cell in cells]
    tiles[0], tiles[-1] = "S", "G"
    given = {name: value for name, value in env.spec.kwargs.items() if name != "map_name"}
    given["desc"] = ["".join(tiles[row * columns :][:columns]) for row in range(rows)]
    rate = given.get("success_rate", 1 / 3)
    given["success_rate"] = round(rate * (1 + rng.uniform(-0.25, 0.25)), 2)
    env.__init__(**given | {"render_mode": env.render_mode})


def streets(env: Any, rng: np.random.Generator) -> None:
    """Draw new walls between streets, and new places where passengers wait."""
    rows, columns = env.max_row + 1, env.max_col + 1
    sides = [(row, column) for row in range(rows) for column in range(columns - 1)]
    count = int((env.desc[1:-1, 2:-2:2] == b"|").sum())
    while True:
        walls = {sides[place] for place in rng.permutation(len(sides))[:count]}
        blocked = [sum((row, column) in walls for row in range(rows)) for column in range(columns)]
        if max(blocked) < rows:  # else walls would divide the town
            break
    letters = [env.desc[1 + row, 1 + 2 * column] for row, column in env.locs]
    places = rng.permutation(rows * columns)[: len(env.locs)]
    env.locs = [(int(place) // columns, int(place) % columns) for place in places]
    env.desc[1:-1, 1:-1:2] = b" "
    for letter, (row, column) in zip(letters, env.locs, strict=True):
        env.desc[1 + row, 1 + 2 * column] = letter
    for row, column in sides:
        env.desc[1 + row, 2 + 2 * column] = b"|" if (row, column) in walls else b":"
    rainy = len(env.P[0][0]) > 1
    build = private_part(env, "_build_rainy_transitions" if rainy else "_build_dry_transitions")
    for state, moves in env.P.items():
        for action in moves:
            moves[action] = []
            build(*env.decode(state), action)


def rewards(env: Any, rng: np.random.Generator) -> None:
    """Draw new values of the rewards in a table of transitions; zero stays zero."""
    outcomes = [o for moves in env.P.values() for found in moves.values() for o in found]
    known = sorted({float(reward) for _, _, reward, _ in outcomes} - {0.0})
    factors = 1 + rng.choice((-1, 1), len(known)) * rng.uniform(0.05, 0.25, len(known))
    new = {old: float(f"{old * by:.3g}") for old, by in zip(known, factors, strict=True)}
    for moves in env.P.values():
        for action, found in moves.items():
            moves[action] = [(p, s, new.get(float(r), 0.0), t) for p, s, r, t in found]


def _reaches(start: Cell, goal: Cell, free: set[Cell]) -> bool:
    """Return whether a path over free cells connects two cells."""
    visited, queue = {start}, [start]
    while queue:
        row, column = queue.pop()
        neighbours = {(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)}
        queue += neighbours & free - visited
        visited |= neighbours & free
    return goal in visited
