"""The starting point of learning: transitions and a program from a run, a file or a dataset."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cwm_cli.commands.collect import load_dataset
from cwm_cli.commands.plays import PlayRun, wrong_rows
from cwm_cli.commands.subjects import read_program
from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.errors import CwmError
from cwm_cli.runs.programs import program_run
from cwm_cli.runs.storage import named, placed
from cwm_cli.runs.store import HEADER, kind_of

RunOrRows = Path | str | Dataset
"""The folder of a run, a file with transitions, or transitions."""


class StartingPoint(NamedTuple):
    """Initial rows and an initial program, "" for none.

    `earlier` has the rows of another environment that was learned before.
    """

    rows: Dataset | None = None
    program: str = ""
    earlier: Dataset | None = None

    @classmethod
    def read(cls, start: RunOrRows | None) -> StartingPoint:
        """Read a starting point; held-out rows are left out.

        A plan is the starting point of its program's run, with the rows that the program
        mispredicted in the plan.
        """
        if start is None:
            return cls()
        if isinstance(start, Dataset):
            return cls(start.train)
        folder = placed(start)
        if folder.suffix == ".py":
            return cls(None, read_program(start)[1])
        if not folder.is_dir():
            return cls(load_dataset(folder).train)
        wrong = wrong_rows(folder)
        if kind_of(folder) == PlayRun.kind:
            parent = folder.parent.parent  # usually the run with the program of the plan
            if not (parent / HEADER).is_file():
                if wrong is None:
                    words = f"the plan {named(folder)} has no wrong predictions"
                    raise CwmError(f"{words}: choose a run of `cwm synthesize` or `cwm learn`")
                return cls(wrong)
            folder = parent
        run = program_run(folder)
        rows = run.dataset().train
        if wrong is not None:
            wrong.columns["episodes"][:] += 1 + rows.columns["episodes"].max(initial=-1)
            rows = rows.concatenate(wrong)
        return cls(rows, run.best_program())

    @property
    def digest(self) -> str:
        """The hash of the rows and the program, "" without rows."""
        rows = [each.digest for each in (self.rows, self.earlier) if each is not None]
        if not rows:
            return ""
        return "".join(rows) + (sha256(self.program.encode()).hexdigest() if self.program else "")

    def for_environment(self, env: str) -> StartingPoint:
        """Return the starting point with the rows of any other environment as earlier rows."""
        if self.rows is None or self.rows.metadata.get("env", env) == env:
            return self
        return StartingPoint(None, self.program, self.rows)


def convert_rows(rows: Dataset, target: Dataset) -> Dataset:
    """Return rows of an environment as rows of another one, without valid actions.

    Args:
        rows: The rows to convert.
        target: A dataset of the other environment, possibly empty.

    Raises:
        ValueError: The observations differ, unless both have objects of the same classes and
            properties; or some actions do not exist in the other environment.
    """
    old, new = rows.action_space, target.action_space
    is_subset = old.kind == new.kind == "discrete" and old.low == new.low and old.count <= new.count
    if old != new and not is_subset:
        raise ValueError("its actions differ")
    names = target.columns.keys() - {VALID}
    columns = {name: column for name, column in rows.columns.items() if name in names}
    if rows.observation_space != target.observation_space:
        if not ("objects" in rows.metadata and "objects" in target.metadata):
            raise ValueError("its observations differ")
        schema = ObjectSchema.from_json(rows.metadata["objects"])
        new_schema = ObjectSchema.from_json(target.metadata["objects"])
        for name in (f"observations.{OBJECTS}", f"next_observations.{OBJECTS}"):
            slots, dtype = target.columns[name].shape[1], target.columns[name].dtype
            columns[name] = schema.convert(columns[name], new_schema, slots).astype(dtype)
    return replace(target, columns=columns)
