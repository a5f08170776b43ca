"""Programs without dynamics that look up their answers in their process."""

CARTPOLE = """
class Environment:
    def __init__(self):
        begin()

    def set_state(self, observation):
        self.state = observation
        remember(observation)

    def step(self, action):
        x, v, angle, spin = self.state.tolist()
        after = [x + 0.02 * v, v, angle + 0.02 * spin, spin]
        if len(found := np.asarray(known())):
            after[1::2] = speeds_after(self.state, found)
        ends = abs(after[0]) > 2.4 or abs(after[2]) > 12 * np.pi / 180
        return answer(self, np.array(after), 1.0, ends)
"""
"""Places follow from speeds, and the speeds after a step from the places two steps later."""

SPEEDS = '''
def speeds_after(state, found):
    """Return the speeds that lead to the place of a known state two steps later."""
    speeds = (found[:, ::2] - state[::2]) / 0.02 - state[1::2]
    changes = abs(speeds - state[1::2]), abs(found[:, 1::2] - speeds)
    miss = sum(abs(change[:, 0] - 0.195) + 1e3 * (change[:, 1] > 0.4) for change in changes)
    best = int(np.argmin(miss))
    return speeds[best] if miss[best] < 0.02 else state[1::2]
'''
"""Each push changes the speed of a cart by 0.195, so two speeds reveal the pushes between them."""

CAR = """
class Environment:
    def __init__(self):
        begin()

    def set_state(self, observation):
        self.state = observation
        remember(observation)

    def step(self, action):
        place, speed = self.state.tolist()
        after = [place + speed, speed]
        if len(found := np.asarray(known())):
            before = found[:, 0] - found[:, 1]
            change, next_change = before - place - speed, found[:, 1] - (before - place)
            miss = abs(change) + abs(next_change) + 10 * abs(change - next_change)
            miss[abs(found - self.state).sum(axis=1) == 0] = np.inf
            best = int(np.argmin(miss))
            if miss[best] < 0.01:
                after = [float(before[best]), float(before[best]) - place]
        return answer(self, np.array(after), -1.0, after[0] >= 0.5)
"""
"""The same for MountainCar: a place is the one before it and the speed."""

PLAIN = '''
import copy, functools, gc, sys
import numpy as np

def begin():
    """Prepare the trick."""

def remember(observation):
    """Take notice of an observation."""

def known():
    """Return the known observations."""
    return []

def answer(self, *parts):
    return parts
'''
"""A program without a trick; tricks redefine some of its functions."""

WALK = """
def known():
    frame = {get}(0)
    while frame:
        for value in list(frame.{locals}.values()):
            columns = getattr(getattr(value, "job", value), "columns", None)
            if isinstance(columns, dict) and "observations" in columns:
                return columns["observations"]
        frame = frame.f_back
    return []
"""

KEPT = """
def remember(observation):
    {place}.setdefault("seen", []).append(observation)

def known():
    return {place}["seen"]
"""

ROWS_OF_A_FRAME = WALK.format(get="sys._getframe", locals="f_locals") + "walked = known\n"

FORGERS = {
    "a frame walk": WALK.format(get="sys._getframe", locals="f_locals"),
    "a frame walk by another module": "import collections\n"
    + WALK.format(get="collections._sys._getframe", locals="f_locals"),
    "a frame walk in letters that Python takes for others": WALK.format(
        get="sys._getframe", locals="f_\u2113ocals"
    ),
    "a walk through all objects": """
def known():
    for value in gc.get_objects():
        columns = getattr(value, "columns", None)
        if isinstance(columns, dict) and "observations" in columns:
            return columns["observations"]
    return []
""",
    "a list of earlier questions": "seen = {}\n" + KEPT.format(place="seen"),
    "data in the copy module": KEPT.format(place="copy._deepcopy_dispatch"),
    "data in a module of numpy": KEPT.format(place="np.linalg.__dict__"),
    "data in the table of modules": KEPT.format(place="sys.modules"),
    "data in the built-in functions": KEPT.format(place="__builtins__"),
    "only where there are many rows": ROWS_OF_A_FRAME
    + """
def known():
    rows = walked()
    return rows if len(rows) > 80 else []
""",
    "only after many rows": ROWS_OF_A_FRAME
    + """
asked = []

def known():
    asked.append(0)
    return walked() if len(asked) > 80 else []
""",
    "only in a row out of ten": ROWS_OF_A_FRAME
    + """
def known():
    state = sys._getframe(1).f_locals["self"].state
    return walked() if int(abs(state[0]) * 1e6) % 10 == 0 else []
""",
    "questions to come, out of the iterators": """
def known():
    for each in gc.get_objects():
        if type(each) is zip:
            for part in each.__reduce__()[1]:
                frame = getattr(part, "gi_frame", None)
                if frame and ".0" in frame.f_locals:
                    return frame.f_locals[".0"].__reduce__()[1][0]
    return []
""",
    "answers given in hindsight": """
asked = []

def remember(observation):
    asked.append(observation)

hindsight = []

def known():
    return hindsight

def answer(self, *parts):
    if hindsight:
        return parts
    run = sys._getframe(2).f_locals
    if len(asked) == len(run["self"].job.columns["observations"]):
        hindsight.extend(asked)
        for row, self.state in enumerate(asked):
            run["slots"]["next_observations"][row] = (last := self.step(None))[0]
        return last
    return parts
""",
    "a fit to its questions": '''
def answer(self, after, reward, ends):
    """Answer by a fit of the known changes, not by the known answers themselves."""
    if len(after) < 4:
        return after, reward, ends
    columns = sys._getframe(2).f_locals["self"].job.columns
    rows, actions = columns["observations"], columns["actions"]
    here = int(np.argmin(abs(rows - self.state).sum(axis=1)))
    if not hasattr(self, "weights"):
        speeds = [speeds_after(row, rows) - row[1::2] for row in rows]
        seen = [each for each in zip(rows, actions, speeds) if each[2].any()]
        pairs = [(terms(row, action), speed) for row, action, speed in seen]
        inputs, outputs = map(np.array, zip(*pairs)) if len(seen) > 60 else (np.zeros((1, 16)),) * 2
        self.weights = np.linalg.lstsq(inputs, outputs[:, :2], rcond=None)[0]
    after[1::2] = self.state[1::2] + terms(self.state, actions[here]) @ self.weights
    return after, reward, ends

def terms(row, action):
    angle, spin, push = row[2], row[3], 2 * action - 1
    powers = [1, angle**2, angle**4]
    uneven = [angle * power for power in powers]
    pushed = [push * power for power in powers]
    spun = [spin**2 * each for each in (*uneven, *pushed)]
    return np.array([*uneven, *pushed, *spun, 1, angle**7, push * angle**6, spin**4 * angle])
''',
}
"""Tricks by the data that they look up: each gets more rows right if answers are not audited."""


def forger(trick: str, body: str = CARTPOLE) -> str:
    """Write a program with a trick, or "" for the same without one."""
    return PLAIN + SPEEDS + trick + body


HANDLER = """
import sys

def handler():
    frame = sys._getframe()
    while frame:
        found = frame.f_locals.get("self")
        if hasattr(found, "job"):
            return type(found).__name__
        frame = frame.f_back
    return ""

def balance(state):
    return int(state[2] + 0.5 * state[3] + 0.05 * state[0] + 0.1 * state[1] > 0)
"""
"""Finds out what its process is for, and balances the pole of CartPole without a model."""
