"""Compare the errors of programs that induction writes from a CSV file with ideal predictors.

Each table is imported and searched by two commands. The program then predicts 2,000 fresh rows of
the same system. A table counts as explained if the root mean squared error of every column is at
most 10 % above the error of an ideal predictor, which knows the law. Results are saved in a file
and not measured again.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import machine
from benchmarks.result_file import ResultFile
from benchmarks.tables.observer import rmses, scored_rows
from benchmarks.tables.recording import Array, Recording
from benchmarks.tables.systems import (
    DEVELOPMENT,
    FILE_SEED,
    FINAL,
    NEW,
    ROWS,
    SYSTEMS,
    System,
    floor_report,
    write,
)
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.residuals import most_likely_labels
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds import Predictions, ProgramModel
from cwm_formats.recorded import RecordedColumn, RecordedTable

MARGIN = 1.1
"""Largest ratio of an error and the error of the ideal predictor of a column that is explained."""

DRAWS = 64
"""Draws of a program with chance, whose mean is its prediction."""


class TableCase(NamedTuple):
    """A system, with or without sensor noise, and the seed of its file."""

    name: str
    noisy: bool
    seed: int

    @property
    def label(self) -> str:
        """The system and its variant in words."""
        return f"{self.name} {'noisy' if self.noisy else 'clean'}"

    @property
    def system(self) -> System:
        """The simulated system."""
        return SYSTEMS[self.name]


def main() -> None:
    """Measure the missing tables and print a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="systems; by default the six for development")
    parser.add_argument("--all", action="store_true", help="all systems")
    parser.add_argument("--seed", type=int, default=FILE_SEED, help="seed of the tables")
    parser.add_argument("--budget", type=int, default=1, help="completions")
    parser.add_argument("--folder", type=Path, default=Path("runs/tables"))
    chosen = parser.parse_args()
    names = chosen.names or ((*DEVELOPMENT, *FINAL, *NEW) if chosen.all else DEVELOPMENT)
    for unknown in set(names) - set(SYSTEMS):
        parser.error(f"there is no system {unknown}: choose from {', '.join(SYSTEMS)}")
    results = ResultFile(chosen.folder / f"budget-{chosen.budget}.jsonl", key="case")
    cases = [TableCase(name, noisy, chosen.seed) for name in names for noisy in (False, True)]
    done = []
    for case in cases:
        done.append(
            results.measure_once(
                case, lambda case=case: _measure(case, chosen.budget, chosen.folder)
            )
        )
        print("\n".join(_lines(case, done[-1])), flush=True)
    explained, kinds = (sum(row[name] for row in done) for name in ("explained", "kind_is_right"))
    slowest = max(row["seconds"] for row in done)
    print(f"explained {explained}, kind right {kinds}, of {len(done)}; slowest {slowest:.0f} s")
    print(machine())


def _measure(case: TableCase, budget: int, folder: Path) -> dict[str, Any]:
    """Import a table, search, and compare the predictions of fresh rows with the ideal ones."""
    system = case.system
    place = folder / f"{case.label.replace(' ', '-')}-{case.seed}"
    place.mkdir(exist_ok=True)
    table = write(place, case.name, case.noisy, case.seed)
    data, run = place / "rows.npz", place / "run"
    options = ["--action", ",".join(system.actions), "--observation", ",".join(system.observations)]
    roles = {"--reward": system.reward, "--episode": system.episode, "--time": system.time}
    roles |= {"--terminated": system.done}
    options += [word for role, name in roles.items() if name for word in (role, name)]
    _run_cwm("data", "import", str(table), *options, "--out", str(data), "--force")
    words = ["--dataset", str(data), "--budget", str(budget), "--json", "--new", "--run", str(run)]
    begun = time.monotonic()
    found = json.loads(_run_cwm("synthesize", *words))
    seconds = time.monotonic() - begun
    rows = Dataset.load(data)
    errors = _errors(case, rows, Path(found["program"]).read_text())
    # the ideal predictor predicts the same fresh rows
    report = floor_report(case.name, case.noisy, case.seed + 1)
    plain, filtered = report["floor_plain"], report["floor_filtered"]
    floors = {name: min(plain[name], filtered[name]) for name in plain}
    expected = system.kind_noisy if case.noisy else system.kind
    return {
        "errors": errors,
        "floors": floors,
        "persistence": report["persistence"],
        "explained": all(errors[name] <= MARGIN * floors[name] + 1e-9 for name in errors),
        "kind": found["contract"],
        "expected_kind": expected,
        "kind_is_right": found["contract"] == expected,
        "seconds": round(seconds, 1),
    }


def _run_cwm(*words: str) -> str:
    command = [sys.executable, "-m", "cwm_cli", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"cwm {' '.join(words)}: {done.stderr}")
    return done.stdout


def _errors(case: TableCase, rows: Dataset, program: str) -> dict[str, float]:
    """Return the error of a program on fresh rows, for each column."""
    system, law = case.system, case.system.law_of(case.noisy)
    fresh = system.simulate(ROWS, case.noisy, case.seed + 1)
    table = RecordedTable.of(rows.metadata["env_args"])
    scored = scored_rows(law, fresh)
    inside = np.flatnonzero(np.diff(fresh.segments) == 0)
    data = _dataset(rows, table, system, fresh, inside)
    with Sandbox(Limits(), 2) as sandbox:
        predictions = ProgramModel(program, sandbox).predict(data, draws=DRAWS)
    if predictions.failure:
        raise SystemExit(f"{case.label}: {predictions.failure.message}")
    names = [column.name for column in table.observed]
    order = [names.index(name) for name in system.observations]
    means = _means(predictions, [column.form == "label" for column in law.observations], order)
    chosen, recorded = np.isin(inside, scored), data.columns["next_observations"][:, order]
    return dict(
        zip(
            system.observations,
            rmses(law, means[chosen], recorded[chosen]).tolist(),
            strict=True,
        )
    )


def _means(predictions: Predictions, labels: Sequence[bool], order: Sequence[int]) -> Array:
    """Return the mean prediction of each column, and of labels the most probable number."""
    answers, chances = zip(*predictions.answers(), strict=True)
    values = np.stack([columns["next_observations"][:, order] for columns in answers])
    weights = np.stack(chances)
    weights = weights / weights.sum(axis=0)
    means = np.asarray((values * weights[..., None]).sum(axis=0), np.float64)
    for column in np.flatnonzero(labels):
        pairs = list(predictions.answers())
        means[:, column] = most_likely_labels(pairs, "next_observations", order[column])
    return means


def _dataset(
    rows: Dataset, table: RecordedTable, system: System, fresh: Recording, inside: Array
) -> Dataset:
    """Return fresh rows in the spaces of an imported table; its segments are episodes."""
    law = system.law
    labels = {column.name: column.labels for column in (*law.observations, *law.actions)}
    codes = dict(zip(system.observations, fresh.observations.T, strict=True))
    codes |= dict(zip(system.actions, fresh.actions.T, strict=True))

    def values(column: RecordedColumn) -> Array:
        known = codes[column.name]
        if not column.labels:
            return known
        words = [labels[column.name][int(code)] for code in known]
        return np.array([column.labels.index(word) for word in words], np.float64)

    seen = np.stack([values(column) for column in table.observed], axis=1)
    acted = np.stack([values(column) for column in table.acted], axis=1)[inside]
    space = rows.action_space
    if space.kind == "dict":
        named = zip(space.keys, space.children, acted.T, strict=True)
        actions = {
            f"actions.{key}": column.reshape(-1, *part.shape).astype(part.dtype)
            for key, part, column in named
        }
    else:
        actions = {"actions": acted.reshape(-1, *space.shape).astype(space.dtype)}
    kind = rows.observation_space.dtype
    columns = {
        "observations": seen[inside].astype(kind),
        "next_observations": seen[inside + 1].astype(kind),
        **actions,
        "rewards": fresh.rewards[inside],
        "terminations": fresh.dones[inside + 1],
        "truncations": np.zeros(len(inside), np.bool_),
        "episodes": fresh.segments[inside],
        "split": np.zeros(len(inside), np.int8),
    }
    return Dataset(columns, rows.observation_space, space, rows.metadata)


def _lines(case: TableCase, found: dict[str, Any]) -> Iterator[str]:
    """Yield a line for a table, and one for each column that is not explained."""
    words = "explained" if found["explained"] else "not explained"
    kind = found["kind"] + ("" if found["kind_is_right"] else f" (not {found['expected_kind']})")
    yield f"{case.label:<24} {words:<14} {kind:<20} {found['seconds']:5.1f} s"
    for name, error in found["errors"].items():
        best, unchanged = found["floors"][name], found["persistence"][name]
        if error > MARGIN * best + 1e-9:
            yield f"    {name:<20} error {error:.4g}, ideal {best:.4g}, no change {unchanged:.4g}"


if __name__ == "__main__":
    main()
