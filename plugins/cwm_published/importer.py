"""The import format `published`: replay buffers of the Code World Models paper."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwm_cli.commands.collect import find_environment
from cwm_cli.commands.data import Importer
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import UnreadableError, open_for_reading
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import Observer
from cwm_published.buffer import Buffer, read_buffer
from cwm_published.converting import MisfitError, convert, corrupt_first_rows, fits


@dataclass
class PublishedBuffer(Importer):
    """Reads a replay buffer as published in the paper, without running code in it."""

    drop_corrupt_first_rows: bool = False
    """Drop the first row of each episode, which may not follow from its observation."""

    def reads(self, file: Path) -> bool:
        """Return whether the file is a pickle that no other library wrote."""
        if file.suffix not in (".pkl", ".pickle"):
            return False
        try:
            with open_for_reading(file) as stream:
                head = 1000  # the first bytes of a pickle, which name the library of its class
                return b"stable_baselines3" not in stream.read(head)
        except UnreadableError:
            return True  # so that reading reports the reason

    def read(
        self, file: Path, spec: EnvironmentSpec, env_args: Mapping[str, Any], observer: Observer
    ) -> Dataset:
        """Read the rows, and note time limits and corrupt first rows."""
        buffer = read_buffer(file)
        try:
            dataset, limited = convert(
                buffer,
                spec,
                env_args=env_args,
                drop_corrupt_first_rows=self.drop_corrupt_first_rows,
            )
        except MisfitError as error:
            raise CwmError(f"{error}: {_where_it_fits(buffer, spec)}") from error
        if limited:
            rows = "row ends" if limited == 1 else "rows end"
            observer.note(
                f"{limited} {rows} an episode exactly at a time limit: read as truncated, "
                "not terminated"
            )
        if not self.drop_corrupt_first_rows and (corrupt := corrupt_first_rows(spec, dataset)):
            observer.note(
                f"the first rows of about {corrupt} episodes do not follow from their "
                "observations: -o drop_corrupt_first_rows=true leaves out all first rows"
            )
        return dataset


def _where_it_fits(buffer: Buffer, spec: EnvironmentSpec) -> str:
    """Return a hint on the version of the environment that a buffer fits."""
    name = re.sub(r"-v\d+$", "", spec.id)
    # number of versions of an environment, from 0, to try if a file does not fit the named one
    max_versions = 10
    for other in (f"{name}-v{number}" for number in range(max_versions)):
        try:
            found = find_environment(other)
        except CwmError:
            continue
        if found.id == other != spec.id and fits(buffer, found):
            return f"it may be from {other}: use --env {other}"
    return "give the environment of the recording with --env and --env-arg"
