"""Rules in words that predict an environment: `cwm theorize` and `cwm score`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Register `cwm.theorize` and `cwm.score`."""
    return {
        "theorize": "cwm_theorize.theorize:theorize",
        "score": "cwm_theorize.scoring:score",
    }


@hookimpl
def cwm_run_kinds() -> Mapping[str, str]:
    """Register the runs of `cwm theorize`."""
    return {
        "theorize": "cwm_theorize.runs:TheoryRun",
    }


@hookimpl
def cwm_world_models() -> Mapping[str, str]:
    """Register rules in words as a kind of world model."""
    return {"theory": "cwm_theorize.world_model:Theory"}


@hookimpl
def cwm_problems() -> Mapping[str, str]:
    """Register the problem of finding rules."""
    return {
        "theory": "cwm_theorize.problem:TheoryProblem",
    }


@hookimpl
def cwm_policies() -> Mapping[str, str]:
    """Register the experimenters, policies that collect data for `cwm theorize`."""
    return {
        "oracle": "cwm_theorize.experimenters:OraclePolicy",
        "enumerate": "cwm_theorize.experimenters:EnumeratePolicy",
        "llm": "cwm_theorize.experimenters:LlmPolicy",
        "curiosity": "cwm_theorize.curiosity:CuriousPolicy",
    }


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add `cwm theorize` and `cwm score`."""
    from cwm_theorize.command import theorize
    from cwm_theorize.score_command import score

    app.command("theorize")(api.guarded(theorize))
    app.command("score")(api.guarded(score))


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Register examples for the conformance tests."""
    return {
        "world model theory": "cwm_theorize.testing.examples:theory",
        "problem theory": "cwm_theorize.testing.examples:theory_problem",
        "policy curiosity": "cwm_theorize.testing.examples:curious_policy",
    }
