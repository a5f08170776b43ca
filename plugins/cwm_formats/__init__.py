"""Transitions in the formats that others read and write.

`minari_datasets` reads and writes datasets of Minari, `replay_buffers` reads buffers of
Stable-Baselines3, and `tables` and `table_files` read and write CSV and Parquet. `columns` makes
datasets of their arrays. `inferred` makes datasets of tables without an environment, in files or
(`frames`) in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Offer environments of recorded tables."""
    from cwm_formats.recorded import RecordedEnvironments

    return RecordedEnvironments()


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Add the function `dataset` for data frames."""
    return {"dataset": "cwm_formats.frames:dataset"}


@hookimpl
def cwm_importers() -> Mapping[str, str]:
    """Offer what is read."""
    return {
        "minari": "cwm_formats.minari_datasets:MinariImporter",
        "csv": "cwm_formats.table_files:CsvImporter",
        "parquet": "cwm_formats.table_files:ParquetImporter",
        "stable-baselines3": "cwm_formats.replay_buffers:StableBaselines3Buffer",
    }


@hookimpl
def cwm_exporters() -> Mapping[str, str]:
    """Offer what is written."""
    return {
        "minari": "cwm_formats.minari_datasets:MinariExporter",
        "csv": "cwm_formats.table_files:CsvExporter",
        "parquet": "cwm_formats.table_files:ParquetExporter",
    }
