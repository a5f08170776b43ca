"""Generate faults in correct programs from a seed, each with rows of its system."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.faults.systems import HERE, SYSTEMS, System
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import AccuracyMetric

KINDS = {"region 2": 20, "region 1": 8, "term": 6, "clamp": 6, "order": 5, "rule": 5}
"""Number of faults of each kind. A region has another law, in one or two dimensions."""

ROWS = {0: 600, 1: 200}
"""Numbers of train rows and of held-out rows."""

EPISODE = 25
"""Steps of an episode: short, so that initial states are varied."""

MIN_WRONG_ROWS = 10
"""Minimum number of wrong rows in the fitted train rows, and in the held-out rows."""

MAX_REGION_SHARE = 0.5
"""Maximum share of the rows in a region: a larger region would be the rule."""

TRIES = 500
TURNS = 20
"""Draws in one system before the next system is used."""

MAP_LINE = re.compile(r'(?m)^        "(.+)",$')
MAP = "the map"
"""Represents a change of a cell of the map of a system."""


@dataclass(frozen=True)
class Fault:
    """A correct program, the same program with a fault, and rows of the correct program.

    `condition` is a Python expression of a region over the names of the system. Faults without a
    condition act in the rows with changed predictions.
    """

    name: str
    kind: str
    dimensions: int
    system: System
    truth: str
    program: str
    condition: str
    dataset: Dataset

    def guard(self, rows: Dataset) -> np.ndarray:
        """Return the mask of the rows that the fault affects."""
        if not self.condition:
            return wrong(self.program, rows)
        code = compile(self.condition, self.name, "eval")
        names = ({**self._names(row), "action": row.action} for row in rows)
        return np.array([eval(code, values) for values in names], dtype=np.bool_)

    def is_repaired_by(self, program: str) -> bool:
        """Return whether a program predicts all train and held-out rows exactly."""
        try:
            return not wrong(program, self.dataset).any()
        except Exception:  # noqa: BLE001  # a patched program may fail on held-out rows
            return False

    @cached_property
    def metric(self) -> AccuracyMetric:
        """The metric of the train rows."""
        return AccuracyMetric.of(self.dataset.train)

    def _names(self, row: Transition) -> dict[str, Any]:
        return dict(zip(self.system.names, row.observation.tolist(), strict=True))


def faults(seed: int, kinds: Sequence[str] = ()) -> list[Fault]:
    """Return the fifty faults of a seed, or only its faults of some kinds."""
    found: dict[str, Fault] = {}
    for place, (kind, count) in enumerate(KINDS.items()):
        if kind in kinds or not kinds:
            systems = [system for system in SYSTEMS if any(_changes(kind, system))]
            first = int(np.random.default_rng([seed, place]).integers(len(systems)))
            for number in range(count):
                turned = [systems[(first + number + i) % len(systems)] for i in range(len(systems))]
                rng = np.random.default_rng([seed, place, number])
                fault = _fault(kind, turned, rng, found)
                found[fault.name] = fault
    return list(found.values())


def answers(program: str, rows: Dataset) -> Columns:
    """Return the predictions of a program, which runs in this process and must be trusted."""
    names: dict[str, Any] = {}
    exec(program, names)
    environment = names["Environment"]()
    outcomes = []
    for row in rows:
        environment.set_state(row.observation)
        outcomes.append(environment.step(row.action))
    after, rewards, ends = zip(*outcomes, strict=True)
    return rows.observation_space.pack("next_observations", after) | {
        "rewards": np.array(rewards, dtype=np.float64),
        "terminations": np.array(ends, dtype=np.bool_),
    }


def wrong(program: str, rows: Dataset) -> np.ndarray:
    """Return the mask of the rows that a program predicts wrongly."""
    return AccuracyMetric.of(rows).losses(answers(program, rows), rows) > 0


def tally(drawn: Sequence[Fault], succeeds: Callable[[Fault], bool]) -> str:
    """Return the numbers of successes by kind, and the names of the failures, as text."""
    results = [(fault, succeeds(fault)) for fault in drawn]
    total = Counter(fault.kind for fault in drawn)
    right = Counter(fault.kind for fault, success in results if success)
    lines = [f"{kind:<10} {right[kind]:>3} of {count}" for kind, count in total.items()]
    lines.append(f"{'all':<10} {right.total():>3} of {len(drawn)}")
    lines += [f"not: {fault.name:.90}" for fault, success in results if not success]
    return "\n".join(lines)


def _fault(
    kind: str, systems: Sequence[System], rng: np.random.Generator, others: Container[str]
) -> Fault:
    """Draw faults until one is new and changes enough rows, but not most."""
    for turn in range(TRIES):
        system = systems[turn // TURNS % len(systems)]
        base = _other_constants(system.program, rng)
        if kind.startswith("region"):
            program = base.replace(HERE, "")
            known = _simulate(program, system, rng, {0: ROWS[0]})
            condition = _region(system, known, int(kind[-1]), rng)
            drawn = round(float(rng.uniform(*system.numbers)), 1)
            law = str(rng.choice(system.laws)).format(c=drawn)
            truth = base.replace(HERE, f"        if {condition}:\n            {law}\n")
            words = f"{law} if {condition}"
        else:
            condition, truth = "", base.replace(HERE, "")
            changes = list(_changes(kind, system))
            old, new = changes[int(rng.integers(len(changes)))]
            if old == MAP:
                old, new = _other_cell(truth, system, rng)
            program = truth.replace(old, new)
            words = f"{' '.join(old.split())} -> {' '.join(new.split())}"
        name = f"{kind}, {system.name}: {words}"
        if name in others or program == truth:
            continue
        dimensions = int(kind[-1]) if condition else 0
        data = _simulate(truth, system, rng, ROWS)
        fault = Fault(name, kind, dimensions, system, truth, program, condition, data)
        if _shows(fault):
            return fault
    raise ValueError(f"no new fault of the kind {kind} in {TRIES} draws")


def _changes(kind: str, system: System) -> Iterator[tuple[str, str]]:
    """Yield the text changes of a kind of fault; for regions, yield the names of the axes."""
    named = {
        "term": system.dropped,
        "clamp": system.unclamped,
        "order": system.swapped,
        "rule": system.misruled,
    }
    yield from named.get(kind, ((name, name) for name in system.axes))
    if kind == "rule" and system.chart:
        yield from [(MAP, MAP)] * len(system.misruled)


def _other_constants(program: str, rng: np.random.Generator) -> str:
    """Change the real constants by up to 20 %, with three digits, and shuffle the map."""

    def drawn(found: re.Match[str]) -> str:
        return f"{found[1]} = {float(f'{float(found[2]) * rng.uniform(0.8, 1.2):.3g}')!r}"

    if len(lines := MAP_LINE.findall(program)) > 1:
        shuffled = iter(rng.permutation(lines).tolist())
        program = MAP_LINE.sub(lambda found: found[0].replace(found[1], next(shuffled)), program)
    return re.sub(r"(?m)^(    [A-Z]+) = (\d+\.\d+)$", drawn, program)


def _other_cell(program: str, system: System, rng: np.random.Generator) -> tuple[str, str]:
    """Change one cell of the map; return its line before and after."""
    lines = MAP_LINE.findall(program)
    row = int(rng.integers(len(lines)))
    place = int(rng.integers(len(lines[row])))
    character = str(rng.choice(list(system.chart)))
    return lines[row], lines[row][:place] + character + lines[row][place + 1 :]


def _simulate(
    program: str, system: System, rng: np.random.Generator, counts: dict[int, int]
) -> Dataset:
    """Play random episodes of a program until each split has its number of rows."""
    names: dict[str, Any] = {}
    exec(program, names)
    environment = names["Environment"]()
    rows: list[Transition] = []
    episode = 0
    for split, count in counts.items():
        last = len(rows) + count
        while len(rows) < last:
            seen = system.start(rng)
            for _ in range(min(EPISODE, last - len(rows))):
                action = _action(system, rng)
                environment.set_state(seen)
                after, reward, end = environment.step(action)
                after = np.array(after, dtype=system.observation.dtype)
                rows.append(
                    Transition(seen, action, after, reward, bool(end), False, episode, split)
                )
                seen = after
                if end:
                    break
            episode += 1
    return Dataset.of(rows, observation_space=system.observation, action_space=system.action)


def _action(system: System, rng: np.random.Generator) -> Any:
    """Draw an action; a tenth of the real components are at a bound."""
    if system.action.kind == "discrete":
        return int(rng.integers(system.action.count))
    low, high = np.array(system.action.low), np.array(system.action.high)
    drawn = rng.uniform(low, high)
    return np.where(rng.random(len(low)) < 0.1, high * np.sign(drawn), drawn)


def _shows(fault: Fault) -> bool:
    """Return whether a fault changes enough rows of each part, and a region is small enough."""
    train = fault.dataset.train
    for part in (train[train.fitted], fault.dataset.test):
        if wrong(fault.program, part).sum() < MIN_WRONG_ROWS:
            return False
        if fault.condition and fault.guard(part).mean() > MAX_REGION_SHARE:
            return False
    return True


def _region(system: System, known: Dataset, dimensions: int, rng: np.random.Generator) -> str:
    """Draw the region of another law, as a condition over the names of a system."""
    seen = {name: known.columns["observations"][:, i] for i, name in enumerate(system.names)}
    if dimensions == 1:
        return _line(system, seen, rng)
    shapes = ["half", "box", "both"] + ["disc"] * bool(system.discs)
    shape = str(rng.choice(shapes))
    if shape == "disc":
        return _disc(*system.discs[int(rng.integers(len(system.discs)))], system, seen, rng)
    one, other = (str(name) for name in rng.choice(list(system.axes), 2, replace=False))
    if shape == "half":
        return _half(one, other, system, seen, rng)
    width = (0.3, 0.6)
    if shape == "box":
        return " and ".join(_interval(name, system, seen, rng, width) for name in (one, other))
    return " and ".join(_beyond(name, system, seen, rng, width) for name in (one, other))


def _line(system: System, seen: dict[str, np.ndarray], rng: np.random.Generator) -> str:
    """Draw a region in one dimension; a third of the regions apply to one action only."""
    name = str(rng.choice(list(system.axes)))
    draw = _beyond if rng.random() < 0.5 else _interval
    condition = draw(name, system, seen, rng, (0.15, 0.4))
    if system.action.kind == "discrete" and rng.random() < 1 / 3:
        condition += f" and action == {rng.integers(system.action.count)}"
    return condition


def _beyond(
    name: str,
    system: System,
    seen: dict[str, np.ndarray],
    rng: np.random.Generator,
    share: tuple[float, float],
) -> str:
    """Draw a bound of one name that a share of the rows exceeds."""
    part = rng.uniform(*share)
    sign, quantile = (">", 1 - part) if rng.random() < 0.5 else ("<", part)
    return f"{name} {sign} {_short(np.quantile(seen[name], quantile), system.axes[name])}"


def _interval(
    name: str,
    system: System,
    seen: dict[str, np.ndarray],
    rng: np.random.Generator,
    share: tuple[float, float],
) -> str:
    """Draw an interval of one name that contains a share of the rows."""
    part = rng.uniform(*share)
    first = rng.uniform(0.05, 0.95 - part)
    low, high = np.quantile(seen[name], [first, first + part])
    digits = system.axes[name]
    sign = "<=" if digits == 0 else "<"
    return f"{_short(low, digits)} {sign} {name} {sign} {_short(high, digits)}"


def _half(
    one: str, other: str, system: System, seen: dict[str, np.ndarray], rng: np.random.Generator
) -> str:
    """Draw a half plane that is oblique to both axes."""
    ratio = seen[one].std() / max(seen[other].std(), 1e-9) * rng.uniform(0.5, 2)
    factor = float(f"{ratio:.1g}")
    if not system.observation.is_float:
        factor = max(round(ratio), 1)
    sign = "+" if rng.random() < 0.5 else "-"
    values = seen[one] + factor * seen[other] * (1 if sign == "+" else -1)
    bound = _short(np.quantile(values, rng.uniform(0.6, 0.85)), system.axes[one])
    slope = "" if factor == 1 else f"{factor:g} * "
    return f"{one} {sign} {slope}{other} > {bound}"


def _disc(
    one: str, other: str, system: System, seen: dict[str, np.ndarray], rng: np.random.Generator
) -> str:
    """Draw a disc around a row."""
    place, digits = int(rng.integers(len(seen[one]))), system.axes[one]
    x, y = (_short(seen[name][place], digits) for name in (one, other))
    distances = np.hypot(seen[one] - float(x), seen[other] - float(y))
    radius = max(float(np.quantile(distances, rng.uniform(0.1, 0.3))), 0 if digits else 2)
    return f"({one} - {x}) ** 2 + ({other} - {y}) ** 2 < {_short(radius, digits)}**2".replace(
        "- -", "+ "
    )


def _short(value: float, digits: int) -> str:
    """Return a number with `digits` decimals as text."""
    return str(round(float(value), digits) + 0.0) if digits else str(round(float(value)))
