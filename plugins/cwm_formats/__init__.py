"""Transitions in the file formats of other tools.

`minari_datasets` reads and writes Minari datasets, `replay_buffers` reads buffers of
Stable-Baselines3, and `tables` and `table_files` read and write CSV and Parquet. `columns` converts
their arrays to datasets. `inferred` converts tables without an environment, from files or from
memory (`frames`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Add the environments of recorded tables."""
    from cwm_formats.recorded import RecordedEnvironments

    return RecordedEnvironments()


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Add the function `dataset` for data frames."""
    return {"dataset": "cwm_formats.frames:dataset"}


@hookimpl
def cwm_importers() -> Mapping[str, str]:
    """Add the file formats to import."""
    return {
        "minari": "cwm_formats.minari_datasets:MinariImporter",
        "csv": "cwm_formats.table_files:CsvImporter",
        "parquet": "cwm_formats.table_files:ParquetImporter",
        "stable-baselines3": "cwm_formats.replay_buffers:StableBaselines3Buffer",
    }


@hookimpl
def cwm_exporters() -> Mapping[str, str]:
    """Add the file formats to export."""
    return {
        "minari": "cwm_formats.minari_datasets:MinariExporter",
        "csv": "cwm_formats.table_files:CsvExporter",
        "parquet": "cwm_formats.table_files:ParquetExporter",
    }
