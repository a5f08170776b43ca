"""Six systems that are random by nature: arrivals, demand, jams, infections, calls."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from benchmarks.tables.recording import Array, Clock, Column, Law


def binomial(rng: np.random.Generator, counts: Array, probability: Array | float) -> Array:
    """Draw binomial numbers for float arrays that hold counts."""
    trials = np.maximum(np.rint(counts), 0.0).astype(np.int64)
    return rng.binomial(trials, probability).astype(float)


class Inventory(Law):
    """A shop with Poisson demand, lost sales and a delivery delay of two days.

    An order placed on day t is listed as due on day t + 1 and is on the shelf before
    the sales between day t + 1 and day t + 2.
    """

    name = "inventory"
    actions = (Column("order", "integer"),)
    observations = (
        Column("stock", "integer", noise=1.4, lowest=0.0),
        Column("due", "integer"),
        Column("demand", "integer"),
    )
    observed = (0, 1, 2)
    reward_name = "profit_eur"
    episode_name = "episode"
    episode_rows = 200
    clock = Clock("day", step=1, restarts=True)

    DEMAND_PER_DAY, SMALL, LARGE = 8.63, 18.0, 47.0
    MARGIN_EUR, UNIT_EUR, HOLDING_EUR, ORDER_EUR = 3.71, 1.86, 0.113, 6.3

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return random stocks with no open delivery and no demand so far."""
        return np.column_stack([rng.integers(11, 53, n), np.zeros(n), np.zeros(n)])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the stocks, due deliveries and demands of the next day."""
        demand = rng.poisson(self.DEMAND_PER_DAY, len(states))
        stock = np.maximum(states[:, 0] + states[:, 1] - demand, 0.0)
        return np.column_stack([stock, np.full(len(states), action[0]), demand])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Order when stock is low; choose at random on a quarter of the days."""
        if rng.random() < 0.25:
            return np.array([rng.choice([0.0, 0.0, self.SMALL, self.LARGE])])
        position = recorded[0] + recorded[1]
        if position > 31:
            return np.array([0.0])
        return np.array([self.LARGE if position < 14 else self.SMALL])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return sales minus purchase, order and holding cost, in euros."""
        sold = min(before[0, 0] + before[0, 1], after[0, 2])
        purchase = self.UNIT_EUR * action[0] + self.ORDER_EUR * (action[0] > 0)
        return float(self.MARGIN_EUR * sold - purchase - self.HOLDING_EUR * after[0, 0])


class Queue(Law):
    """A counter with random arrivals, random services and a limited waiting room."""

    name = "queue"
    actions = (Column("servers", "integer"),)
    observations = (
        Column("waiting", "integer", noise=1.43, lowest=0.0),
        Column("served", "integer"),
    )
    observed = (0, 1)
    reward_name = "reward"
    episode_name = "day"
    episode_rows = 240
    clock = Clock("minute", step=1, restarts=True)

    ARRIVALS, SERVICE, ROOM = 1.83, 0.618, 34.0
    WAITING_COST, SERVER_COST = 0.43, 1.27

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return short random queues."""
        return np.column_stack([rng.integers(0, 9, n), np.zeros(n)]).astype(float)

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the queues and the numbers of served customers."""
        waiting = states[:, 0]
        served = binomial(rng, np.minimum(waiting, action[0]), self.SERVICE)
        arrived = rng.poisson(self.ARRIVALS, len(states))
        return np.column_stack([np.minimum(waiting - served + arrived, self.ROOM), served])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold the number of servers, and prefer more servers for long queues."""
        if rng.random() > 0.2:
            return np.array([max(previous[0], 1.0)])
        wanted = 1 + recorded[0] // 7 + rng.integers(-1, 3)
        return np.array([float(np.clip(wanted, 1, 5))])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return minus the cost of waiting customers and of servers."""
        return float(-self.WAITING_COST * after[0, 0] - self.SERVER_COST * action[0])


class Conveyor(Law):
    """A belt of six cells with random loading and jams.

    The belt moves all items by one cell, always at "run" and sometimes at "slow".
    Neighbouring items make jams more likely; "clear" tries to remove a jam together
    with the item in the last cell.
    """

    name = "conveyor"
    actions = (Column("command", "label", labels=("run", "slow", "clear")),)
    observations = (
        *(Column(f"cell_{i}", "boolean", labels=("0", "1"), noise=0.009) for i in range(1, 7)),
        Column("jam", "boolean", noise=0.006),
        Column("delivered", "integer"),
    )
    observed = tuple(range(8))
    reward_name = "reward"
    episode_name = None
    actions_first = True

    LOADING, SLOW_MOVES, CLEARING = 0.463, 0.54, 0.71
    JAM_BASE, JAM_PER_PAIR, JAM_SLOW = 0.013, 0.034, 0.37

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return empty belts."""
        return np.zeros((n, 8))

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next belts, jams and deliveries."""
        n = len(states)
        cells, jam = states[:, :6].copy(), states[:, 6] > 0.5
        command = int(action[0])
        moves = ~jam & (rng.random(n) < (1.0, self.SLOW_MOVES, 0.0)[command])
        delivered = np.where(moves, cells[:, 5], 0.0)
        pairs = (cells[:, 1:] * cells[:, :-1]).sum(axis=1)
        shifted = np.column_stack([rng.random(n) < self.LOADING, cells[:, :5]])
        cells = np.where(moves[:, None], shifted, cells)
        risk = (self.JAM_BASE + self.JAM_PER_PAIR * pairs) * (1.0, self.JAM_SLOW, 0.0)[command]
        cleared = jam & (command == 2) & (rng.random(n) < self.CLEARING)
        cells[cleared, 5] = 0.0
        jammed = (jam & ~cleared) | (moves & (rng.random(n) < risk))
        return np.column_stack([cells, jammed, delivered])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Clear most recorded jams and change between fast and slow otherwise."""
        if recorded[6] > 0.5 and rng.random() < 0.8:
            return np.array([2.0])
        if rng.random() < 0.75 and previous[0] < 2:
            return previous
        return np.array([float(rng.choice(3, p=[0.55, 0.41, 0.04]))])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return the value of the delivery minus the cost of a jam."""
        return float(1.35 * after[0, 7] - 0.28 * after[0, 6] - 0.06 * (action[0] == 0))


class TrafficLight(Law):
    """A crossing of two roads with random arrivals and timed phases.

    A request switches the light after a minimum green time; the light switches by
    itself after a maximum. An amber phase of one step follows each green phase.
    """

    name = "traffic_light"
    actions = (Column("request_switch", "boolean"),)
    observations = (
        Column("queue_north", "integer", noise=1.17, lowest=0.0),
        Column("queue_east", "integer", noise=1.17, lowest=0.0),
        Column("phase", "label", labels=("north_green", "north_amber", "east_green", "east_amber")),
        Column("phase_age_s", decimals=1),
    )
    clock = Clock("timestamp", step=4.7, start=datetime(2024, 6, 3, 7, 15))
    gaps = 5

    STEP_S, MIN_STEPS, MAX_STEPS = 4.7, 2, 9
    ARRIVALS = (0.93, 0.61)
    LANES, LEAVING = 3.0, 0.83

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return short random queues at the start of the north phase."""
        return np.column_stack([rng.integers(0, 7, (n, 2)), np.zeros((n, 2))])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next queues, phases and phase ages in steps."""
        north, east, phase, age = states.T
        queues = []
        for queue, rate, green in ((north, self.ARRIVALS[0], 0), (east, self.ARRIVALS[1], 2)):
            able = np.where(phase == green, np.minimum(queue, self.LANES), 0.0)
            arrived = rng.poisson(rate, len(states))
            queues.append(queue - binomial(rng, able, self.LEAVING) + arrived)
        amber = phase % 2 == 1
        asked = (action[0] > 0.5) & (age >= self.MIN_STEPS)
        switches = amber | asked | (age >= self.MAX_STEPS)
        phase = np.where(switches, (phase + 1) % 4, phase)
        return np.column_stack([*queues, phase, np.where(switches, 0.0, age + 1)])

    def observe(self, states: Array) -> Array:
        """Return queues, phase and the age of the phase in seconds."""
        return np.asarray(states * np.array([1.0, 1.0, 1.0, self.STEP_S]))

    def place(self, states: Array, observations: Array) -> Array:
        """Return states with the age of the phase in steps."""
        return np.asarray(np.rint(observations / np.array([1.0, 1.0, 1.0, self.STEP_S])))

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Request a switch if the other queue is longer, and sometimes at random."""
        red, green = (1, 0) if recorded[2] < 2 else (0, 1)
        longer = recorded[red] > recorded[green] + 3
        return np.array([float(rng.random() < (0.7 if longer else 0.12))])


class Epidemic(Law):
    """A town with susceptible, infected and recovered people; immunity wanes."""

    name = "epidemic"
    actions = (Column("measure", "label", labels=("none", "distancing", "lockdown")),)
    observations = (
        Column("susceptible", "integer", noise=57.0, noise_relative=0.003, lowest=0.0),
        Column("infected", "integer", noise=2.7, noise_relative=0.056, lowest=0.0),
        Column("recovered", "integer", noise=31.0, noise_relative=0.011, lowest=0.0),
    )
    observed = (0, 1, 2)
    reward_name = "reward"
    done_name = "done"
    episode_name = "episode"
    episode_rows = 170
    clock = Clock("date", step=86400, start=datetime(2021, 2, 14))

    POPULATION, CONTACT, RECOVERY, WANING = 48730, 0.347, 0.118, 0.0043
    FACTORS, COSTS = (1.0, 0.58, 0.17), (0.0, 0.83, 2.9)

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return towns with few infected and some immune people."""
        infected = rng.integers(3, 240, n)
        recovered = rng.integers(0, 9100, n)
        return np.column_stack([self.POPULATION - infected - recovered, infected, recovered])

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the counts of the next day."""
        susceptible, infected, recovered = np.maximum(states, 0.0).T
        contact = self.CONTACT * self.FACTORS[int(action[0])]
        hazard = contact * infected / self.POPULATION
        new = binomial(rng, susceptible, 1.0 - np.exp(-hazard))
        healed = binomial(rng, infected, self.RECOVERY)
        waned = binomial(rng, recovered, self.WANING)
        return np.column_stack(
            [susceptible - new + waned, infected + new - healed, recovered + healed - waned]
        )

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Hold a measure for weeks; prefer strict measures for many infected."""
        if rng.random() > 0.07:
            return previous
        weights = [0.2, 0.35, 0.45] if recorded[1] > 900 else [0.45, 0.25, 0.3]
        return np.array([float(rng.choice(3, p=weights))])

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return minus the cost of infections and of the measure."""
        return float(-after[0, 1] / 731.0 - self.COSTS[int(action[0])])

    def done(self, state: Array) -> bool:
        """Return whether the epidemic is over."""
        return bool(state[0, 1] == 0)


class Elevator(Law):
    """A lift that carries people from five floors to the ground floor.

    A move command closes an open door first; the lift moves only with a closed door.
    An open door takes in the people of the floor, or lets all out at the ground floor.
    """

    name = "elevator"
    actions = (Column("command", "label", labels=("wait", "up", "down", "open")),)
    observations = (
        Column("height_m", decimals=2, noise=0.74),
        Column("door_open", "boolean"),
        *(Column(f"call_{i}", "boolean", noise=0.017) for i in range(1, 6)),
        Column("load_kg", decimals=1, noise=27.4),
    )
    episode_name = "episode"
    episode_rows = 400
    clock = Clock("time", step=3.4, decimals=1)

    FLOOR_M, PERSON_KG, ROOM, TOP = 3.27, 76.4, 8.0, 5.0
    CALLS = np.array([0.021, 0.034, 0.017, 0.043, 0.026])
    EXTRA = 0.37

    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return empty lifts on random floors without calls."""
        states = np.zeros((n, 8))
        states[:, 0] = rng.integers(0, 6, n)
        return states

    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return floors, doors, calls and riders of the next step."""
        n, command = len(states), int(action[0])
        floor, door, riders = states[:, 0], states[:, 1] > 0.5, states[:, 7]
        move = (0.0, 1.0, -1.0, 0.0)[command]
        floor = np.clip(floor + np.where(door, 0.0, move), 0.0, self.TOP)
        door = (door & (command == 0)) | np.full(n, command == 3)
        calls = np.maximum(states[:, 2:7], rng.random((n, 5)) < self.CALLS)
        here = (np.arange(1, 6) == floor[:, None]) & door[:, None]
        boards = (here & (calls > 0.5)).any(axis=1)
        entering = boards * (1.0 + binomial(rng, np.full(n, 2.0), self.EXTRA))
        riders = np.minimum(riders + entering, self.ROOM)
        riders = np.where(door & (floor == 0), 0.0, riders)
        return np.column_stack([floor, door, np.where(here, 0.0, calls), riders])

    def observe(self, states: Array) -> Array:
        """Return height in metres, door, calls and load in kilograms."""
        return np.column_stack(
            [states[:, 0] * self.FLOOR_M, states[:, 1:7], states[:, 7] * self.PERSON_KG]
        )

    def place(self, states: Array, observations: Array) -> Array:
        """Return states with the nearest floor and the nearest number of riders."""
        floor = np.clip(np.rint(observations[:, 0] / self.FLOOR_M), 0.0, self.TOP)
        riders = np.clip(np.rint(observations[:, 7] / self.PERSON_KG), 0.0, self.ROOM)
        return np.column_stack([floor, observations[:, 1:7], riders])

    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Serve calls from above to below most of the time, else act at random."""
        if rng.random() < 0.25:
            return np.array([float(rng.integers(0, 4))])
        floor = round(recorded[0] / self.FLOOR_M)
        called = [i for i in range(1, 6) if recorded[1 + i] > 0.5]
        target = 0 if recorded[7] > 4 * self.PERSON_KG or not called else max(called)
        if floor == target:
            return np.array([0.0 if recorded[1] > 0.5 else 3.0])
        if floor in called and recorded[1] < 0.5:
            return np.array([3.0])
        return np.array([1.0 if target > floor else 2.0])
