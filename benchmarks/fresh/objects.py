"""Deterministic systems of many like parts, observed as integers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Result = tuple[Ints, float, bool, bool, dict[str, Any]]


def _box(high: list[int]) -> spaces.Space[Ints]:
    """Return an integer box from 0 to the given upper bounds."""
    upper = np.array(high, dtype=np.int64)
    return spaces.Box(np.zeros_like(upper), upper, dtype=np.int64)


class Recycler(gymnasium.Env[Ints, np.int64]):
    """A sorting belt for waste with a magnet, an air jet and a gripper.

    Observation (19 integers):
        0-8. belt cells from the feed to the end: 0 empty, 1 steel, 2 plastic, 3 glass, 4 shards
        9-14. feed drum: the six pockets in the order in which they reach the belt (0 to 3)
        15. pieces in the steel bin
        16. pieces in the plastic bin
        17. pieces in the glass bin
        18. fill level of the rubbish container

    Actions: 0 only run the belt, 1 magnet, 2 air jet, 3 gripper, 4 stop the belt for one step.

    The tool works first. The magnet lifts steel from the three cells below it, in the first
    half of the belt; it cannot hold all three and takes the pieces further along. The
    air jet blows plastic from two neighbouring cells in the second half of the belt into its
    bin; glass in these cells breaks to shards. The gripper takes glass from the last cell but
    one. If there are shards, it removes them but damages its jaws, which costs repairs.
    Then the belt moves by one cell unless it was stopped; a stop costs a little. What leaves
    the last cell falls into the rubbish container and costs a fee; shards take more room. The
    first pocket of the drum puts a copy of its piece on the first cell, and the drum turns by
    one pocket, so that the first pocket becomes the last.
    A bin with enough pieces is pressed to a bale: the bin is empty again and the bale is sold.
    The number of pieces and the price depend on the material. Carriers who fetch plastic also
    take some of the rubbish. A full rubbish container ends the episode with a penalty.
    """

    _BALE_PIECES = (4, 3, 2)
    _BALE_PRICES = (5.6, 4.3, 7.9)
    _RUBBISH_LIMIT = 15

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = _box([4] * 9 + [3] * 6 + [5, 4, 3, 18])
        self.action_space = spaces.Discrete(5)
        self.state: Ints = np.zeros(19, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ints, dict[str, Any]]:
        """Start with a random drum, a partly loaded belt and partly filled bins."""
        super().reset(seed=seed)
        pieces = self.np_random.choice(4, size=15, p=[0.37, 0.25, 0.2, 0.18])
        bins = [int(self.np_random.integers(count)) for count in self._BALE_PIECES]
        rubbish = int(self.np_random.integers(0, 6))
        self.state = np.array([*pieces, *bins, rubbish], dtype=np.int64)
        return self.state.copy(), {}

    @staticmethod
    def _use_magnet(belt: list[int], bins: list[int]) -> None:
        """Lift up to two pieces of steel."""
        held = 0
        for cell in (4, 3, 2):
            if belt[cell] == 1 and held < 2:
                belt[cell] = 0
                held += 1
        bins[0] += held

    @staticmethod
    def _use_jet(belt: list[int], bins: list[int]) -> None:
        """Blow plastic into its bin and break glass."""
        for cell in (5, 6):
            if belt[cell] == 2:
                belt[cell] = 0
                bins[1] += 1
            elif belt[cell] == 3:
                belt[cell] = 4

    @staticmethod
    def _use_gripper(belt: list[int], bins: list[int]) -> float:
        """Take glass or shards from the belt and return the reward."""
        piece = belt[7]
        if piece == 3:
            belt[7] = 0
            bins[2] += 1
        elif piece == 4:
            belt[7] = 0
            return -2.6
        return 0.0

    def _sell_bales(self, bins: list[int]) -> tuple[float, int]:
        """Return the price of the finished bales and the rubbish that carriers remove."""
        income, removed = 0.0, 0
        for kind in range(3):
            if bins[kind] >= self._BALE_PIECES[kind]:
                bins[kind] = 0
                income += self._BALE_PRICES[kind]
                if kind == 1:
                    removed = 4
        return income, removed

    def step(self, action: np.int64) -> Result:
        """Use a tool, move the belt and sell bales."""
        values = [int(value) for value in self.state]
        belt, drum, bins, rubbish = values[:9], values[9:15], values[15:18], values[18]
        reward, terminated = 0.0, False
        if action == 1:
            self._use_magnet(belt, bins)
        elif action == 2:
            self._use_jet(belt, bins)
        elif action == 3:
            reward = self._use_gripper(belt, bins)
        if action == 4:
            reward -= 0.35
        else:
            last = belt[8]
            if last == 4:
                rubbish, reward = rubbish + 2, reward - 0.9
            elif last > 0:
                rubbish, reward = rubbish + 1, reward - 0.4
            belt = [drum[0], *belt[:8]]
            drum = [*drum[1:], drum[0]]
        income, removed = self._sell_bales(bins)
        reward, rubbish = reward + income, max(0, rubbish - removed)
        if rubbish >= self._RUBBISH_LIMIT:
            reward, terminated = reward - 11.0, True
        self.state = np.array([*belt, *drum, *bins, rubbish], dtype=np.int64)
        return self.state.copy(), reward, terminated, False, {}


class Avalanche(gymnasium.Env[Ints, np.int64]):
    """A snow slope above a road, with controlled blasts.

    Observation (27 integers):
        0-19. snow depth of the slope, in layers: four rows of five cells, the top row first
        20-24. snow depth on the road below the five columns
        25. column of the snow cloud (0 to 4)
        26. column of the snow plough (0 to 4)

    Actions: 0 wait, 1 to 5 blast in the first to fifth column.

    A blast acts on the deepest cell of its column (on the highest such cell if several are
    equally deep). If the snow is deep enough, all but one layer slide into the cell below, or
    on the road from the bottom row. A blast in shallow snow is wasted. Each blast costs money.
    Then the cloud drops snow in the top row of its column. In some columns it also drops snow in
    the second row of another column; the columns count in a ring. Then the cloud moves one
    column to the right, from the last to the first.
    A cell that is too deep for its row slides: some layers go down (on the road from the
    bottom row) and fewer go to each side neighbour. Snow that leaves the slope at a side is
    lost. All cells that are too deep slide at the same time, and this repeats until the slope is
    stable. After a successful blast, each slide pays a little if slides are few; slides
    without a successful blast cost a little. Very many slides in one step destroy the mountain
    hut, which costs a large penalty.
    Then the plough moves one column to the left, from the first to the last, clears the road
    there and earns a fee by the layer. If the road has too much snow in total, it is closed:
    the episode ends with a penalty.
    """

    _LIMITS = np.array([[5], [4], [5], [6]], dtype=np.int64)
    _ROAD_LIMIT = 9

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = _box([5] * 20 + [30] * 5 + [4, 4])
        self.action_space = spaces.Discrete(6)
        self.state: Ints = np.zeros(27, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ints, dict[str, Any]]:
        """Start with random stable snow and an almost clear road."""
        super().reset(seed=seed)
        slope = self.np_random.integers(0, np.broadcast_to(self._LIMITS, (4, 5)))
        road = self.np_random.integers(0, 3, size=5)
        places = self.np_random.integers(0, 5, size=2)
        self.state = np.concatenate([slope.ravel(), road, places]).astype(np.int64)
        return self.state.copy(), {}

    @staticmethod
    def _blast(slope: Ints, road: Ints, column: int) -> bool:
        """Move snow from the deepest cell of the column and return True on success."""
        row = int(np.argmax(slope[:, column]))
        moved = int(slope[row, column]) - 1
        if moved < 2:
            return False
        slope[row, column] = 1
        if row == 3:
            road[column] += moved
        else:
            slope[row + 1, column] += moved
        return True

    def _settle(self, slope: Ints, road: Ints) -> int:
        """Slide unstable cells until the slope is stable, and return the number of slides."""
        slides = 0
        unstable = (slope >= self._LIMITS).astype(np.int64)
        while unstable.any():
            slides += int(unstable.sum())
            slope -= 4 * unstable
            slope[1:] += 2 * unstable[:-1]
            slope[:, 1:] += unstable[:, :-1]
            slope[:, :-1] += unstable[:, 1:]
            road += 2 * unstable[3]
            unstable = (slope >= self._LIMITS).astype(np.int64)
        return slides

    @staticmethod
    def _snow(slope: Ints, cloud: int) -> None:
        """Drop the snow of the cloud."""
        slope[0, cloud] += 2
        if cloud % 2 == 0:
            slope[1, (cloud + 2) % 5] += 1

    def step(self, action: np.int64) -> Result:
        """Blast, let it snow, let the slope settle and plough the road."""
        state = np.array(self.state, dtype=np.int64)
        slope, road = state[:20].reshape(4, 5), state[20:25]
        cloud, plough = int(state[25]), int(state[26])
        reward, terminated, released = 0.0, False, False
        if action > 0:
            released = self._blast(slope, road, int(action) - 1)
            reward -= 0.85
        self._snow(slope, cloud)
        slides = self._settle(slope, road)
        if slides >= 8:
            reward -= 9.5
        elif released:
            reward += 0.65 * (slides + 1)
        else:
            reward -= 0.3 * slides
        plough = (plough - 1) % 5
        reward += 0.27 * int(road[plough])
        road[plough] = 0
        if road.sum() > self._ROAD_LIMIT:
            reward, terminated = reward - 18.0, True
        state[25], state[26] = (cloud + 1) % 5, plough
        self.state = state
        return self.state.copy(), float(reward), terminated, False, {}


class Airspace(gymnasium.Env[Ints, np.int64]):
    """Air traffic control of an approach with up to five aircraft.

    Observation (16 integers):
        0-14. for each of five aircraft: distance to the runway (in nautical miles), flight level
        (0 to 8) and fuel (in minutes of slow burn); all three are 0 if there is no aircraft
        15. minutes until the runway is free

    Actions: 0 nothing, 1 to 5 let the first to fifth aircraft descend, 6 to 10 let
    the first to fifth aircraft fly a circle.

    A call to an aircraft that does not exist costs a little. First the aircraft that was called
    descends by a fixed number of levels, to level 0 at the lowest. Then each aircraft flies
    towards the runway: faster at high levels, slower at low levels. An aircraft in a circle
    drifts away a little instead. All burn fuel, more at low levels. The time until the runway
    is free counts down by one.
    Then each aircraft at the runway, in order of their numbers, lands if its level is low enough
    and the runway is free. It lands on an occupied runway if it is short of fuel. A landing pays
    a reward and occupies the runway for some minutes; the aircraft disappears.
    An aircraft that cannot land goes around: it climbs by some levels (8 is the limit), starts
    again at a fixed distance and costs a fine.
    Then two aircraft at the same level and close to each other are a near miss, which costs a
    fine: the one with the larger number climbs by one level, if it can. The pairs are examined
    in order of their numbers.
    An aircraft without fuel crashes, which ends the episode with a large penalty. If all
    aircraft have landed, the episode ends with a bonus.
    """

    _AIRCRAFT = 5
    _AROUND_NM = 11

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = _box([40, 8, 80] * self._AIRCRAFT + [3])
        self.action_space = spaces.Discrete(11)
        self.state: Ints = np.zeros(16, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ints, dict[str, Any]]:
        """Start with one to five aircraft in random slots."""
        super().reset(seed=seed)
        planes = np.zeros((self._AIRCRAFT, 3), dtype=np.int64)
        count = int(self.np_random.integers(1, self._AIRCRAFT + 1, size=2).min())
        for slot in self.np_random.permutation(self._AIRCRAFT)[:count]:
            draw = self.np_random.integers
            planes[slot] = [draw(4, 27), draw(1, 7), draw(27, 81)]
        runway = int(self.np_random.integers(0, 3))
        self.state = np.append(planes.ravel(), runway).astype(np.int64)
        return self.state.copy(), {}

    def _call(self, planes: Ints, action: int) -> tuple[float, int]:
        """Carry out the call; return its reward and the slot in a circle (-1 if none)."""
        if action == 0:
            return 0.0, -1
        slot = (action - 1) % self._AIRCRAFT
        if planes[slot, 2] == 0:
            return -0.45, -1
        if action > self._AIRCRAFT:
            return 0.0, slot
        planes[slot, 1] = max(0, int(planes[slot, 1]) - 2)
        return 0.0, -1

    @staticmethod
    def _fly(planes: Ints, circling: int) -> bool:
        """Move all aircraft and return True if one has no fuel left."""
        crashed = False
        for slot, (distance, level, fuel) in enumerate(planes.tolist()):
            if fuel == 0:
                continue
            speed = 3 if level >= 4 else 2
            if slot == circling:
                speed = -1
            burnt = 2 if level <= 1 else 1
            distance = min(40, max(0, distance - speed))
            planes[slot] = [distance, level, max(0, fuel - burnt)]
            if fuel <= burnt:
                crashed = True
        return crashed

    def _land(self, planes: Ints, runway: int) -> tuple[float, int]:
        """Land aircraft at the runway or send them around; return the reward and runway time."""
        reward = 0.0
        for slot, (distance, level, fuel) in enumerate(planes.tolist()):
            if fuel == 0 or distance > 0:
                continue
            if level <= 2 and (runway == 0 or fuel < 12):
                planes[slot] = 0
                reward, runway = reward + 9.6, 3
            else:
                planes[slot] = [self._AROUND_NM, min(8, level + 2), fuel]
                reward -= 1.7
        return reward, runway

    def _separate(self, planes: Ints) -> float:
        """Resolve near misses and return their fines."""
        reward = 0.0
        for first in range(self._AIRCRAFT):
            for second in range(first + 1, self._AIRCRAFT):
                if planes[first, 2] == 0 or planes[second, 2] == 0:
                    continue
                gap = abs(int(planes[first, 0]) - int(planes[second, 0]))
                if planes[first, 1] == planes[second, 1] and gap < 2:
                    reward -= 2.8
                    planes[second, 1] = min(8, int(planes[second, 1]) + 1)
        return reward

    def step(self, action: np.int64) -> Result:
        """Advance the traffic by one minute."""
        state = np.array(self.state, dtype=np.int64)
        planes = state[:15].reshape(self._AIRCRAFT, 3)
        reward, circling = self._call(planes, int(action))
        crashed = self._fly(planes, circling)
        runway = max(0, int(state[15]) - 1)
        terminated = False
        if crashed:
            reward, terminated = reward - 42.0, True
        else:
            landed, runway = self._land(planes, runway)
            reward += landed + self._separate(planes)
            if not planes.any():
                reward, terminated = reward + 16.0, True
        state[15] = runway
        self.state = state
        return self.state.copy(), reward, terminated, False, {}
