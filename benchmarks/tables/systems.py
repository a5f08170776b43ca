"""Sixteen simulated systems that produce CSV files of recorded transitions.

Run `python -m benchmarks.tables.systems FOLDER` to write 32 CSV files (each system with and without
sensor noise, 2,000 rows) and `floors.json`.

Each row holds the recorded observation and the action applied in this step. The next
row of the same episode is the next observation. A reward belongs to the action of its
row and is computed from the true state. A row with `done` holds the last observation
of its episode: its action has no effect and its reward is 0. An episode may also end
without `done` because of its length. A gap in the time column means that the system
ran on without being recorded, so rows on both sides of a gap are not a transition.
In the noisy tank the valve acts two steps late; in the clean tank it acts without delay.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.tables.continuous_laws import (
    Battery,
    HeatExchanger,
    PredatorPrey,
    Tank,
    Thermostat,
    Vehicle,
)
from benchmarks.tables.more_laws import Crane, Greenhouse, Parking, Reactor
from benchmarks.tables.observer import one_step, rmses, scored_rows, wrong_shares
from benchmarks.tables.random_laws import (
    Conveyor,
    Elevator,
    Epidemic,
    Inventory,
    Queue,
    TrafficLight,
)
from benchmarks.tables.recording import Kind, Law, Recording, simulate, write_recording

ROWS = 2000
FILE_SEED = 20
#: Seed of the particles.
PARTICLE_SEED = 77
PARTICLES = 3000
#: A noisy system counts as "memory" if the filter lowers the RMSE of some observation
#: by at least this share; below it, the last row is almost as good as the whole past.
MIN_FILTER_GAIN = 0.15


@dataclass(frozen=True)
class System:
    """One simulated system with a clean and a noisy variant.

    Attributes:
        name: Name of the system and start of its file names.
        actions: Action columns.
        observations: Observation columns.
        reward: Reward column, or None.
        episode: Episode column, or None.
        time: Time column, or None.
        kind: Program type of the clean variant. "plain": the next row follows from
            the current one; "chance": it is random given the current row; "memory":
            older rows improve the prediction.
        kind_noisy: Program type of the noisy variant. Sensor noise hides the true
            state, so older rows always help a little; "memory" means that they help
            by `MIN_FILTER_GAIN` or more.
        done: Column that marks the last row of an ended episode, or None.
        simulate: Function of (rows, noisy, seed) that returns a `Recording`.
        law: True rule of the clean variant.
        law_noisy: True rule of the noisy variant; it differs for the tank only.
    """

    name: str
    actions: tuple[str, ...]
    observations: tuple[str, ...]
    reward: str | None
    episode: str | None
    time: str | None
    kind: Kind
    kind_noisy: Kind
    done: str | None
    simulate: Callable[[int, bool, int], Recording] = field(repr=False)
    law: Law = field(repr=False)
    law_noisy: Law = field(repr=False)

    def law_of(self, noisy: bool) -> Law:
        """Return the true rule of one variant."""
        return self.law_noisy if noisy else self.law


def _system(law: Law, kind: Kind, kind_noisy: Kind, law_noisy: Law | None = None) -> System:
    laws = {False: law, True: law_noisy or law}
    return System(
        name=law.name,
        actions=tuple(column.name for column in law.actions),
        observations=tuple(column.name for column in law.observations),
        reward=law.reward_name,
        episode=law.episode_name,
        time=law.clock.name if law.clock else None,
        kind=kind,
        kind_noisy=kind_noisy,
        done=law.done_name,
        simulate=lambda rows, noisy, seed: simulate(laws[noisy], rows, noisy, seed),
        law=law,
        law_noisy=laws[True],
    )


_ALL = (
    _system(Tank(), "plain", "memory", Tank(delay=2)),
    _system(Inventory(), "chance", "chance"),
    _system(Thermostat(), "memory", "memory"),
    _system(Queue(), "chance", "chance"),
    _system(Battery(), "plain", "memory"),
    _system(Conveyor(), "chance", "chance"),
    _system(PredatorPrey(), "plain", "memory"),
    _system(TrafficLight(), "chance", "chance"),
    _system(Vehicle(), "plain", "memory"),
    _system(Epidemic(), "chance", "memory"),
    _system(HeatExchanger(), "memory", "memory"),
    _system(Elevator(), "chance", "memory"),
    _system(Reactor(), "memory", "memory"),
    _system(Parking(), "chance", "chance"),
    _system(Greenhouse(), "memory", "memory"),
    _system(Crane(), "plain", "memory"),
)

SYSTEMS: Mapping[str, System] = MappingProxyType({system.name: system for system in _ALL})

#: Six systems to look at while the tool is built.
DEVELOPMENT = ("tank", "inventory", "thermostat", "battery", "conveyor", "epidemic")
#: Six systems for one final examination.
FINAL = ("queue", "predator_prey", "traffic_light", "vehicle", "heat_exchanger", "elevator")
#: Four systems of another author, which were measured once, after the last change of induction.
NEW = ("reactor", "parking", "greenhouse", "crane")


def file_name(name: str, noisy: bool) -> str:
    """Return the file name of one variant."""
    return f"{name}_{'noisy' if noisy else 'clean'}.csv"


def write(folder: Path, name: str, noisy: bool, seed: int = FILE_SEED) -> Path:
    """Write the CSV file of one variant and return its path.

    Args:
        folder: Target folder; it is created if it is missing.
        name: A key of `SYSTEMS`.
        noisy: Whether to add sensor noise.
        seed: Seed of the process, the sensors and the policy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    system = SYSTEMS[name]
    path = folder / file_name(name, noisy)
    write_recording(path, system.law_of(noisy), system.simulate(ROWS, noisy, seed))
    return path


@cache
def floor_report(
    name: str, noisy: bool, seed: int = FILE_SEED, last_share: float = 1.0
) -> Mapping[str, Mapping[str, float]]:
    """Return the errors of ideal predictors for each observation column.

    The default seed is the seed of the written files. The predictors of `observer` fit
    nothing, so all rows are held-out rows.

    Args:
        name: A key of `SYSTEMS`.
        noisy: Whether to use the noisy variant.
        seed: Seed of the recording, as in `write`.
        last_share: Score only this share of the rows, at the end of the file.

    Returns:
        The RMSEs "floor_plain", "floor_filtered" and, for comparison, "persistence"
        ("no change"), and for labels and booleans the "error_rate" of the most
        probable value (the lower one of both predictors).
    """
    system = SYSTEMS[name]
    law = system.law_of(noisy)
    recording = system.simulate(ROWS, noisy, seed)
    rows = scored_rows(law, recording)
    late = rows >= (1.0 - last_share) * ROWS
    last, recorded = (recording.observations[rows[late] + shift] for shift in (0, 1))
    predictions = {"persistence": last}
    for key, filtered in (("floor_plain", False), ("floor_filtered", noisy)):
        predictions[key] = one_step(law, recording, noisy, filtered, PARTICLES, PARTICLE_SEED)[late]
    report = {
        key: dict(zip(system.observations, rmses(law, values, recorded).tolist(), strict=True))
        for key, values in predictions.items()
    }
    wrong = [wrong_shares(predictions[key], recorded) for key in ("floor_plain", "floor_filtered")]
    report["error_rate"] = {
        column.name: float(share)
        for column, share in zip(law.observations, np.minimum(*wrong), strict=True)
        if column.is_category
    }
    return report


def floor(name: str, noisy: bool) -> dict[str, float]:
    """Return the RMSE of the ideal one-step prediction for each observation column.

    The RMSE refers to the next recorded value, so it contains the sensor noise of that
    value. It is the lower one of "floor_plain" and "floor_filtered" of `floor_report`.
    """
    report = floor_report(name, noisy)
    plain, filtered = report["floor_plain"], report["floor_filtered"]
    return {column: min(plain[column], filtered[column]) for column in plain}


def filter_gain(name: str, noisy: bool) -> float:
    """Return the largest relative reduction of an RMSE by the filter, from 0 to 1."""
    plain = floor_report(name, noisy)["floor_plain"]
    best = floor(name, noisy)
    return max(1.0 - best[column] / plain[column] if plain[column] else 0.0 for column in best)


def write_all(folder: Path) -> list[Path]:
    """Write all CSV files and `floors.json`; return the paths of the CSV files."""
    paths, floors = [], {}
    for name, system in SYSTEMS.items():
        for noisy in (False, True):
            paths.append(write(folder, name, noisy))
            floors[paths[-1].name] = {
                "kind": system.kind_noisy if noisy else system.kind,
                "filter_gain": round(filter_gain(name, noisy), 4),
                "floor": floor(name, noisy),
                **floor_report(name, noisy),
            }
    (folder / "floors.json").write_text(json.dumps(floors, indent=2) + "\n", encoding="utf-8")
    return paths


def main() -> None:
    """Write everything into the folder given on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.tables.systems FOLDER")
    paths = write_all(Path(sys.argv[1]))
    print(f"{len(paths)} CSV files and floors.json in {sys.argv[1]}")


if __name__ == "__main__":
    main()
