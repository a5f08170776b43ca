"""Compare search strategies and models over many environments: `cwm benchmark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Add the Python function `cwm.benchmark`."""
    return {"benchmark": "cwm_benchmark.benchmarking:benchmark"}


@hookimpl
def cwm_run_kinds() -> Mapping[str, str]:
    """Add the run kind of benchmarks, whose jobs are run folders of their own."""
    return {"benchmark": "cwm_benchmark.run:BenchmarkRun"}


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add the command `cwm benchmark`."""
    from cwm_benchmark.command import benchmark

    app.command("benchmark")(api.guarded(benchmark))
