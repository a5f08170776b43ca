"""Six deterministic systems of many objects: crates, lamps, items, animals, stones and wagons."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Info = dict[str, Any]
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Warehouse(gymnasium.Env[Ints, np.int64]):
    """A warehouse worker who pushes three crates onto three marked cells.

    The observation is the 6 x 6 floor plan: 0 floor, 1 pillar, 2 marked floor, 3 crate, 4 crate
    on a marked cell, 5 worker and 6 worker on a marked cell. The actions move the worker 0 up,
    1 down, 2 left and 3 right. The worker pushes a crate ahead if the cell behind it is free, and
    pushes two crates in a row if the cell behind both is free, for an extra cost. The worker
    stays if it is blocked by a pillar, the edge of the floor or too many crates. Each crate
    that comes onto a marked cell is rewarded, and each crate that leaves one costs the same. The
    episode ends with a prize when all marked cells hold crates, and with a penalty when a crate
    on unmarked floor is in a corner of the floor. Each step costs a little.
    """

    pillars, targets = ((2, 2), (3, 4)), ((1, 1), (2, 4), (4, 3))

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(0, 6, (6, 6), np.int64)
        self.action_space = Discrete(4)
        self.state: Ints = np.zeros((6, 6), np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Place the crates away from the edge and the worker anywhere."""
        super().reset(seed=seed)
        board = np.zeros((6, 6), np.int64)
        for cell in self.pillars:
            board[cell] = 1
        for cell in self.targets:
            board[cell] = 2
        inner = [(row, column) for row in range(1, 5) for column in range(1, 5)]
        free = [cell for cell in inner if board[cell] == 0]
        for index in self.np_random.permutation(len(free))[:3]:
            board[free[index]] = 3
        empty = np.argwhere(board == 0)
        row, column = empty[self.np_random.integers(len(empty))]
        board[row, column] = 5
        self.state = board
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Walk or push."""
        board, reward = self.state.copy(), -0.04
        row, column = (int(value) for value in np.argwhere(board >= 5)[0])
        down, right = MOVES[int(action)]
        pushed = 0
        while self._code(board, row + down * (pushed + 1), column + right * (pushed + 1)) in (3, 4):
            pushed += 1
        ahead = (row + down * (pushed + 1), column + right * (pushed + 1))
        before = int((board == 4).sum())
        if pushed <= 2 and self._code(board, *ahead) in (0, 2):
            if pushed > 0:
                board[ahead] = 4 if ahead in self.targets else 3
            place = (row + down, column + right)
            board[place] = 6 if place in self.targets else 5
            board[row, column] = 2 if (row, column) in self.targets else 0
            for step in range(2, pushed + 1):
                cell = (row + down * step, column + right * step)
                board[cell] = 4 if cell in self.targets else 3
            reward -= 0.15 if pushed == 2 else 0.0
        self.state = board
        stored = int((board == 4).sum())
        done, stuck = stored == 3, bool((board[::5, ::5] == 3).any())
        reward += 1.5 * (stored - before) + (10.0 if done else -4.0 if stuck else 0.0)
        return self.state.copy(), reward, done or stuck, False, {}

    def _code(self, board: Ints, row: int, column: int) -> int:
        return int(board[row, column]) if 0 <= row < 6 and 0 <= column < 6 else 1


class Lamps(gymnasium.Env[Ints, np.int64]):
    """A board of lamps whose switches also toggle neighbouring lamps.

    The observation is the board of 4 rows and 5 columns (0 off, 1 on). The action is the index of
    the pressed lamp, row by row. A press on a lit lamp toggles this lamp and its neighbours above,
    below, left and right; a press on a dark lamp toggles this lamp and its diagonal neighbours.
    The board is closed to a ring from left to right but not from top to bottom. Rows and
    columns go dark if all their lamps are lit after the press; each earns a bonus, which is
    larger for a row. The reward also counts each lamp that the press turned off and charges for
    each lamp that it turned on, before full rows and columns go dark. The episode ends with
    a prize when all lamps are dark, and with a penalty when more than 12 are lit.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(0, 1, (4, 5), np.int64)
        self.action_space = Discrete(20)
        self.state: Ints = np.zeros((4, 5), np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Light three to ten lamps."""
        super().reset(seed=seed)
        board = np.zeros(20, np.int64)
        board[self.np_random.permutation(20)[: int(self.np_random.integers(3, 11))]] = 1
        self.state = board.reshape(4, 5)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Press one lamp."""
        board = self.state.copy()
        lit = int(board.sum())
        row, column = divmod(int(action), 5)
        diagonals = ((-1, -1), (-1, 1), (1, -1), (1, 1))
        for down, right in MOVES if board[row, column] == 1 else diagonals:
            if 0 <= row + down < 4:
                board[row + down, (column + right) % 5] ^= 1
        board[row, column] ^= 1
        reward = 0.1 * (lit - int(board.sum())) - 0.05
        rows, columns = board.all(axis=1), board.all(axis=0)
        board[rows] = 0
        board[:, columns] = 0
        reward += 1.5 * int(rows.sum()) + 0.7 * int(columns.sum())
        self.state = board
        dark, blown = not board.any(), int(board.sum()) > 12
        reward += 8.0 if dark else -4.0 if blown else 0.0
        return self.state.copy(), reward, dark or blown, False, {}


class Carousel(gymnasium.Env[Ints, np.int64]):
    """A circular conveyor belt with an arm that packs items in sets of three.

    The observation holds the ten places of the belt and the arm's hand: 0 empty, 1 red, 2 green
    or 3 blue. The arm is at place 0. The actions are 0 wait, 1 swap the hand with place 0, 2 pack
    the items in places 0, 1 and 2, 3 brake and 4 reverse. Packing removes three items of one
    colour for a reward and three different colours for a larger one; otherwise it only costs.
    Afterwards the belt moves every item to the next place, or to the previous one for reverse;
    the brake stops it. A belt with fewer than five items moves two places forward. Forward motion
    is jammed while places 9 and 0 both hold blue items. Each step costs a little. The episode
    ends with a prize when the belt and the hand hold fewer than three items.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([4] * 11)
        self.action_space = Discrete(5)
        self.state: Ints = np.zeros(11, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Put four to eight items on the belt."""
        super().reset(seed=seed)
        belt = np.zeros(11, np.int64)
        count = int(self.np_random.integers(4, 9))
        places = self.np_random.permutation(10)[:count]
        belt[places] = self.np_random.integers(1, 4, size=count)
        self.state = belt
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Use the arm, then move the belt."""
        belt, hand, reward = self.state[:10].copy(), int(self.state[10]), -0.05
        if action == 1:
            hand, belt[0] = int(belt[0]), hand
        elif action == 2:
            colours = set(belt[:3].tolist())
            if 0 in colours or len(colours) == 2:
                reward -= 0.3
            else:
                reward += 3.0 if len(colours) == 1 else 5.0
                belt[:3] = 0
        items = int((belt > 0).sum())
        if action == 4:
            belt = np.roll(belt, -1)
        elif action != 3 and not (belt[9] == 3 and belt[0] == 3):
            belt = np.roll(belt, 2 if items < 5 else 1)
        self.state = np.array([*belt, hand], np.int64)
        done = items + int(hand > 0) < 3
        return self.state.copy(), reward + (6.0 if done else 0.0), done, False, {}


class Sheepdog(gymnasium.Env[Ints, np.int64]):
    """A dog that drives three sheep into a pen while a wolf approaches.

    The observation holds row and column (0 to 5) of the dog, of the three sheep and of the wolf.
    The pen is the 2 x 2 corner at rows and columns 0 and 1; sheep inside it never move. The
    actions are 0 stay, 1 up, 2 down, 3 left and 4 right; the dog cannot enter occupied cells.
    Then each sheep outside the pen, in order, runs one cell away from a dog at most two steps
    away (rows plus columns), along the axis with the larger distance, rows first if equal. If
    that cell is occupied or outside the field, it tries the other axis (up or left if the dog is
    in line). The wolf stays while the dog is at most two steps away. Otherwise, if the sum of the
    dog's row and column is a multiple of three, it moves along the larger distance towards the
    nearest sheep outside the pen, the first if equal. Sheep that enter the pen are rewarded. The
    episode ends with a prize when all are inside, and with a penalty when the wolf is on a sheep.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([6] * 10)
        self.action_space = Discrete(5)
        self.state: Ints = np.zeros(10, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Place the wolf at a far edge, and the dog and the sheep elsewhere."""
        super().reset(seed=seed)
        inner = [(row, column) for row in range(4) for column in range(4) if row > 1 or column > 1]
        places = [inner[index] for index in self.np_random.permutation(len(inner))[:4]]
        far = int(self.np_random.integers(6))
        places.append((5, far) if self.np_random.random() < 0.5 else (far, 5))
        self.state = np.array(places, np.int64).ravel()
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Move the dog, the sheep and the wolf."""
        places: list[tuple[int, int]] = [(int(r), int(c)) for r, c in self.state.reshape(5, 2)]
        before = sum(self._penned(place) for place in places[1:4])
        if action > 0:
            down, right = MOVES[int(action) - 1]
            target = (places[0][0] + down, places[0][1] + right)
            if self._free(target, places):
                places[0] = target
        for index in (1, 2, 3):
            if not self._penned(places[index]):
                places[index] = self._flee(places[index], places)
        dog, wolf = places[0], places[4]
        prey = [place for place in places[1:4] if not self._penned(place)]
        away = abs(dog[0] - wolf[0]) + abs(dog[1] - wolf[1])
        if prey and away > 2 and sum(dog) % 3 == 0:
            gaps = [(row - wolf[0], column - wolf[1]) for row, column in prey]
            down, right = min(gaps, key=lambda gap: abs(gap[0]) + abs(gap[1]))
            if abs(down) >= abs(right):
                places[4] = (wolf[0] + (1 if down > 0 else -1), wolf[1])
            else:
                places[4] = (wolf[0], wolf[1] + (1 if right > 0 else -1))
        self.state = np.array(places, np.int64).ravel()
        penned = sum(self._penned(place) for place in places[1:4])
        eaten = places[4] in places[1:4]
        reward = -0.03 + 2.0 * (penned - before)
        reward += -5.0 if eaten else 8.0 if penned == 3 else 0.0
        return self.state.copy(), reward, eaten or penned == 3, False, {}

    def _flee(self, own: tuple[int, int], places: list[tuple[int, int]]) -> tuple[int, int]:
        down, right = own[0] - places[0][0], own[1] - places[0][1]
        if abs(down) + abs(right) > 2:
            return own
        vertical = (own[0] + (1 if down > 0 else -1), own[1])
        horizontal = (own[0], own[1] + (1 if right > 0 else -1))
        pair = (vertical, horizontal) if abs(down) >= abs(right) else (horizontal, vertical)
        return next((cell for cell in pair if self._free(cell, places)), own)

    def _free(self, cell: tuple[int, int], places: list[tuple[int, int]]) -> bool:
        return 0 <= cell[0] < 6 and 0 <= cell[1] < 6 and cell not in places

    def _penned(self, cell: tuple[int, int]) -> bool:
        return cell[0] < 2 and cell[1] < 2


class Stacks(gymnasium.Env[Ints, np.int64]):
    """A board onto which coloured stones fall and vanish in lines of three.

    The observation holds the five rows of five cells from top to bottom (0 empty, 1 to 3 the
    colour of a stone) and the colour of the next stone. The action is the column of the next
    stone, which falls onto the stones below. Then all stones that belong to horizontal or
    vertical lines of three or more equal colours vanish, and the stones above fall down; this
    repeats while there are such lines. Each vanished stone is rewarded; the reward doubles in the
    second and later rounds. The colour after the next is the dropped colour advanced by the height
    of the column after the stone has landed and before lines vanish, in the cycle 1, 2, 3, 1. The
    episode ends with a prize when the board is empty and with a penalty when the chosen column
    was full.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(0, 3, (26,), np.int64)
        self.action_space = Discrete(5)
        self.state: Ints = np.zeros(26, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Drop two to eight random stones and remove lines."""
        super().reset(seed=seed)
        board = np.zeros((5, 5), np.int64)
        for _ in range(int(self.np_random.integers(2, 9))):
            column, colour = self.np_random.integers([5, 3])
            empty = int((board[:, column] == 0).sum())
            if empty > 1:
                board[empty - 1, column] = colour + 1
        self._clear(board)
        self.state = np.array([*board.ravel(), self.np_random.integers(1, 4)], np.int64)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Drop the next stone and remove lines."""
        board, colour, column = (
            self.state[:25].reshape(5, 5).copy(),
            int(self.state[25]),
            int(action),
        )
        empty = int((board[:, column] == 0).sum())
        if empty == 0:
            return self.state.copy(), -5.0, True, False, {}
        board[empty - 1, column] = colour
        following = (colour - 1 + 6 - empty) % 3 + 1
        points = self._clear(board)
        self.state = np.array([*board.ravel(), following], np.int64)
        bare = not board.any()
        return self.state.copy(), 0.5 * points + (10.0 if bare else 0.0), bare, False, {}

    def _clear(self, board: Ints) -> int:
        points, rounds = 0, 0
        while True:
            marked = np.zeros((5, 5), bool)
            for first in range(3):
                across, along = board[:, first : first + 3], board[first : first + 3]
                rows = (across[:, 0] > 0) & (across == across[:, :1]).all(axis=1)
                columns = (along[0] > 0) & (along == along[:1]).all(axis=0)
                marked[rows, first : first + 3] = True
                marked[first : first + 3, columns] = True
            if not marked.any():
                return points
            points += int(marked.sum()) * (1 if rounds == 0 else 2)
            rounds += 1
            board[marked] = 0
            for column in range(5):
                left = board[:, column][board[:, column] > 0]
                board[:, column] = 0
                board[5 - len(left) :, column] = left


class Shunting(gymnasium.Env[Ints, np.int64]):
    """A railway yard that sorts the wagons of an incoming train.

    The observation holds the seven wagons of the incoming train from front to back, the four
    places of the dead-end siding from the inner end outwards, the three places of the through
    siding from front to back (0 empty, 1 to 3 the wagon's destination), the destination of the
    last wagon of the outgoing train (0 none) and the number of destination changes in it. The
    actions are 0 incoming to outgoing, 1 incoming to dead end, 2 incoming to through siding,
    3 dead end to outgoing and 4 through siding to outgoing. Wagons leave the dead end in reverse
    order and the through siding in order. A move without a wagon or a place only costs, and so
    does a move of tank wagons (destination 3) onto destination 1 in the dead end. A wagon of the
    same destination as the last outgoing wagon is rewarded, and another one costs. The episode
    ends when all wagons are outgoing, with a prize if there are at most two changes.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([4] * 15 + [8])
        self.action_space = Discrete(5)
        self.state: Ints = np.zeros(16, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start with a train of four to seven wagons and an empty yard."""
        super().reset(seed=seed)
        self.state = np.zeros(16, np.int64)
        count = int(self.np_random.integers(4, 8))
        self.state[:count] = self.np_random.integers(1, 4, size=count)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Move one wagon."""
        incoming, dead_end, through = (
            [int(wagon) for wagon in self.state[start:end] if wagon > 0]
            for start, end in ((0, 7), (7, 11), (11, 14))
        )
        last, changes = int(self.state[14]), int(self.state[15])
        reward, wagon = -0.05, 0
        if action == 0 and incoming:
            wagon = incoming.pop(0)
        elif action == 3 and dead_end:
            wagon = dead_end.pop()
        elif action == 4 and through:
            wagon = through.pop(0)
        elif (
            action == 1
            and incoming
            and len(dead_end) < 4
            and (incoming[0] != 3 or dead_end[-1:] != [1])
        ):
            dead_end.append(incoming.pop(0))
        elif action == 2 and incoming and len(through) < 3:
            through.append(incoming.pop(0))
        else:
            reward -= 0.25
        if wagon > 0 and last in (0, wagon):
            reward += 1.0 if last > 0 else 0.0
        elif wagon > 0:
            reward, changes = reward - 0.8, changes + 1
        last = wagon if wagon > 0 else last
        tracks = ((incoming, 7), (dead_end, 4), (through, 3))
        shown = [code for track, size in tracks for code in track + [0] * (size - len(track))]
        self.state = np.array([*shown, last, changes], np.int64)
        done = not (incoming or dead_end or through)
        return self.state.copy(), reward + (5.0 if done and changes <= 2 else 0.0), done, False, {}
